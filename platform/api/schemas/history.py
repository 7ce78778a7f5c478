"""Bodies of the routes of the history and of the usage."""

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from ...model import times
from ...store.history import JobDetails, RecordedJob
from ...store.usage import UsageSeries
from ..jobs.summaries import JobKindName, JobSummary, is_final
from .commands import CommandOut

NOT_RECORDED = "the job is not recorded yet"


class RecordedTaskOut(BaseModel):
    """A task with its pods by phase, as the job's status had them last."""

    name: str
    replicas: int
    min_available: int | None
    phases: dict[str, int]


class HistoryJobOut(BaseModel):
    """A job of the history."""

    uid: str
    kind: JobKindName
    namespace: str
    name: str
    queue: str
    user: str = Field(description="Who created it through this API; empty if unknown.")
    phase: str = Field(description="The last phase; empty if only pods of it were observed.")
    reason: str
    message: str
    labels: dict[str, str]
    tasks: list[RecordedTaskOut]
    created_at: str
    started_at: str | None
    finished_at: str | None = Field(
        description="`null` if it has not finished, or was deleted before."
    )
    deleted_at: str | None
    complete: bool = Field(description="Whether nothing of its life was missed, so far.")
    incomplete_reason: str = Field(description="What was missed; empty if nothing was.")

    @classmethod
    def of(cls, job: RecordedJob) -> "HistoryJobOut":
        """Convert a row of the store."""
        return cls.model_validate(job, from_attributes=True)

    @classmethod
    def of_unrecorded(cls, job: JobSummary) -> "HistoryJobOut":
        """Convert the state of a job that exists, and that the store does not have yet."""
        found = {name: getattr(job, name) for name in cls.model_fields if hasattr(job, name)}
        if not is_final(job.phase):
            found["finished_at"] = None
        return cls.model_validate(
            {**found, "deleted_at": None, "complete": False, "incomplete_reason": NOT_RECORDED},
            from_attributes=True,
        )


class HistoryJobList(BaseModel):
    """A page of jobs, unfinished ones first, then those that ended last."""

    items: list[HistoryJobOut]
    next_cursor: str | None = Field(
        description="`cursor` of the next page; `null` on the last one."
    )


class HistoryPhaseOut(BaseModel):
    """A phase that the job entered."""

    phase: str
    entered_at: str
    left_at: str | None
    reason: str
    message: str


class HistoryJobDetails(HistoryJobOut):
    """All that is recorded of a job."""

    spec: Any = Field(description="The spec; `null` if it was larger than 64 KiB.")
    spec_bytes: int = Field(description="Size of the spec as JSON.")
    phases: list[HistoryPhaseOut]
    resource_seconds: dict[str, float] = Field(
        description="Requests of the pods times seconds, by resource: cores of `cpu`, bytes of "
        "`memory`, units of extended resources. Of running pods, until now."
    )
    commands: list[CommandOut] = Field(description="The latest commands, newest first.")

    @classmethod
    def of_details(cls, details: JobDetails) -> "HistoryJobDetails":
        """Convert what the store has of a job."""
        job = HistoryJobOut.of(details.job)
        return cls(
            **job.model_dump(),
            spec=details.spec,
            spec_bytes=details.spec_bytes,
            phases=[
                HistoryPhaseOut.model_validate(each, from_attributes=True)
                for each in details.phases
            ],
            resource_seconds=dict(details.resource_seconds),
            commands=[CommandOut.of(each) for each in details.commands],
        )


class UsagePointOut(BaseModel):
    """Usage in one interval."""

    start: str
    resource_seconds: dict[str, float] = Field(
        description="Requests of the pods times seconds, by resource."
    )
    complete: bool = Field(description="Whether all pods were observed during this time.")


class UsageSeriesOut(BaseModel):
    """Usage of one queue, user or namespace."""

    name: str
    points: list[UsagePointOut] = Field(description="Intervals without usage are omitted.")


class UsageOut(BaseModel):
    """Usage over time."""

    by: Literal["queue", "user", "namespace"]
    start: str = Field(description="Begin of the first interval.")
    end: str = Field(description="End of the last interval.")
    step_seconds: int
    series: list[UsageSeriesOut]


def series_of(found: UsageSeries) -> UsageSeriesOut:
    """Convert a series of the store."""
    points = [
        UsagePointOut(
            start=times.format(datetime.fromtimestamp(each.start, UTC)),
            resource_seconds=each.resource_seconds,
            complete=each.complete,
        )
        for each in found.points
    ]
    return UsageSeriesOut(name=found.name, points=points)
