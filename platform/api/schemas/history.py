"""Convert jobs that the history does not have yet, and what it has of a job."""

import msgspec
from msgspec.structs import asdict, replace

from ...store.history import JobDetails
from ...wire.history import JobHistory, RecordedJob
from ...wire.jobs import JobSummary
from ..jobs.summaries import is_final
from .commands import command_of

NOT_RECORDED = "the job is not recorded yet"


def unrecorded_job(job: JobSummary) -> RecordedJob:
    """Convert the state of a job that exists, and that the store does not have yet."""
    found = msgspec.convert(job, RecordedJob, from_attributes=True)
    ended = found.finished_at if is_final(job.phase) else None
    return replace(found, finished_at=ended, incomplete_reason=NOT_RECORDED)


def history_of(details: JobDetails) -> JobHistory:
    """Convert all that the store has of a job."""
    return JobHistory(
        **asdict(details.job),
        spec=details.spec,
        spec_bytes=details.spec_bytes,
        phases=details.phases,
        commands=[command_of(each) for each in details.commands],
    )
