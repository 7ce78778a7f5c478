"""Read the history of jobs."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from ..wire.history import RecordedJob, RecordedPhase, RecordedTask
from ..wire.jobs import Phase
from .commands import COMMANDS, CommandRecord
from .database import Database
from .history_tables import JOB_EXITS, JOB_USAGE, JOBS, PHASES, PODS, UNFINISHED, is_pod_of_job
from .records import SECOND, from_micros, to_micros
from .upsert import chunks

MAX_COMMANDS = 1000
"""Maximum number of commands of one job in a response."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of the latest job of a name."""

    job: RecordedJob
    phases: list[RecordedPhase]

    @property
    def pods(self) -> dict[str, int]:
        """The job's pods by phase, as its status had them last."""
        counts: dict[str, int] = defaultdict(int)
        for task in self.job.tasks:
            for phase, count in task.phases.items():
                counts[phase] += count
        return dict(counts)


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """All that is recorded of one job."""

    job: RecordedJob
    spec: Any
    """As it was stored; ``None`` if it was larger than what the recorder stores."""
    spec_bytes: int
    phases: list[RecordedPhase]
    commands: Sequence[CommandRecord]


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list; empty fields select all."""

    namespace: str = ""
    kinds: tuple[str, ...] = ()
    name: str = ""
    phases: tuple[str, ...] = ()
    queue: str = ""
    user: str | None = None
    account: str | None = None
    ended_from: datetime | None = None
    """Jobs that ended at or after this time, or have not ended."""
    ended_to: datetime | None = None
    """Jobs that ended before this time."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last job of a page."""

    ended_at: int
    uid: str


FIRST = Cursor(UNFINISHED, "z")
"""The position before all jobs: their uids are hexadecimal."""


class HistoryStore:
    """Reads the history; methods raise :class:`StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def jobs(
        self, which: JobFilter, *, limit: int, now: datetime, after: Cursor | None = None
    ) -> tuple[Sequence[RecordedJob], Cursor | None]:
        """Return the jobs that ended last, unfinished ones first, and where the next page begins.

        The uid breaks ties. Running pods count until *now*.
        """
        query = sa.select(*_COLUMNS).where(*_conditions(which))
        if after is not None:
            position = sa.tuple_(JOBS.c.ended_at, JOBS.c.uid)
            query = query.where(position < sa.tuple_(after.ended_at, after.uid))
        query = query.order_by(JOBS.c.ended_at.desc(), JOBS.c.uid.desc()).limit(limit + 1)

        def work(db: sa.Connection) -> tuple[Sequence[RecordedJob], Cursor | None]:
            rows = db.execute(query).all()
            page = rows[:limit]
            last = Cursor(page[-1].ended_at, page[-1].uid) if len(rows) > limit else None
            return _with_pods(db, page, now=now), last

        return await self._database.read(work)

    async def find(self, uid: str) -> RecordedJob | None:
        """Return a job by its uid."""
        query = sa.select(*_COLUMNS).where(JOBS.c.uid == uid)
        row = await self._database.read(lambda db: db.execute(query).first())
        return None if row is None else _job(row)

    async def details(self, uid: str, *, now: datetime) -> JobDetails | None:
        """Return all that is recorded of a job; running pods count until *now*."""

        def work(db: sa.Connection) -> JobDetails | None:
            query = sa.select(*_COLUMNS, JOBS.c.spec, JOBS.c.spec_bytes).where(JOBS.c.uid == uid)
            row = db.execute(query).first()
            if row is None:
                return None
            return JobDetails(
                job=_with_pods(db, [row], now=now)[0],
                spec=None if row.spec is None else msgspec.json.decode(row.spec),
                spec_bytes=row.spec_bytes,
                phases=_phases(db, row),
                commands=_commands(db, row),
            )

        return await self._database.read(work)

    async def timeline(self, namespace: str, kind: str, name: str) -> Timeline | None:
        """Return the phases of the latest job of this kind and name, deleted or not."""
        where = (JOBS.c.namespace == namespace, JOBS.c.name == name, JOBS.c.kind == kind)
        newest = (JOBS.c.ended_at.desc(), JOBS.c.created_at.desc())
        query = sa.select(*_COLUMNS).where(*where).order_by(*newest).limit(1)

        def work(db: sa.Connection) -> Timeline | None:
            row = db.execute(query).first()
            return None if row is None else Timeline(job=_job(row), phases=_phases(db, row))

        return await self._database.read(work)


_COLUMNS = [column for column in JOBS.c if column.name not in ("spec", "spec_bytes")]


def _conditions(which: JobFilter) -> list[sa.ColumnElement[bool]]:
    columns = JOBS.c
    found: list[sa.ColumnElement[bool]] = []
    if which.namespace:
        found.append(columns.namespace == which.namespace)
    if which.kinds:
        found.append(columns.kind.in_(which.kinds))
    if which.name:
        found.append(columns.name == which.name)
    if which.phases:
        found.append(columns.phase.in_(which.phases))
    if which.queue:
        found.append(columns.queue == which.queue)
    if which.user is not None:
        found.append(columns.username == which.user)
    if which.account is not None:
        found.append(columns.account == which.account)
    if which.ended_from is not None:
        found.append(columns.ended_at >= to_micros(which.ended_from))
    if which.ended_to is not None:
        found.append(columns.ended_at < to_micros(which.ended_to))
    return found


def _job(row: Any) -> RecordedJob:
    return RecordedJob(
        uid=row.uid,
        kind=row.kind,
        namespace=row.namespace,
        name=row.name,
        queue=row.queue,
        user=row.username,
        phase=row.phase,
        reason=row.reason,
        message=row.message,
        labels=msgspec.json.decode(row.labels, type=dict[str, str]),
        tasks=msgspec.json.decode(row.tasks, type=list[RecordedTask]),
        created_at=from_micros(row.created_at),
        started_at=_optional(row.started_at),
        finished_at=_optional(row.finished_at),
        deleted_at=_optional(row.deleted_at),
        complete=not row.incomplete,
        incomplete_reason=row.incomplete,
    )


def _phases(db: sa.Connection, job: Any) -> list[RecordedPhase]:
    """Return the phases in order; equal phases in sequence are one."""
    order = (PHASES.c.entered_at, PHASES.c.number)
    query = sa.select(PHASES).where(PHASES.c.job_uid == job.uid).order_by(*order)
    merged: list[Any] = []
    entries: list[int] = []
    for row in db.execute(query):
        if merged and merged[-1].phase == row.phase:
            merged[-1] = row
        else:
            merged.append(row)
            entries.append(row.entered_at)
    ends = [*entries[1:], job.deleted_at]
    return [
        RecordedPhase(
            phase=row.phase,
            entered_at=from_micros(entered),
            left_at=_optional(left),
            reason=row.reason,
            message=row.message,
        )
        for row, entered, left in zip(merged, entries, ends, strict=False)
    ]


def _with_pods(db: sa.Connection, rows: Sequence[Any], *, now: datetime) -> list[RecordedJob]:
    """Return the jobs of *rows* with what their pods have used and how they ended."""
    uids = [row.uid for row in rows]
    used = _resource_seconds(db, uids, to_micros(now))
    exits = _exit_codes(db, uids)
    return [
        msgspec.structs.replace(
            _job(row),
            exit_code=0 if row.phase == Phase.COMPLETED else max(exits[row.uid], default=None),
            exit_codes={str(code): pods for code, pods in sorted(exits[row.uid].items())},
            resource_seconds={name: each for name, each in sorted(used[row.uid].items()) if each},
        )
        for row in rows
    ]


def _exit_codes(db: sa.Connection, uids: Sequence[str]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for chunk in chunks(uids):
        for row in db.execute(sa.select(JOB_EXITS).where(JOB_EXITS.c.job_uid.in_(chunk))):
            found[row.job_uid][row.exit_code] = row.pods
    return found


def _resource_seconds(
    db: sa.Connection, uids: Sequence[str], now: int
) -> dict[str, dict[str, float]]:
    """Return the usage of jobs: of pods that have ended, and of others until *now*."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for chunk in chunks(uids):
        for row in db.execute(sa.select(JOB_USAGE).where(JOB_USAGE.c.job_uid.in_(chunk))):
            found[row.job_uid][row.resource] += row.amount
        for pods in db.execute(_running_pods(chunk, now)):
            for resource, amount in msgspec.json.decode(pods.requests).items():
                found[pods.uid][resource] += amount * int(pods.micros) / SECOND
    return found


def _running_pods(uids: Sequence[str], now: int) -> sa.Select[Any]:
    elapsed = sa.case((PODS.c.started_at < now, now - PODS.c.started_at), else_=0)
    where = (JOBS.c.uid.in_(uids), PODS.c.counted.is_(False), PODS.c.ended_at.is_(None))
    columns = (JOBS.c.uid, PODS.c.requests, sa.func.sum(elapsed).label("micros"))
    return (
        sa.select(*columns)
        .join_from(PODS, JOBS, is_pod_of_job())
        .where(*where)
        .group_by(JOBS.c.uid, PODS.c.requests)
    )


def _commands(db: sa.Connection, job: Any) -> Sequence[CommandRecord]:
    where = (
        COMMANDS.c.namespace == job.namespace,
        COMMANDS.c.job == job.name,
        COMMANDS.c.job_uid == job.uid,
    )
    query = sa.select(COMMANDS).where(*where).order_by(COMMANDS.c.received_at.desc())
    rows = db.execute(query.limit(MAX_COMMANDS)).mappings()
    # Names of columns that SQL reserves are no exact strings, which `msgspec.convert` demands.
    return [CommandRecord(**row) for row in rows]


def _optional(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
