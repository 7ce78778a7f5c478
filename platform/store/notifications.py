"""Notifications that are to be sent, written in the transactions that record what they are about.

So one is neither lost in a crash nor written twice. It is deleted once it is delivered: a crash
between the two sends it again, with the same id.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa

from ..model import times
from ..model.job import FINAL_PHASES, JobPhase
from ..model.job_reasons import Reason
from ..model.notifications import NotifyEvent, Subscription, event_of_phase
from .commands import METADATA
from .database import Database, insert_if_absent
from .records import SECOND, JobRecord, PhaseEntry, from_micros, to_micros
from .upsert import chunks

MAX_AGE = timedelta(hours=24)
"""Age of an event from which on it is not sent any more."""

DELETED = "Deleted"
"""Reason of the end of a job that was deleted before it had finished."""

NOTIFICATIONS = sa.Table(
    "notifications",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("job_uid", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("due_at", sa.BigInteger, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Index("notifications_by_time", "due_at"),
    sa.Index("notifications_by_job", "job_uid"),
)


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One row; times are microseconds since the epoch."""

    id: str
    job_uid: str
    event: str
    job: str
    """``KIND/NAMESPACE/NAME``."""
    url: str
    host: str
    """Host and port of the URL."""
    body: str
    """JSON."""
    created_at: int
    """When it was due first."""
    due_at: int
    attempts: int = 0


class NotificationStore:
    """Reads and deletes notifications; methods raise :class:`~.database.StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(
        self, now: datetime, *, limit: int, except_hosts: Collection[str]
    ) -> Sequence[Notification]:
        """Return notifications that are due, the first due first."""
        query = sa.select(NOTIFICATIONS).where(NOTIFICATIONS.c.due_at <= to_micros(now))
        if except_hosts:
            query = query.where(NOTIFICATIONS.c.host.not_in(list(except_hosts)))
        query = query.order_by(NOTIFICATIONS.c.due_at, NOTIFICATIONS.c.id).limit(limit)
        rows = await self._database.read(lambda db: db.execute(query).mappings().all())
        return [Notification(**row) for row in rows]

    async def count_pending(self, now: datetime) -> int:
        """Return how many notifications of events before *now* are stored, also those that wait
        for their next attempt."""
        query = sa.select(sa.func.count()).select_from(NOTIFICATIONS)
        query = query.where(NOTIFICATIONS.c.created_at <= to_micros(now))
        return await self._database.read(lambda db: db.execute(query).scalar_one())

    async def remove(self, id_: str) -> None:
        """Delete a notification that is delivered or given up."""
        query = sa.delete(NOTIFICATIONS).where(NOTIFICATIONS.c.id == id_)
        await self._database.run(lambda db: db.execute(query) and None)

    async def postpone(self, id_: str, *, attempts: int, due_at: datetime) -> None:
        """Note that *attempts* have failed, and when the next one is due."""
        query = sa.update(NOTIFICATIONS).where(NOTIFICATIONS.c.id == id_)
        query = query.values(attempts=attempts, due_at=to_micros(due_at))
        await self._database.run(lambda db: db.execute(query) and None)


@dataclass(frozen=True, slots=True)
class RecordedPhases:
    """The phases of a job after one of its states was recorded."""

    record: JobRecord
    phases: Mapping[int, PhaseEntry]
    """By number."""
    new: Collection[int]
    """Those that this state has added."""


def write_notifications(
    db: sa.Connection, changes: Sequence[RecordedPhases], *, observed_at: int
) -> None:
    """Write what *changes*, in their order, are to be notified of."""
    warned = _warned_jobs(db, [change.record.uid for change in changes])
    oldest = observed_at - MAX_AGE // timedelta(microseconds=1)
    for change in changes:
        record = change.record
        if record.uid in warned:
            _update_warning(db, record, observed_at)
        if record.notify is None:
            continue
        rows = [
            each for each in _rows(record.notify, change, observed_at) if each.created_at >= oldest
        ]
        if rows:
            db.execute(insert_if_absent(db, NOTIFICATIONS), [msgspec.to_builtins(r) for r in rows])
        if any(row.event == NotifyEvent.TIME_LIMIT for row in rows):
            warned.add(record.uid)


def drop_warnings(db: sa.Connection, job_uids: Sequence[str], *, after: int) -> None:
    """Delete the warnings of jobs that are due *after* a time: they do not run any more."""
    for chunk in chunks(job_uids):
        db.execute(
            sa.delete(NOTIFICATIONS).where(
                NOTIFICATIONS.c.job_uid.in_(chunk),
                NOTIFICATIONS.c.event == NotifyEvent.TIME_LIMIT,
                NOTIFICATIONS.c.attempts == 0,
                NOTIFICATIONS.c.due_at > after,
            )
        )


def _update_warning(db: sa.Connection, record: JobRecord, observed_at: int) -> None:
    """Delete the warning of a job that does not run any more, unless its time limit ends it."""
    if record.phase == JobPhase.RUNNING and not record.deleted:
        return
    if record.phase == JobPhase.TERMINATING and record.reason == Reason.DEADLINE_EXCEEDED:
        db.execute(
            sa.update(NOTIFICATIONS)
            .where(
                NOTIFICATIONS.c.job_uid == record.uid,
                NOTIFICATIONS.c.event == NotifyEvent.TIME_LIMIT,
                NOTIFICATIONS.c.due_at > observed_at,
                NOTIFICATIONS.c.attempts == 0,
            )
            .values(due_at=observed_at)
        )
        return
    drop_warnings(db, [record.uid], after=observed_at)


def _warned_jobs(db: sa.Connection, uids: Sequence[str]) -> set[str]:
    column, event = NOTIFICATIONS.c.job_uid, NOTIFICATIONS.c.event
    return {
        uid
        for chunk in chunks(uids)
        for uid in db.scalars(
            sa.select(column).where(column.in_(chunk), event == NotifyEvent.TIME_LIMIT)
        )
    }


def _rows(wanted: Subscription, change: RecordedPhases, observed_at: int) -> Iterator[Notification]:
    record, phases = change.record, change.phases
    for number in sorted(change.new):
        entry = phases[number]
        event = event_of_phase(entry.phase)
        if event is None:
            continue
        if wanted.wants(event):
            yield _row(wanted, record, event, entry, f"{number}", due_at=entry.entered_at)
        runs = event is NotifyEvent.START and number == max(phases)
        if runs and wanted.warn_after is not None and wanted.wants(NotifyEvent.TIME_LIMIT):
            left = max(0, round(wanted.warn_after * SECOND) - _running_before(phases, number))
            due = entry.entered_at + left
            yield _row(wanted, record, NotifyEvent.TIME_LIMIT, entry, f"{number}-limit", due_at=due)
    if record.deleted and record.phase not in FINAL_PHASES and wanted.wants(NotifyEvent.END):
        entry = PhaseEntry(phase=record.phase, entered_at=observed_at, reason=DELETED)
        yield _row(wanted, record, NotifyEvent.END, entry, "deleted", due_at=observed_at)


def _running_before(phases: Mapping[int, PhaseEntry], number: int) -> int:
    """Return for how many microseconds the job was in phase Running before phase *number*."""
    entries = sorted(
        (entry for other, entry in phases.items() if other <= number),
        key=lambda entry: entry.entered_at,
    )
    return sum(
        after.entered_at - entry.entered_at
        for entry, after in itertools.pairwise(entries)
        if entry.phase == JobPhase.RUNNING
    )


def _row(
    wanted: Subscription,
    record: JobRecord,
    event: NotifyEvent,
    entry: PhaseEntry,
    suffix: str,
    *,
    due_at: int,
) -> Notification:
    id_ = f"{record.uid}-{suffix}"
    return Notification(
        id=id_,
        job_uid=record.uid,
        event=event,
        job=f"{record.kind}/{record.namespace}/{record.name}",
        url=wanted.url,
        host=urlsplit(wanted.url).netloc.lower(),
        body=msgspec.json.encode(_body(record, event, entry, id_)).decode(),
        created_at=due_at,
        due_at=due_at,
    )


def _body(record: JobRecord, event: NotifyEvent, entry: PhaseEntry, id_: str) -> dict[str, Any]:
    about = "is near its time limit" if event is NotifyEvent.TIME_LIMIT else f"is {entry.phase}"
    if entry.reason == DELETED:
        about = f"was deleted as {entry.phase or 'Pending'}"
    because = f": {entry.message}" if entry.message else ""
    return {
        "id": id_,
        "event": str(event),
        "at": times.format(from_micros(entry.entered_at)),
        "text": f"{record.kind}/{record.name} in {record.namespace} {about}{because}",
        "job": {
            "kind": record.kind,
            "namespace": record.namespace,
            "name": record.name,
            "uid": record.uid,
            "queue": record.queue,
            "user": record.user,
            "phase": entry.phase,
            "reason": entry.reason,
            "message": entry.message,
        },
    }
