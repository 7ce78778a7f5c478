"""Fields of CronJobs and Jobs that the CronJob controller reads, and the names of its Jobs."""

from datetime import datetime

import msgspec

from ...model import times
from ...model.base import ApiStruct
from ...model.meta import Condition, ObjectMeta, ObjectReference, OwnerReference
from ...model.names import BATCH_CRONJOBS, BATCH_JOBS

SCHEDULED_TIME = "batch.kubernetes.io/cronjob-scheduled-timestamp"
"""Annotation of a Job: the time for which it was created."""


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


class JobStatus(ApiStruct, frozen=True):
    """Fields of a Job's status."""

    conditions: tuple[Condition, ...] | None = None
    start_time: str | None = None
    completion_time: str | None = None


class Job(ApiStruct, frozen=True):
    """A Job, perhaps of a CronJob."""

    metadata: ObjectMeta = ObjectMeta()
    status: JobStatus = JobStatus()

    @property
    def finished_condition(self) -> str:
        """``Complete`` or ``Failed``; empty while the Job is not finished."""
        for condition in self.status.conditions or ():
            if condition.type in ("Complete", "Failed") and condition.status == "True":
                return condition.type
        return ""

    @property
    def cronjob(self) -> OwnerReference | None:
        """The CronJob that controls the Job, if any."""
        owner = self.metadata.controller
        return owner if owner is not None and _is_cronjob(owner) else None

    def is_controlled_by(self, cronjob: CronJob) -> bool:
        """Whether the Job is this CronJob's, and not one's of the same name."""
        owner = self.cronjob
        return owner is not None and owner.uid == cronjob.metadata.uid

    @property
    def reference(self) -> ObjectReference:
        """Reference for ``status.active``."""
        return ObjectReference(
            api_version=BATCH_JOBS.api_version,
            kind=BATCH_JOBS.kind,
            namespace=self.metadata.namespace,
            name=self.metadata.name,
            uid=self.metadata.uid,
            resource_version=self.metadata.resource_version,
        )

    def scheduled_time(self, cronjob: CronJob) -> datetime | None:
        """Return the time for which this Job of *cronjob* was created.

        ``None`` for other Jobs, such as those of ``kubectl create job --from``.
        """
        scheduled = parse_time(self.metadata.annotations.get(SCHEDULED_TIME))
        if scheduled is None or self.metadata.name != cronjob.job_name(scheduled):
            return None
        return scheduled


def _is_cronjob(owner: OwnerReference) -> bool:
    group = owner.api_version.partition("/")[0]
    return owner.kind == BATCH_CRONJOBS.kind and group == BATCH_CRONJOBS.group


def unix_minute(moment: datetime) -> int:
    """Return the minutes since 1970."""
    return int(moment.timestamp() // 60)


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp; ``None`` for none, and for what is no timestamp."""
    try:
        return times.parse(text) if text else None
    except times.TimeError:
        return None
