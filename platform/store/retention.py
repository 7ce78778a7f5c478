"""Delete old rows of the history, in batches that do not hold up other transactions.

Jobs that still exist in the cluster and commands without an outcome are kept at any age.
Several replicas may do this at the same time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from .commands import COMMANDS, timestamp
from .database import Database, StoreUnavailableError
from .history_tables import GAPS, JOB_EXITS, JOB_USAGE, JOBS, PHASES, USAGE
from .pod_records import DAY, HOUR
from .records import SECOND, to_micros

DAILY_USAGE_AGE = timedelta(days=5 * 366)
"""Age at which usage by day is deleted; usage by hour has the age of the jobs."""


MIN_BATCH = 10
"""Minimum number of rows per transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How much of the history is kept."""

    max_age: timedelta = timedelta(days=90)
    """Age since the deletion of a job, or the outcome of a command."""

    max_rows: int = 1_000_000
    """Maximum number of jobs, and of commands."""

    batch: int = 500
    """Rows per transaction."""


class Retention:
    """Deletes old rows; methods raise :class:`StoreUnavailableError`."""

    def __init__(self, database: Database, settings: RetentionSettings) -> None:
        self._database = database
        self._settings = settings
        self._batch = settings.batch

    async def delete_batch(self, now: datetime) -> dict[str, int]:
        """Delete at most one batch of each table; return the numbers of rows by table.

        After a transaction that took too long the next ones are smaller.
        """
        try:
            deleted = await self._delete_batch(now)
        except StoreUnavailableError:
            self._batch = max(MIN_BATCH, self._batch // 2)
            raise
        self._batch = min(self._settings.batch, self._batch * 2)
        return deleted

    async def _delete_batch(self, now: datetime) -> dict[str, int]:
        oldest = now - self._settings.max_age
        return {
            "history_jobs": await self._delete_jobs(to_micros(oldest)),
            "commands": await self._delete_commands(timestamp(oldest)),
            "history_usage": await self._delete_usage(now),
        }

    async def _delete_jobs(self, oldest: int) -> int:
        """Delete jobs of before *oldest*, and the oldest ones beyond the maximum number."""
        settings = self._settings
        deleted = JOBS.c.deleted_at.is_not(None)
        newest_first = sa.select(JOBS.c.deleted_at).where(deleted)
        newest_first = newest_first.order_by(JOBS.c.deleted_at.desc())
        limit = newest_first.offset(settings.max_rows).limit(1)
        beyond = await self._database.read(lambda db: db.scalar(limit))
        # Jobs that were deleted at the same time as the limit stay.
        before = max(oldest, beyond if beyond is not None else 0)
        old = sa.select(JOBS.c.uid).where(JOBS.c.deleted_at < before)
        query = old.order_by(JOBS.c.deleted_at).limit(self._batch)

        def work(db: sa.Connection) -> int:
            uids = db.scalars(query).all()
            for table in (PHASES, JOB_USAGE, JOB_EXITS):
                db.execute(sa.delete(table).where(table.c.job_uid.in_(uids)))
            db.execute(sa.delete(JOBS).where(JOBS.c.uid.in_(uids)))
            return len(uids)

        return await self._database.run(work)

    async def _delete_commands(self, oldest: str) -> int:
        """The same of commands; one without an outcome has no time of it, and is kept."""
        settings, finished = self._settings, COMMANDS.c.finished_at
        newest_first = sa.select(finished).where(finished.is_not(None)).order_by(finished.desc())
        limit = newest_first.offset(settings.max_rows).limit(1)
        beyond = await self._database.read(lambda db: db.scalar(limit))
        before = max(oldest, beyond or "")
        query = sa.select(COMMANDS.c.id).where(finished < before).order_by(finished)
        query = query.limit(self._batch)

        def work(db: sa.Connection) -> int:
            ids = db.scalars(query).all()
            db.execute(sa.delete(COMMANDS).where(COMMANDS.c.id.in_(ids)))
            return len(ids)

        return await self._database.run(work)

    async def _delete_usage(self, now: datetime) -> int:
        ages = {HOUR: self._settings.max_age, DAY: max(self._settings.max_age, DAILY_USAGE_AGE)}
        limits = [(step, to_micros(now - age) // SECOND) for step, age in ages.items()]
        work = _deletion_of_usage(limits, self._batch)
        gaps = sa.delete(GAPS).where(GAPS.c.ended_at < to_micros(now - ages[DAY]))

        def both(db: sa.Connection) -> int:
            db.execute(gaps)
            return work(db)

        return await self._database.run(both)


def _deletion_of_usage(
    limits: Sequence[tuple[int, int]], batch: int
) -> Callable[[sa.Connection], int]:
    """Return a transaction that deletes the oldest buckets before *limits*, by step."""

    def work(db: sa.Connection) -> int:
        count = 0
        for step, before in limits:
            of_step = USAGE.c.step == step
            first = db.scalar(
                sa.select(USAGE.c.bucket).where(of_step).order_by(USAGE.c.bucket).limit(1)
            )
            if first is not None and first < before:
                until = min(before, first + step * max(1, batch // 50))
                where = sa.and_(of_step, USAGE.c.bucket < until)
                count += db.execute(sa.delete(USAGE).where(where)).rowcount
        return count

    return work
