"""Columns and fields of jobs, pods, queues and records of the history."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from .output import Column, Table, emit, show_fields

if TYPE_CHECKING:
    from ...wire.history import RecordedJob
    from ...wire.jobs import JobSummary, PodSummary, Why
    from ...wire.queues import PodGroup, Queue, QueueUsage, ResourceUsage

UID_LENGTH = 36


def job_columns(
    positions: Mapping[str, str], *, all_namespaces: bool
) -> "list[Column[JobSummary]]":
    """Return the columns of jobs; *positions* are their positions in their queues, by uid."""
    return [
        *([Column["JobSummary"]("NAMESPACE", lambda job: job.namespace)] if all_namespaces else []),
        Column("NAME", lambda job: job.name),
        Column("KIND", lambda job: job.kind),
        Column("QUEUE", lambda job: job.queue),
        Column("PHASE", lambda job: job.phase),
        Column("RUNNING", lambda job: f"{job.running}/{job.replicas}"),
        Column("AGE", lambda job: job.created_at),
        Column("USER", lambda job: job.user),
        Column("POSITION", lambda job: positions.get(job.uid), wide=True),
        Column("RETRIES", lambda job: job.retry_count, wide=True),
        Column("STARTED", lambda job: job.started_at, wide=True),
        Column("FINISHED", lambda job: job.finished_at, wide=True),
        Column("LABELS", lambda job: job.labels, wide=True),
    ]


def queue_positions(podgroups: "Iterable[PodGroup]") -> dict[str, str]:
    """Return the positions of the jobs that wait, by uid, as the scheduler reported them last.

    The name of a PodGroup ends with the uid of its job.
    """
    found = {}
    for each in podgroups:
        rank = each.explanation.queue if each.explanation is not None else None
        if rank is not None and rank.position is not None:
            found[each.name[-UID_LENGTH:]] = f"{rank.position}/{rank.waiting}"
    return found


POD_COLUMNS: "list[Column[PodSummary]]" = [
    Column("POD", lambda pod: pod.name),
    Column("TASK", lambda pod: pod.task),
    Column("PHASE", lambda pod: pod.phase),
    Column("EXIT", lambda pod: pod.exit_code),
    Column("RESTARTS", lambda pod: pod.restarts),
    Column("NODE", lambda pod: pod.node),
    Column("REASON", lambda pod: pod.reason, wide=True),
    Column("MESSAGE", lambda pod: pod.message, wide=True),
]


def show_job(job: "JobSummary", pods: "Iterable[PodSummary]", *, wide: bool) -> None:
    """Print a job with its pods."""
    show_fields(
        [
            ("Name", job.name),
            ("Namespace", job.namespace),
            ("Kind", job.kind),
            ("Queue", job.queue),
            ("Phase", job.phase),
            ("Reason", job.reason),
            ("Message", job.message),
            ("User", job.user),
            (
                "Pods",
                f"{job.running} of {job.replicas} running, {job.succeeded} succeeded,"
                f" {job.failed} failed",
            ),
            ("Retries", job.retry_count),
            ("Created", iso(job.created_at)),
            ("Started", iso(job.started_at)),
            ("Finished", iso(job.finished_at)),
            ("Labels", job.labels),
        ]
    )
    rows = list(pods)
    if rows:
        emit(["", *Table(POD_COLUMNS, wide=wide).lines(rows)])


def iso(time: datetime | None) -> str:
    """Return a time in the zone of the machine."""
    return "" if time is None else time.astimezone().isoformat(sep=" ", timespec="seconds")


def show_why(name: str, why: "Why") -> None:
    """Print why a job waits: the reason, then the numbers of the scheduler's last attempt."""
    show_fields([(name, why.summary or why.reason)])
    found = why.explanation
    if found is None:
        return
    rank = found.queue
    text = f"{rank.name}, position {rank.position} of {rank.waiting}" if rank.position else ""
    fields: list[tuple[str, object]] = [("Queue", text or rank.name)]
    fields.append(("Pods", f"{found.pods.needed} needed, {found.pods.fitting} fit"))
    for resource, limit in found.limits.items():
        fields.append((resource, f"{limit.requested} asked, {limit.used} of {limit.limit} used"))
    if found.nodes is not None:
        excluded = ", ".join(f"{count} {reason}" for reason, count in found.nodes.excluded.items())
        fields.append(("Nodes", f"{found.nodes.total}: {excluded}"))
        nearest = found.nodes.nearest
        if nearest is not None:
            lacks = [
                f"{resource}: {lack.requested} asked, {lack.free} free"
                for resource, lack in nearest.lacks.items()
            ]
            fields.append(("Nearest", f"{nearest.name}: {'; '.join(lacks) or nearest.reason}"))
    show_fields(fields)


QUEUE_COLUMNS: "list[Column[Queue]]" = [
    Column("NAME", lambda queue: queue.name),
    Column("STATE", lambda queue: queue.state),
    Column("PARENT", lambda queue: queue.parent),
    Column("WEIGHT", lambda queue: queue.weight),
    Column("ALLOCATED", lambda queue: queue.allocated),
    Column("LIMIT", lambda queue: queue.capability),
    Column("AGE", lambda queue: queue.created_at),
    Column("GUARANTEE", lambda queue: queue.guarantee, wide=True),
    Column("DESERVED", lambda queue: queue.deserved, wide=True),
    Column("PODGROUPS", lambda queue: queue.podgroups, wide=True),
]


def show_queue(queue: "Queue", usage: "QueueUsage") -> None:
    """Print a queue with its resources."""
    show_fields(
        [
            ("Name", queue.name),
            ("State", queue.state),
            ("Parent", queue.parent),
            ("Children", ", ".join(usage.children)),
            ("Weight", queue.weight),
            ("Priority", queue.priority),
            ("Jobs", usage.jobs),
        ]
    )
    if usage.resources:
        rows = list(usage.resources.items())
        emit(["", *Table(_RESOURCE_COLUMNS).lines(rows)])


_RESOURCE_COLUMNS: "list[Column[tuple[str, ResourceUsage]]]" = [
    Column("RESOURCE", lambda row: row[0]),
    Column("ALLOCATED", lambda row: row[1].allocated),
    Column("DESERVED", lambda row: row[1].deserved),
    Column("LIMIT", lambda row: row[1].capability),
    Column("GUARANTEE", lambda row: row[1].guarantee),
]


def record_columns(*, all_namespaces: bool) -> "list[Column[RecordedJob]]":
    """Return the columns of the history."""
    return [
        *(
            [Column["RecordedJob"]("NAMESPACE", lambda job: job.namespace)]
            if all_namespaces
            else []
        ),
        Column("NAME", lambda job: job.name),
        Column("KIND", lambda job: job.kind),
        Column("QUEUE", lambda job: job.queue),
        Column("USER", lambda job: job.user),
        Column("PHASE", lambda job: job.phase),
        Column("AGE", lambda job: job.created_at),
        Column("RUN", _run_time),
        Column("STARTED", lambda job: job.started_at, wide=True),
        Column("FINISHED", lambda job: job.finished_at, wide=True),
        Column("DELETED", lambda job: job.deleted_at, wide=True),
        Column("REASON", lambda job: job.reason, wide=True),
        Column("UID", lambda job: job.uid, wide=True),
    ]


def _run_time(job: "RecordedJob") -> timedelta | None:
    """Return how long a job has run: until it ended or was deleted, else until now."""
    if job.started_at is None:
        return None
    return (job.finished_at or job.deleted_at or datetime.now(UTC)) - job.started_at
