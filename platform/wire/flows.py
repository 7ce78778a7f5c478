"""JobFlows and CronJobs."""

from datetime import datetime

from .base import Items, Record


class FlowJob(Record, frozen=True):
    """A Job of a job flow."""

    flow: str
    job: str = ""
    targets: list[str] = []
    phase: str = ""
    """Empty if the Job has not been created."""
    reason: str = ""
    """Why the Job fails the flow."""
    message: str = ""


class JobFlow(Record, frozen=True):
    """Summary of a job flow."""

    namespace: str
    name: str
    uid: str = ""
    phase: str = ""
    retain_policy: str = ""
    jobs: list[FlowJob] = []
    """In the order of the flows in the spec."""
    created_at: datetime | None = None


class JobFlowList(Items[JobFlow], frozen=True):
    """Job flows of one namespace, or of all."""


class CronJob(Record, frozen=True):
    """Summary of a CronJob."""

    namespace: str
    name: str
    uid: str = ""
    schedule: str = ""
    time_zone: str | None = None
    concurrency_policy: str = ""
    suspend: bool = False
    active: list[str] = []
    """Unfinished jobs that the schedule has started."""
    last_schedule_time: datetime | None = None
    last_successful_time: datetime | None = None
    created_at: datetime | None = None


class CronJobList(Items[CronJob], frozen=True):
    """CronJobs of one namespace, or of all."""
