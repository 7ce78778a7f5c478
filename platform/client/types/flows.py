"""JobFlows and CronJobs."""

from datetime import datetime

from .base import Page, Record


class FlowJob(Record, frozen=True):
    """A Job of a job flow."""

    flow: str
    job: str = ""
    targets: list[str] = []
    phase: str = ""
    """Empty if the Job has not been created."""
    reason: str = ""
    message: str = ""


class JobFlow(Record, frozen=True):
    """State of a job flow."""

    namespace: str
    name: str
    uid: str = ""
    phase: str = ""
    retain_policy: str = ""
    jobs: list[FlowJob] = []
    created_at: datetime | None = None


class JobFlowPage(Page[JobFlow], frozen=True):
    """Job flows."""

    items: list[JobFlow] = []


class CronJob(Record, frozen=True):
    """State of a CronJob of Volcano."""

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


class CronJobPage(Page[CronJob], frozen=True):
    """CronJobs."""

    items: list[CronJob] = []
