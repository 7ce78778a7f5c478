"""Columns and fields of jobs, pods, queues and records of the history."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ...model.names import ACCOUNT
from .output import Column, Table, cell_text, duration_text, emit, show_fields

if TYPE_CHECKING:
    from ...wire.jobs import Explanation, JobSummary, PlannedStart, PodSummary, Why
    from ...wire.queues import BudgetAmounts, PodGroup, Queue, QueueUsage, ResourceUsage
    from ...wire.waits import Competition

UID_LENGTH = 36


def job_columns(
    waits: "Mapping[str, Explanation]", *, all_namespaces: bool
) -> "list[Column[JobSummary]]":
    """Return the columns of jobs; *waits* are the explanations of those that wait, by uid."""
    return [
        *([Column["JobSummary"]("NAMESPACE", lambda job: job.namespace)] if all_namespaces else []),
        Column("NAME", lambda job: job.name),
        Column("KIND", lambda job: job.kind, spare=True),
        Column("QUEUE", lambda job: job.queue, spare=True),
        Column("PHASE", lambda job: job.phase),
        Column("RUNNING", lambda job: f"{job.running}/{job.replicas}"),
        Column("AGE", lambda job: job.created_at),
        Column("USER", lambda job: job.user, spare=True),
        Column("ACCOUNT", lambda job: job.labels.get(ACCOUNT), wide=True),
        Column("POSITION", lambda job: _position(waits.get(job.uid)), wide=True),
        Column("START", lambda job: _start(waits.get(job.uid)), wide=True),
        Column("RETRIES", lambda job: job.retry_count, wide=True),
        Column("STARTED", lambda job: job.started_at, wide=True),
        Column("FINISHED", lambda job: job.finished_at, wide=True),
        Column("LABELS", lambda job: job.labels, wide=True),
    ]


def explanations(podgroups: "Iterable[PodGroup]") -> "dict[str, Explanation]":
    """Return the explanations of the jobs that wait, by uid, as the scheduler wrote them last.

    The name of a PodGroup ends with the uid of its job.
    """
    return {
        each.name[-UID_LENGTH:]: each.explanation
        for each in podgroups
        if each.explanation is not None
    }


def _position(wait: "Explanation | None") -> str | None:
    if wait is None or wait.queue.position is None:
        return None
    return f"{wait.queue.position}/{wait.queue.waiting}"


def _start(wait: "Explanation | None") -> str | None:
    start = None if wait is None else wait.start
    return iso(start.expected or start.earliest) if start is not None and start.is_known else None


POD_COLUMNS: "list[Column[PodSummary]]" = [
    Column("POD", lambda pod: pod.name),
    Column("TASK", lambda pod: pod.task, spare=True),
    Column("PHASE", lambda pod: pod.phase),
    Column("EXIT", lambda pod: pod.exit_code),
    Column("RESTARTS", lambda pod: pod.restarts, spare=True),
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
    """Print why a job waits or has failed: the dominant reason and the next step, then the numbers
    of the scheduler's last attempt, or the end of a log."""
    cause = why.cause or why.summary or why.reason
    detail = why.summary if why.summary != cause else ""
    emit([f"{name}: {cell_text(cause)}"])
    fields: list[tuple[str, object]] = [("Next", why.next_step), ("Detail", detail)]
    if why.explanation is not None:
        fields += explanation_fields(why.explanation, why.competition)
    show_fields(fields)
    if why.last_lines:
        shown = (cell_text(line) for line in why.last_lines)
        emit(["", f"Last lines of {why.failed_pod}:", *(f"  {line}" for line in shown)])


def explanation_fields(
    found: "Explanation", competition: "Competition | None" = None
) -> list[tuple[str, object]]:
    """Return the numbers of an attempt of the scheduler; the position is that of *competition*,
    which is newer."""
    rank, name = competition or found.queue, found.queue.name
    text = f"{name}, position {rank.position} of {rank.waiting}" if rank.position else name
    fields: list[tuple[str, object]] = [("Queue", text)]
    if found.start is not None:
        fields.append(("Start", start_text(found.start)))
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
    return fields


def start_text(start: "PlannedStart") -> str:
    """Return when a job is expected to start, and from what that is known."""
    if not start.is_known:
        return "not known: it waits for jobs whose end is not known"
    until = f", at the latest {iso(start.latest)}" if start.latest is not None else ""
    expected = f", probably {iso(start.expected)}" if start.expected is not None else ""
    return f"expected {iso(start.earliest)}{expected}{until} (by {start.basis})"


QUEUE_COLUMNS: "list[Column[Queue]]" = [
    Column("NAME", lambda queue: queue.name),
    Column("STATE", lambda queue: queue.state),
    Column("PARENT", lambda queue: queue.parent),
    Column("WEIGHT", lambda queue: queue.weight, spare=True),
    Column("ALLOCATED", lambda queue: queue.allocated),
    Column("LIMIT", lambda queue: queue.capability),
    Column("AGE", lambda queue: queue.created_at, spare=True),
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
    if usage.past is not None and usage.past.resource_hours:
        half_life = duration_text(timedelta(seconds=usage.past.half_life_seconds))
        used = [
            f"{hours_text(name, hours)} {name}" for name, hours in usage.past.resource_hours.items()
        ]
        emit(
            ["", f"Past usage in hours, of which half counts after {half_life}: {', '.join(used)}"]
        )
    if usage.budget is not None:
        budget = usage.budget
        emit(["", f"Budget ({budget.policy}) until {iso(budget.ends_at)}, in hours:"])
        emit(Table(_BUDGET_COLUMNS).lines(list(budget.resource_hours.items())))


def hours_text(resource: str, hours: float) -> str:
    """Return an amount of a resource times hours; that of memory is in GiB."""
    return f"{hours / 2**30:.6g}Gi" if resource == "memory" else f"{hours:.6g}"


_BUDGET_COLUMNS: "list[Column[tuple[str, BudgetAmounts]]]" = [
    Column("RESOURCE", lambda row: row[0]),
    Column("USED", lambda row: hours_text(row[0], row[1].used)),
    Column("LIMIT", lambda row: hours_text(row[0], row[1].limit)),
]


_RESOURCE_COLUMNS: "list[Column[tuple[str, ResourceUsage]]]" = [
    Column("RESOURCE", lambda row: row[0]),
    Column("ALLOCATED", lambda row: row[1].allocated),
    Column("DESERVED", lambda row: row[1].deserved),
    Column("LIMIT", lambda row: row[1].capability),
    Column("GUARANTEE", lambda row: row[1].guarantee),
]
