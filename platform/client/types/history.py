"""History of jobs, and usage over time."""

from datetime import datetime
from typing import Any

from .base import Page, Record, html_table
from .commands import Command


class RecordedTask(Record, frozen=True):
    """A task with its pods by phase, as the job's status had them last."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None
    phases: dict[str, int] = {}


class RecordedJob(Record, frozen=True):
    """A job of the history."""

    uid: str
    kind: str = ""
    namespace: str = ""
    name: str = ""
    queue: str = ""
    user: str = ""
    phase: str = ""
    """The last phase; empty if only its pods were observed."""
    reason: str = ""
    message: str = ""
    labels: dict[str, str] = {}
    tasks: list[RecordedTask] = []
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    """``None`` if it has not finished, or was deleted before."""
    deleted_at: datetime | None = None
    complete: bool = False
    """Whether nothing of it was missed, so far."""
    incomplete_reason: str = ""


class RecordedJobPage(Page[RecordedJob], frozen=True):
    """One page of the history, unfinished jobs first, then those that ended last."""

    items: list[RecordedJob] = []


class RecordedPhase(Record, frozen=True):
    """A phase that a job entered."""

    phase: str = ""
    entered_at: datetime | None = None
    left_at: datetime | None = None
    reason: str = ""
    message: str = ""


class JobHistory(RecordedJob, frozen=True):
    """All that is recorded of a job."""

    spec: Any = None
    """``None`` if it was too large to be stored."""
    spec_bytes: int = 0
    phases: list[RecordedPhase] = []
    resource_seconds: dict[str, float] = {}
    """Requests of the pods times seconds, by resource; of running pods until now."""
    commands: list[Command] = []
    """The latest commands, newest first."""


class UsagePoint(Record, frozen=True):
    """Usage in one interval."""

    start: datetime | None = None
    resource_seconds: dict[str, float] = {}
    complete: bool = False
    """Whether all pods were observed during this time."""


class UsageSeries(Record, frozen=True):
    """Usage of one queue, user or namespace; intervals without usage are omitted."""

    name: str = ""
    points: list[UsagePoint] = []


class Usage(Record, frozen=True):
    """Usage over time."""

    by: str = ""
    start: datetime | None = None
    end: datetime | None = None
    step_seconds: int = 0
    series: list[UsageSeries] = []

    def totals(self) -> dict[str, dict[str, float]]:
        """Return the resource-seconds of the whole time, by name of the series."""
        found: dict[str, dict[str, float]] = {}
        for series in self.series:
            total = found.setdefault(series.name, {})
            for point in series.points:
                for resource, amount in point.resource_seconds.items():
                    total[resource] = total.get(resource, 0.0) + amount
        return found

    def _repr_html_(self) -> str:
        totals = self.totals()
        resources = sorted({resource for total in totals.values() for resource in total})
        rows = (
            (name, *(total.get(each, 0.0) for each in resources)) for name, total in totals.items()
        )
        return html_table((self.by, *(f"{each} seconds" for each in resources)), rows)
