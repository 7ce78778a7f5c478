"""Write states of jobs: their row, the phases that they entered, and the marks that are due."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from .history_tables import GAPS, JOBS, MARKS, PHASES, UNFINISHED
from .notifications import RecordedPhases, drop_warnings, write_notifications
from .records import SECOND, JobRecord, PhaseEntry, version_number
from .upsert import chunks, upsert

PODS_RESOURCE = "pods"
"""The stream of pods."""

MISSED_PODS = "pods may have started and ended unobserved"
MISSED_CHANGES = "changes of the job may have been missed"
MISSED_DELETION = "the deletion was not observed"
LATE_DELETION = "the deletion was observed late"


def apply_jobs(
    db: sa.Connection,
    records: Sequence[JobRecord],
    *,
    observed_at: int,
    listed: bool = False,
    exact: bool = True,
) -> list[str]:
    """Write *records* in their order; return the uids of jobs that are new.

    Args:
        db: in a transaction.
        records: states of jobs.
        observed_at: when they were received.
        listed: they are of a list after a gap, so that earlier states may be missing.
        exact: they were received without delay.
    """
    latest = {record.uid: record for record in records}
    known = _known_jobs(db, list(latest))
    gaps = _gaps(db, [record for uid, record in latest.items() if uid not in known])
    rows = [
        _row(record, known.get(uid), gaps, observed_at=observed_at, listed=listed)
        for uid, record in latest.items()
    ]
    for row in rows:
        if row["deleted_at"] is not None and not (exact or row["incomplete"]):
            row["incomplete"] = LATE_DELETION
    upsert(db, JOBS, rows)
    write_notifications(db, _add_phases(db, records), observed_at=observed_at)
    _update_marks(db, list(latest.values()))
    return [uid for uid in latest if uid not in known]


def mark_deleted_unobserved(db: sa.Connection, uids: Sequence[str], *, observed_at: int) -> None:
    """Record jobs that a list after a gap does not have; their last state is unknown."""
    for chunk in chunks(uids):
        these = sa.and_(JOBS.c.uid.in_(chunk), JOBS.c.deleted_at.is_(None))
        ended = sa.case((JOBS.c.ended_at == UNFINISHED, observed_at), else_=JOBS.c.ended_at)
        values = {"deleted_at": observed_at, "ended_at": ended, "incomplete": MISSED_DELETION}
        db.execute(sa.update(JOBS).where(these).values(values))
        db.execute(sa.delete(MARKS).where(MARKS.c.job_uid.in_(chunk)))
    drop_warnings(db, uids, after=observed_at)


def mark_incomplete(
    db: sa.Connection, *, started_at: int, started_version: int, ended_at: int
) -> None:
    """Mark the jobs that existed during a gap of the pods.

    A job ended before the gap if the pods' watch had passed the version at which it ended. Times
    alone do not show that: what was delivered last may have happened long before. They do show it
    after a backup was restored, where versions begin again at earlier ones.
    """
    ended_later = sa.or_(JOBS.c.ended_version > started_version, JOBS.c.ended_at > started_at)
    where = sa.and_(ended_later, JOBS.c.created_at + SECOND <= ended_at, JOBS.c.incomplete == "")
    db.execute(sa.update(JOBS).where(where).values(incomplete=MISSED_PODS))


def _known_jobs(db: sa.Connection, uids: Sequence[str]) -> Mapping[str, Any]:
    columns = (JOBS.c.uid, JOBS.c.resource_version, JOBS.c.ended_version, JOBS.c.incomplete)
    return {
        row.uid: row
        for chunk in chunks(uids)
        for row in db.execute(sa.select(*columns).where(JOBS.c.uid.in_(chunk)))
    }


def _gaps(db: sa.Connection, records: Sequence[JobRecord]) -> Sequence[Any]:
    """Return the gaps of the pods since the creation of the first of *records*."""
    if not records:
        return ()
    since = min(record.created_at for record in records)
    where = sa.and_(GAPS.c.resource == PODS_RESOURCE, GAPS.c.ended_at > since)
    return db.execute(sa.select(GAPS).where(where)).all()


def _row(
    record: JobRecord, known: Any, gaps: Sequence[Any], *, observed_at: int, listed: bool
) -> dict[str, Any]:
    deleted_at = observed_at if record.deleted else None
    ended_at = next(
        (each for each in (record.finished_at, deleted_at) if each is not None), UNFINISHED
    )
    ended_version = (
        UNFINISHED if ended_at == UNFINISHED else version_number(record.resource_version)
    )
    if known is not None:
        ended_version = min(ended_version, known.ended_version)
        incomplete = known.incomplete
        if listed and not incomplete and known.resource_version != record.resource_version:
            incomplete = MISSED_CHANGES
    else:
        # Times of jobs and pods are whole seconds: within one, no pod has used anything.
        missed = any(
            (gap.started_version < ended_version or gap.started_at < ended_at)
            and record.created_at + SECOND <= gap.ended_at
            for gap in gaps
        )
        incomplete = MISSED_PODS if missed else ""
        if listed and not missed and len(record.phases) > 1:
            incomplete = MISSED_CHANGES  # the status has only the last time of each phase
    return {
        "uid": record.uid,
        "kind": record.kind,
        "namespace": record.namespace,
        "name": record.name,
        "queue": record.queue,
        "username": record.user,
        "account": record.account,
        "phase": record.phase,
        "reason": record.reason,
        "message": record.message,
        "spec": record.spec,
        "spec_bytes": record.spec_bytes,
        "labels": record.labels,
        "tasks": record.tasks,
        "resource_version": record.resource_version,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "deleted_at": deleted_at,
        "ended_at": ended_at,
        "ended_version": ended_version,
        "incomplete": incomplete,
    }


def _add_phases(db: sa.Connection, records: Sequence[JobRecord]) -> list[RecordedPhases]:
    """Add phases that are not stored; a transition is identified by its phase and time.

    Return the phases of each of *records*.
    """
    found: dict[str, dict[int, PhaseEntry]] = defaultdict(dict)
    uids = {record.uid for record in records}
    for chunk in chunks(uids):
        for row in db.execute(sa.select(PHASES).where(PHASES.c.job_uid.in_(chunk))):
            found[row.job_uid][row.number] = PhaseEntry(
                phase=row.phase, entered_at=row.entered_at, reason=row.reason, message=row.message
            )
    changed: dict[tuple[str, int], dict[str, Any]] = {}
    recorded: list[RecordedPhases] = []
    for record in records:
        phases = found[record.uid]
        numbers = {(each.phase, each.entered_at): number for number, each in phases.items()}
        new = []
        for entry in record.phases:
            number = numbers.setdefault((entry.phase, entry.entered_at), len(numbers))
            known = phases.get(number)
            text = (entry.reason, entry.message)
            if known is not None and text in ((known.reason, known.message), ("", "")):
                continue
            if known is None:
                new.append(number)
            phases[number] = entry
            changed[record.uid, number] = _phase_row(record.uid, number, entry)
        recorded.append(RecordedPhases(record, dict(phases), new))
    upsert(db, PHASES, list(changed.values()))
    return recorded


def _phase_row(uid: str, number: int, entry: PhaseEntry) -> dict[str, Any]:
    return {
        "job_uid": uid,
        "number": number,
        "phase": entry.phase,
        "entered_at": entry.entered_at,
        "reason": entry.reason,
        "message": entry.message,
    }


def _update_marks(db: sa.Connection, records: Sequence[JobRecord]) -> None:
    """Add the marks that are due, and remove those of jobs that need none any more."""
    due = [record for record in records if record.mark and not record.deleted]
    upsert(
        db,
        MARKS,
        [
            {
                "job_uid": record.uid,
                "kind": record.kind,
                "namespace": record.namespace,
                "name": record.name,
                "value": record.mark,
            }
            for record in due
        ],
    )
    done = {record.uid for record in records} - {record.uid for record in due}
    for chunk in chunks(done):
        db.execute(sa.delete(MARKS).where(MARKS.c.job_uid.in_(chunk)))
