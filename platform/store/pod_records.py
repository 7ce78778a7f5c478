"""Write states of pods, and count the resource-seconds and the exit code of each pod once, when it
has ended.

A pod uses its requests from its start to its end. Its row exists while the pod does and until it is
counted, so that a pod that is delivered again, by a list for instance, is not counted again.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from .history_tables import JOB_EXITS, JOB_USAGE, JOBS, PODS, UNFINISHED, USAGE
from .job_records import MISSED_PODS
from .records import SECOND, PodRecord
from .upsert import chunks, upsert

HOUR, DAY = 3600, 86400
STEPS = (HOUR, DAY)
"""Widths of the buckets of the usage in seconds."""

UNKNOWN_END = "the end of a pod was not observed"
UNKNOWN_JOB = "only pods of the job were observed"

UsageKey = tuple[int, int, str, str, str, str, str]
"""Step, bucket, queue, user, account, namespace, resource."""


def apply_pods(
    db: sa.Connection, records: Sequence[PodRecord], *, observed_at: int, exact: bool
) -> None:
    """Write *records* in their order, and count the pods that have ended.

    *exact*: they were received without delay.
    """
    uids = {record.uid for record in records}
    rows: dict[str, dict[str, Any]] = {}
    for chunk in chunks(uids):
        found = db.execute(sa.select(PODS).where(PODS.c.uid.in_(chunk))).mappings()
        rows |= {stored["uid"]: dict(stored) for stored in found}
    touched: set[str] = set()
    for record in records:
        row = rows.get(record.uid)
        if row is None:
            if record.started_at is None:
                continue  # it has used nothing
            row = rows[record.uid] = _new_row(record, record.started_at)
            touched.add(record.uid)
        if _update(row, record, observed_at, exact=exact):
            touched.add(record.uid)
    upsert(db, PODS, [rows[uid] for uid in sorted(touched)])
    count_ended(db, [rows[uid] for uid in sorted(touched)])


def end_unobserved(db: sa.Connection, uids: Sequence[str], *, last_seen_at: int) -> None:
    """End pods that a list after a gap does not have: not before they were last observed."""
    ended = sa.case(
        (PODS.c.started_at > last_seen_at, PODS.c.started_at), else_=sa.literal(last_seen_at)
    )
    for chunk in chunks(uids):
        these = PODS.c.uid.in_(chunk)
        running = sa.and_(these, PODS.c.ended_at.is_(None))
        db.execute(sa.update(PODS).where(running).values(ended_at=ended, exact=False))
        db.execute(sa.update(PODS).where(these).values(present=False))
        rows = db.execute(sa.select(PODS).where(these)).mappings().all()
        count_ended(db, [dict(row) for row in rows])


def count_pods_of(db: sa.Connection, job_uids: Sequence[str]) -> None:
    """Count the pods of jobs that have become known after their pods ended."""
    for chunk in chunks(job_uids):
        where = sa.and_(
            PODS.c.job_uid.in_(chunk), PODS.c.counted.is_(False), PODS.c.ended_at.is_not(None)
        )
        rows = db.execute(sa.select(PODS).where(where)).mappings().all()
        count_ended(db, [dict(row) for row in rows])


def add_unknown_jobs(db: sa.Connection, *, before: int, limit: int) -> int:
    """Add rows for jobs of which only pods were observed, and count these; return their number.

    *before*: only if their pods ended before that time, so that a watch of jobs that lags behind
    that of pods is not overtaken.
    """
    known = sa.exists().where(JOBS.c.uid == PODS.c.job_uid)
    where = sa.and_(
        PODS.c.counted.is_(False),
        PODS.c.present.is_(False),
        PODS.c.ended_at < before,
        sa.not_(known),
    )
    rows = db.execute(sa.select(PODS).where(where).limit(limit)).mappings().all()
    jobs = {row["job_uid"]: row for row in rows}
    if jobs:
        db.execute(sa.insert(JOBS), [_unknown_job(uid, row) for uid, row in jobs.items()])
        count_pods_of(db, list(jobs))
    return len(jobs)


def _unknown_job(uid: str, pod: Any) -> dict[str, Any]:
    text = ("phase", "reason", "message", "username", "account", "resource_version")
    return {
        "uid": uid,
        **dict.fromkeys(text, ""),
        "kind": pod["kind"],
        "namespace": pod["namespace"],
        "name": pod["job"],
        "queue": pod["queue"],
        "spec": None,
        "spec_bytes": 0,
        "labels": "{}",
        "tasks": "[]",
        "created_at": pod["started_at"],
        "started_at": pod["started_at"],
        "deleted_at": pod["ended_at"],
        "ended_at": pod["ended_at"],
        "ended_version": 0,
        "incomplete": UNKNOWN_JOB,
    }


def _new_row(record: PodRecord, started_at: int) -> dict[str, Any]:
    return {
        "uid": record.uid,
        "job_uid": record.job_uid,
        "kind": record.kind,
        "namespace": record.namespace,
        "job": record.job,
        "queue": record.queue,
        "requests": record.requests,
        "started_at": started_at,
        "ended_at": None,
        "exit_code": None,
        "exact": True,
        "counted": False,
        "present": True,
    }


def _update(row: dict[str, Any], record: PodRecord, observed_at: int, *, exact: bool) -> bool:
    """Apply a state to a row; return whether it has changed."""
    changed = False
    if row["ended_at"] is None and (record.finished or record.deleted):
        ended_at = record.ended_at
        if ended_at is None or not record.finished:
            # Deleted while it ran, or finished without a container.
            ended_at = min(observed_at, record.latest_end or UNFINISHED)
            row["exact"] = exact
        row["ended_at"] = max(ended_at, row["started_at"])
        row["exit_code"] = record.exit_code
        changed = True
    if record.deleted and row["present"]:
        row["present"] = False
        changed = True
    return changed


def count_ended(db: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Add the resource-seconds and exit codes of the pods in *rows* that have ended and are not
    counted.

    A pod whose job is not known yet is counted later. One with the uid of a job of another
    namespace or name counts as nothing: it is not that job's.
    """
    ended = [row for row in rows if row["ended_at"] is not None and not row["counted"]]
    jobs = _jobs_of(db, {row["job_uid"] for row in ended})
    known = [row for row in ended if row["job_uid"] in jobs]
    counted = [row for row in known if _is_of(row, jobs[row["job_uid"]])]
    usage: dict[UsageKey, float] = defaultdict(float)
    inexact: dict[UsageKey, int] = defaultdict(int)
    by_job: dict[tuple[str, str], float] = defaultdict(float)
    for row in counted:
        job = jobs[row["job_uid"]]
        interval = (row["started_at"], row["ended_at"])
        for resource, amount in msgspec.json.decode(row["requests"]).items():
            by_job[row["job_uid"], resource] += amount * (interval[1] - interval[0]) / SECOND
            for step, bucket, seconds in _buckets(*interval):
                key = (
                    step, bucket, job.queue, job.username, job.account, job.namespace, resource,
                )  # fmt: skip
                usage[key] += amount * seconds
                inexact[key] += not row["exact"]
    _add_usage(db, usage, inexact, by_job)
    _add_exits(db, counted)
    uncertain = {row["job_uid"] for row in counted if not row["exact"]}
    _mark_counted(db, known, [row["uid"] for row in rows if not row["present"]], uncertain)


def _is_of(pod: Mapping[str, Any], job: Any) -> bool:
    """Return whether a pod belongs to the job with its uid, as `is_pod_of_job` decides."""
    return (pod["namespace"], pod["job"]) == (job.namespace, job.name)


def _jobs_of(db: sa.Connection, uids: set[str]) -> dict[str, Any]:
    names = ("uid", "queue", "username", "account", "namespace", "name")
    columns = [JOBS.c[each] for each in names]
    return {
        row.uid: row
        for chunk in chunks(uids)
        for row in db.execute(sa.select(*columns).where(JOBS.c.uid.in_(chunk)))
    }


def _buckets(started_at: int, ended_at: int) -> Iterator[tuple[int, int, float]]:
    """Yield step, bucket and seconds of the buckets that an interval covers."""
    for step in STEPS:
        width = step * SECOND
        bucket = started_at // width
        while bucket * width < ended_at:
            begin, end = max(started_at, bucket * width), min(ended_at, (bucket + 1) * width)
            yield step, bucket * step, (end - begin) / SECOND
            bucket += 1


def _add_usage(
    db: sa.Connection,
    usage: dict[UsageKey, float],
    inexact: dict[UsageKey, int],
    by_job: dict[tuple[str, str], float],
) -> None:
    names = ("step", "bucket", "queue", "username", "account", "namespace", "resource")
    buckets = [
        {**dict(zip(names, key, strict=True)), "amount": amount, "inexact": inexact[key]}
        for key, amount in sorted(usage.items())
    ]
    for chunk in chunks(buckets):
        upsert(db, USAGE, chunk, add=("amount", "inexact"))
    jobs = [
        {"job_uid": uid, "resource": resource, "amount": amount}
        for (uid, resource), amount in sorted(by_job.items())
    ]
    upsert(db, JOB_USAGE, jobs, add=("amount",))


def _add_exits(db: sa.Connection, pods: Sequence[Mapping[str, Any]]) -> None:
    counts = Counter(
        (pod["job_uid"], pod["exit_code"]) for pod in pods if pod["exit_code"] is not None
    )
    rows = [
        {"job_uid": uid, "exit_code": code, "pods": number}
        for (uid, code), number in sorted(counts.items())
    ]
    upsert(db, JOB_EXITS, rows, add=("pods",))


def _mark_counted(
    db: sa.Connection,
    rows: Sequence[dict[str, Any]],
    absent: Sequence[str],
    uncertain: Collection[str],
) -> None:
    for chunk in chunks(row["uid"] for row in rows):
        db.execute(sa.update(PODS).where(PODS.c.uid.in_(chunk)).values(counted=True))
    for chunk in chunks(absent):
        db.execute(sa.delete(PODS).where(PODS.c.uid.in_(chunk), PODS.c.counted.is_(True)))
    for chunk in chunks(uncertain):
        where = sa.and_(JOBS.c.uid.in_(chunk), JOBS.c.incomplete.in_(("", MISSED_PODS)))
        db.execute(sa.update(JOBS).where(where).values(incomplete=UNKNOWN_END))
