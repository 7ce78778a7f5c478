"""The columns of ``history``, and those that its option ``--format`` chooses, as that of sacct."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ...model.names import ACCOUNT, JOB_ID, SUBMITTED_NAME
from .output import Column

if TYPE_CHECKING:
    from ...wire.history import RecordedJob

MAX_WIDTH = 1000
_GIB = 2**30
_FIELD = re.compile(r"(?P<name>[A-Za-z]+)(?:%(?P<width>-?[0-9]{1,4}))?")


def record_columns(*, all_namespaces: bool) -> "list[Column[RecordedJob]]":
    """Return the columns without ``--format``."""
    return [
        *(
            [Column["RecordedJob"]("NAMESPACE", lambda job: job.namespace)]
            if all_namespaces
            else []
        ),
        Column("NAME", lambda job: job.name),
        Column("KIND", lambda job: job.kind, spare=True),
        Column("QUEUE", lambda job: job.queue, spare=True),
        Column("USER", lambda job: job.user, spare=True),
        Column("PHASE", lambda job: job.phase),
        Column("EXIT", lambda job: job.exit_code),
        Column("AGE", lambda job: job.created_at),
        Column("RUN", _run_time),
        Column("ACCOUNT", lambda job: job.labels.get(ACCOUNT), wide=True),
        Column("EXITS", lambda job: job.exit_codes, wide=True),
        Column("CPU SECONDS", _cpu_seconds, wide=True),
        Column("MEMORY GIB SECONDS", _memory_seconds, wide=True),
        Column("STARTED", lambda job: job.started_at, wide=True),
        Column("FINISHED", lambda job: job.finished_at, wide=True),
        Column("DELETED", lambda job: job.deleted_at, wide=True),
        Column("REASON", lambda job: job.reason, wide=True),
        Column("UID", lambda job: job.uid, wide=True),
    ]


def chosen_columns(text: str) -> "list[Column[RecordedJob]]":
    """Return the columns of a list such as ``JobID,JobName%20,State,ExitCode``.

    Raises:
        ValueError: *text* names an unknown field, or none.
    """
    return [_chosen(each.strip()) for each in text.split(",")]


def _chosen(text: str) -> "Column[RecordedJob]":
    found = _FIELD.fullmatch(text)
    name = found["name"].lower() if found is not None else ""
    name = _ALIASES.get(name, name)
    if found is None or name not in _FIELDS:
        raise ValueError(
            f"--format: {text!r} is no field, or NAME%WIDTH: choose of {', '.join(_names())}"
        )
    width = int(found["width"] or 0)
    if found["width"] and not 1 <= abs(width) <= MAX_WIDTH:
        raise ValueError(f"--format: {text!r}: the width is 1 to {MAX_WIDTH}")
    return Column(found["name"].upper(), _FIELDS[name], width=width)


def _names() -> list[str]:
    return sorted((*_FIELDS, *_ALIASES))


def _run_time(job: "RecordedJob") -> timedelta | None:
    """Return how long a job has run: until it ended or was deleted, else until now."""
    if job.started_at is None:
        return None
    return (job.finished_at or job.deleted_at or datetime.now(UTC)) - job.started_at


def _cpu_seconds(job: "RecordedJob") -> float:
    return round(job.resource_seconds.get("cpu", 0.0), 1)


def _memory_seconds(job: "RecordedJob") -> float:
    return round(job.resource_seconds.get("memory", 0.0) / _GIB, 1)


def _elapsed(job: "RecordedJob") -> str | None:
    """Return the run time as sacct does: ``1-02:03:04``, without days ``02:03:04``."""
    time = _run_time(job)
    if time is None:
        return None
    seconds = max(int(time.total_seconds()), 0)
    days, hours = divmod(seconds // 3600, 24)
    clock = f"{hours:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days}-{clock}" if days else clock


def _elapsed_seconds(job: "RecordedJob") -> int | None:
    time = _run_time(job)
    return None if time is None else max(int(time.total_seconds()), 0)


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone().isoformat(timespec="seconds")


_FIELDS: "Mapping[str, Callable[[RecordedJob], object]]" = {
    "jobid": lambda job: job.labels.get(JOB_ID),
    "jobname": lambda job: job.labels.get(SUBMITTED_NAME, job.name),
    "name": lambda job: job.name,
    "kind": lambda job: job.kind,
    "namespace": lambda job: job.namespace,
    "uid": lambda job: job.uid,
    "user": lambda job: job.user,
    "account": lambda job: job.labels.get(ACCOUNT),
    "queue": lambda job: job.queue,
    "phase": lambda job: job.phase,
    "reason": lambda job: job.reason,
    "message": lambda job: job.message,
    "labels": lambda job: job.labels,
    "pods": lambda job: sum(task.replicas for task in job.tasks),
    "exitcode": lambda job: job.exit_code,
    "exitcodes": lambda job: job.exit_codes,
    "created": lambda job: _time(job.created_at),
    "started": lambda job: _time(job.started_at),
    "finished": lambda job: _time(job.finished_at),
    "deleted": lambda job: _time(job.deleted_at),
    "elapsed": _elapsed,
    "elapsedraw": _elapsed_seconds,
    "cpuseconds": _cpu_seconds,
    "memorygibseconds": _memory_seconds,
    "resourceseconds": lambda job: job.resource_seconds,
}
_ALIASES = {
    "partition": "queue",
    "state": "phase",
    "submit": "created",
    "start": "started",
    "end": "finished",
    "cputimeraw": "cpuseconds",
}
"""Names of sacct."""
