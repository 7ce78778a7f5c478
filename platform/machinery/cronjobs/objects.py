"""Fields of CronJobs and Jobs that the controller reads, and the names of its Jobs."""

from datetime import datetime
from enum import Enum

import msgspec

from ...model import times
from ...model.base import ApiStruct
from ...model.meta import ObjectMeta, ObjectReference


class JobTemplateMeta(ApiStruct, frozen=True):
    """Metadata that the Jobs get; the API ignores the rest."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class JobTemplate(ApiStruct, frozen=True):
    """Template of the Jobs."""

    metadata: JobTemplateMeta | None = None
    spec: msgspec.Raw = msgspec.Raw(b"{}")


class CronJobSpec(ApiStruct, frozen=True):
    """Desired state of a CronJob."""

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = "Allow"
    suspend: bool | None = None
    job_template: JobTemplate = JobTemplate()
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(ApiStruct, frozen=True):
    """Observed state of a CronJob."""

    active: tuple[ObjectReference, ...] | None = None
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(ApiStruct, frozen=True):
    """A CronJob."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()

    def job_name(self, scheduled: datetime) -> str:
        """Return the name of the Job for one time, the same in every process."""
        return f"{self.metadata.name}-{unix_minute(scheduled)}"


class Outcome(Enum):
    """How a Job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class OwnedJob(ApiStruct, frozen=True):
    """A Job, perhaps of a CronJob; each kind has its own status."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def outcome(self) -> Outcome | None:
        """How the Job ended; ``None`` while it is not finished."""
        raise NotImplementedError

    @property
    def finished_as(self) -> str:
        """Condition or phase that shows the outcome."""
        raise NotImplementedError

    @property
    def succeeded_at(self) -> str | None:
        """When the Job succeeded."""
        raise NotImplementedError

    @property
    def started_at(self) -> str | None:
        """When the Job was started; the history is ordered by it."""
        return self.metadata.creation_timestamp


def unix_minute(moment: datetime) -> int:
    """Return the minutes since 1970."""
    return int(moment.timestamp() // 60)


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp; ``None`` for none, and for what is no timestamp."""
    try:
        return times.parse(text) if text else None
    except times.TimeError:
        return None
