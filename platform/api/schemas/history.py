"""Convert what the store has of jobs and usage."""

from datetime import UTC, datetime

import msgspec

from ...store import history, usage
from ...wire.history import JobHistory, RecordedJob, RecordedPhase, UsagePoint, UsageSeries
from ...wire.jobs import JobSummary
from ..job_summaries import is_final
from .commands import command_of

NOT_RECORDED = "the job is not recorded yet"


def recorded_job(job: history.RecordedJob) -> RecordedJob:
    """Convert a row of the store."""
    return msgspec.convert(job, RecordedJob, from_attributes=True)


def unrecorded_job(job: JobSummary) -> RecordedJob:
    """Convert the state of a job that exists, and that the store does not have yet."""
    found = msgspec.convert(job, RecordedJob, from_attributes=True)
    return msgspec.structs.replace(
        found,
        finished_at=found.finished_at if is_final(job.phase) else None,
        incomplete_reason=NOT_RECORDED,
    )


def history_of(details: history.JobDetails) -> JobHistory:
    """Convert all that the store has of a job."""
    return JobHistory(
        **msgspec.structs.asdict(recorded_job(details.job)),
        spec=details.spec,
        spec_bytes=details.spec_bytes,
        phases=[
            msgspec.convert(each, RecordedPhase, from_attributes=True) for each in details.phases
        ],
        resource_seconds=dict(details.resource_seconds),
        commands=[command_of(each) for each in details.commands],
    )


def series_of(found: usage.UsageSeries) -> UsageSeries:
    """Convert a series of the usage."""
    points = [
        UsagePoint(
            start=datetime.fromtimestamp(each.start, UTC),
            resource_seconds=each.resource_seconds,
            complete=each.complete,
        )
        for each in found.points
    ]
    return UsageSeries(name=found.name, points=points)
