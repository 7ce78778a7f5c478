"""The Jobs of a CronJob: for one scheduled time, or created manually."""

from datetime import UTC, datetime

from ...model.meta import OwnerReference
from ...model.names import INSTANTIATE, MANUAL, Resource
from .. import cron
from .kind import CronJobKind, J
from .objects import CronJob, JobTemplateMeta


def build_manual_job(
    cronjob: CronJob, name: str, *, cronjobs: Resource, jobs: Resource
) -> dict[str, object]:
    """Return a Job to create apart from the schedule, as ``kubectl create job --from`` does.

    It does not block the deletion of the CronJob, which takes another permission.
    """
    return _from_template(cronjobs, jobs, cronjob, name, {INSTANTIATE: MANUAL}, blocks=False)


def build_job(kind: CronJobKind[J], cronjob: CronJob, scheduled: datetime) -> dict[str, object]:
    """Return the Job to create for one time."""
    annotations = {kind.scheduled_time: _timestamp(cronjob, scheduled)}
    name = cronjob.job_name(scheduled)
    return _from_template(kind.cronjobs, kind.jobs, cronjob, name, annotations, blocks=True)


def _from_template(
    cronjobs: Resource,
    jobs: Resource,
    cronjob: CronJob,
    name: str,
    added: dict[str, str],
    *,
    blocks: bool,
) -> dict[str, object]:
    """Return a Job; the template's name, namespace and finalizers are not used.

    *added* are its annotations besides those of the template; *blocks*: whether it blocks the
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
        block_owner_deletion=blocks or None,
    )
    metadata: dict[str, object] = {
        "name": name,
        "namespace": cronjob.metadata.namespace,
        "annotations": {**(given.annotations or {}), **added},
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


def _timestamp(cronjob: CronJob, scheduled: datetime) -> str:
    """Format a time in the CronJob's time zone, as Go does; in UTC if it has none."""
    name = cronjob.spec.time_zone
    local = scheduled.astimezone(cron.load_time_zone(name) if name else UTC)
    return local.isoformat(timespec="seconds").replace("+00:00", "Z")
