"""History of jobs, and usage over time."""

from datetime import datetime
from typing import Annotated, Any, Literal

from .base import Page, Record, Sends, SentTime, html_table
from .commands import Command
from .jobs import JobKindName


class RecordedTask(Record, frozen=True):
    """A task with its pods by phase, as the job's status had them last."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None
    phases: dict[str, int] = {}


class RecordedJob(Record, frozen=True):
    """A job of the history."""

    uid: str
    kind: Annotated[str, Sends(JobKindName)] = ""
    namespace: str = ""
    name: str = ""
    queue: str = ""
    user: str = ""
    """Who created it through the REST API; empty if unknown."""
    phase: str = ""
    """The last phase; empty if only pods of it were observed."""
    reason: str = ""
    message: str = ""
    labels: dict[str, str] = {}
    tasks: list[RecordedTask] = []
    created_at: SentTime = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    """``null`` if it has not finished, or was deleted before."""
    deleted_at: datetime | None = None
    exit_code: int | None = None
    """0 if it is Completed, else the highest of its pods; ``null`` if none of them has one yet."""
    exit_codes: dict[str, int] = {}
    """How many pods have ended with which exit code, 128 + n after signal n."""
    resource_seconds: dict[str, float] = {}
    """Requests of the pods times seconds, by resource: cores of ``cpu``, bytes of ``memory``, units
    of extended resources. Of running pods, until now."""
    complete: bool = False
    """Whether nothing of its life was missed, so far."""
    incomplete_reason: str = ""
    """What was missed; empty if nothing was."""


class RecordedJobPage(Page[RecordedJob], frozen=True):
    """A page of jobs, unfinished ones first, then those that ended last."""


class RecordedPhase(Record, frozen=True):
    """A phase that the job entered."""

    phase: str = ""
    entered_at: SentTime = None
    left_at: datetime | None = None
    reason: str = ""
    message: str = ""


class JobHistory(RecordedJob, frozen=True):
    """All that is recorded of a job."""

    spec: Any = None
    """The spec; ``null`` if it was larger than 64 KiB."""
    spec_bytes: int = 0
    """Size of the spec as JSON."""
    phases: list[RecordedPhase] = []
    commands: list[Command] = []
    """The latest commands, newest first."""


class UsagePoint(Record, frozen=True):
    """Usage in one interval."""

    start: SentTime = None
    resource_seconds: dict[str, float] = {}
    """Requests of the pods times seconds, by resource."""
    complete: bool = False
    """Whether all pods were observed during this time."""


class UsageSeries(Record, frozen=True):
    """Usage of one queue, user, account or namespace."""

    name: str = ""
    points: list[UsagePoint] = []
    """Intervals without usage are omitted."""


class Usage(Record, frozen=True):
    """Usage over time."""

    by: Annotated[str, Sends(Literal["queue", "user", "account", "namespace"])] = ""
    start: SentTime = None
    """Begin of the first interval."""
    end: SentTime = None
    """End of the last interval."""
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
