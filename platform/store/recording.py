"""Write the history: the recorder's transactions.

Each watch has a position, the resourceVersion up to which its changes are stored. A batch of
changes is written together with the position after it, and only if the stored position is the one
before it. So changes are stored exactly once: a batch whose response was lost is recognized, and a
crash repeats what was not committed. The first statement of each transaction locks the recorder's
row and checks its epoch, which each leader increments: transactions of two leaders do not
interleave, and those of the earlier one fail once the later one has begun.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from . import job_records, pod_records
from .database import Database
from .history_tables import GAPS, JOBS, MARKS, PODS, RECORDER, STREAMS
from .job_records import PODS_RESOURCE
from .records import JobRecord, PodRecord, Record, version_number
from .upsert import chunks, upsert

T = TypeVar("T")

MISSING_PER_TRANSACTION = 200
"""Objects per transaction that a list after a gap does not have."""


class FencedError(Exception):
    """Another recorder has begun."""


class OutOfStepError(Exception):
    """The stored position is neither the one before the batch nor the one after it."""


class Position(msgspec.Struct, frozen=True):
    """The position of a watch."""

    version: str
    """Resource version."""
    observed_at: int
    """Until when all changes are known to be received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Changes of one watch in their order."""

    resource: str
    previous: str
    """Position before the first one; empty if there is none."""
    position: str
    """Position after the last one."""
    observed_at: int
    """When they were received."""
    seen_at: int
    """Until when all changes are known to be received with them: earlier, if more is delayed."""
    records: Sequence[Record]
    is_late: bool = False
    """The changes were received with a delay."""


class Mark(msgspec.Struct, frozen=True):
    """An annotation that is to be written."""

    job_uid: str
    kind: str
    namespace: str
    name: str
    value: str


class Recording:
    """Transactions of one recorder, from :meth:`begin` until the next one begins.

    All methods but :meth:`begin` and :meth:`position` raise :class:`FencedError` afterwards, and
    each raises :class:`StoreUnavailableError`, after which it may have been carried out; it can be
    repeated.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._epoch = -1

    async def begin(self) -> None:
        """Begin a new epoch."""

        def increment(db: sa.Connection) -> int:
            changed = db.execute(sa.update(RECORDER).values(epoch=RECORDER.c.epoch + 1))
            if not changed.rowcount:
                db.execute(sa.insert(RECORDER).values(only=1, epoch=1))
            return db.scalar(sa.select(RECORDER.c.epoch)) or 0

        self._epoch = await self._database.run(increment)

    async def position(self, resource: str) -> Position | None:
        """Return the stored position of a watch."""
        query = sa.select(STREAMS.c.position, STREAMS.c.observed_at)
        row = await self._database.read(
            lambda db: db.execute(query.where(STREAMS.c.resource == resource)).first()
        )
        return None if row is None else Position(row.position, row.observed_at)

    async def write(self, batch: Batch) -> None:
        """Write a batch.

        Raises:
            OutOfStepError: the watch has to resume from the stored position.
        """

        def work(db: sa.Connection) -> None:
            query = sa.select(STREAMS.c.position).where(STREAMS.c.resource == batch.resource)
            stored = db.scalar(query) or ""
            if stored == batch.position:
                return  # written, and its response was lost
            if stored != batch.previous:
                raise OutOfStepError(f"{batch.resource}: {stored}, not {batch.previous}")
            exact = not batch.is_late
            _apply(db, batch.records, observed_at=batch.observed_at, exact=exact)
            _set_position(db, batch.resource, batch.position, batch.seen_at)

        await self._run(work)

    async def write_listed(self, records: Sequence[Record], *, observed_at: int) -> None:
        """Write states that a list after a gap has returned, without a position."""
        await self._run(
            lambda db: _apply(db, records, observed_at=observed_at, listed=True, exact=False)
        )

    async def recorded(self, resource: str, kind: str) -> Sequence[str]:
        """Return the uids of the jobs of *kind*, or of pods, that exist as far as is stored."""
        if resource == PODS_RESOURCE:
            query = sa.select(PODS.c.uid).where(PODS.c.present.is_(True))
        else:
            query = sa.select(JOBS.c.uid).where(JOBS.c.deleted_at.is_(None), JOBS.c.kind == kind)
        return await self._database.read(lambda db: db.scalars(query).all())

    async def write_missing(
        self, resource: str, uids: Sequence[str], *, last_seen_at: int, observed_at: int
    ) -> None:
        """Record the end of objects that a list after a gap does not have."""
        for chunk in chunks(uids, MISSING_PER_TRANSACTION):

            def work(db: sa.Connection, these: Sequence[str] = tuple(chunk)) -> None:
                if resource == PODS_RESOURCE:
                    pod_records.end_unobserved(db, these, last_seen_at=last_seen_at)
                else:
                    job_records.mark_deleted_unobserved(db, these, observed_at=observed_at)

            await self._run(work)

    async def complete_list(
        self, resource: str, position: Position, *, last: Position, ended_at: int
    ) -> None:
        """Record the gap from *last* to a list, which has ended it, and the list's *position*."""
        gap = {
            "started_at": last.observed_at,
            "started_version": version_number(last.version),
            "ended_at": ended_at,
        }

        def work(db: sa.Connection) -> None:
            same = sa.and_(GAPS.c.resource == resource, GAPS.c.started_at == gap["started_at"])
            earlier = db.scalar(sa.select(GAPS.c.started_version).where(same))
            if earlier is not None:
                gap["started_version"] = min(gap["started_version"], earlier)
            upsert(db, GAPS, [{"resource": resource, **gap}])
            if resource == PODS_RESOURCE:
                job_records.mark_incomplete(db, **gap)
            _set_position(db, resource, position.version, position.observed_at)

        await self._run(work)

    async def marks(self, *, limit: int) -> Sequence[Mark]:
        """Return annotations that are to be written."""
        rows = await self._database.read(
            lambda db: db.execute(sa.select(MARKS).limit(limit)).mappings().all()
        )
        return [Mark(**row) for row in rows]

    async def remove_marks(self, marks: Sequence[Mark]) -> None:
        """Remove *marks*, unless another value is due by now."""
        values: Mapping[str, str] = {mark.job_uid: mark.value for mark in marks}

        def work(db: sa.Connection) -> None:
            for uid, value in values.items():
                where = sa.and_(MARKS.c.job_uid == uid, MARKS.c.value == value)
                db.execute(sa.delete(MARKS).where(where))

        await self._run(work)

    async def add_unknown_jobs(self, *, before: int, limit: int) -> int:
        """Add rows for jobs of which only pods were observed; return their number."""
        return await self._run(
            lambda db: pod_records.add_unknown_jobs(db, before=before, limit=limit)
        )

    async def _run(self, work: Callable[[sa.Connection], T]) -> T:
        def fenced(db: sa.Connection) -> T:
            mine = RECORDER.c.epoch == self._epoch
            if not db.execute(sa.update(RECORDER).where(mine).values(only=1)).rowcount:
                raise FencedError("another recorder of the history has begun")
            return work(db)

        return await self._database.run(fenced)


def _apply(
    db: sa.Connection,
    records: Sequence[Record],
    *,
    observed_at: int,
    listed: bool = False,
    exact: bool = True,
) -> None:
    jobs = [record for record in records if isinstance(record, JobRecord)]
    if jobs:
        new = job_records.apply_jobs(db, jobs, observed_at=observed_at, listed=listed, exact=exact)
        pod_records.count_pods_of(db, new)
    pods = [record for record in records if isinstance(record, PodRecord)]
    if pods:
        pod_records.apply_pods(db, pods, observed_at=observed_at, exact=exact)


def _set_position(db: sa.Connection, resource: str, position: str, observed_at: int) -> None:
    row = {"resource": resource, "position": position, "observed_at": observed_at}
    upsert(db, STREAMS, [row])
