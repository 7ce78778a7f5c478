"""CronJobs of batch/v1 and of Volcano, which have the same fields, and the Jobs they describe."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from . import times
from .base import ApiStruct
from .meta import ObjectMeta, ObjectReference, OwnerReference
from .names import INSTANTIATE, MANUAL, Resource


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


def build_manual_job(
    cronjob: CronJob, name: str, *, cronjobs: Resource, jobs: Resource
) -> dict[str, object]:
    """Return a Job to create apart from the schedule, as ``kubectl create job --from`` does.

    It does not block the deletion of the CronJob, which takes another permission.
    """
    added = {INSTANTIATE: MANUAL}
    return job_from_template(
        cronjob, name, added, cronjobs=cronjobs, jobs=jobs, blocks_deletion=False
    )


def job_from_template(
    cronjob: CronJob,
    name: str,
    annotations: Mapping[str, str],
    *,
    cronjobs: Resource,
    jobs: Resource,
    blocks_deletion: bool,
) -> dict[str, object]:
    """Return a Job; the template's name, namespace and finalizers are not used.

    *annotations* are those besides the template's; *blocks_deletion*: whether the Job blocks the
    deletion of the CronJob.
    """
    template = cronjob.spec.job_template
    given = template.metadata or JobTemplateMeta()
    owner = OwnerReference(
        api_version=cronjobs.api_version,
        kind=cronjobs.kind,
        name=cronjob.metadata.name,
        uid=cronjob.metadata.uid,
        controller=True,
        block_owner_deletion=blocks_deletion or None,
    )
    metadata: dict[str, object] = {
        "name": name,
        "namespace": cronjob.metadata.namespace,
        "annotations": {**(given.annotations or {}), **annotations},
        "ownerReferences": [owner],
    }
    if given.labels:
        metadata["labels"] = given.labels
    return {
        "apiVersion": jobs.api_version,
        "kind": jobs.kind,
        "metadata": metadata,
        "spec": template.spec,
    }


def unix_minute(moment: datetime) -> int:
    """Return the minutes since 1970."""
    return int(moment.timestamp() // 60)


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp; ``None`` for none, and for what is no timestamp."""
    try:
        return times.parse(text) if text else None
    except times.TimeError:
        return None
