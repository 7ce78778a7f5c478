"""The Job of a CronJob for one scheduled time."""

from datetime import UTC, datetime

from ...model.meta import OwnerReference
from .. import cron
from .kind import CronJobKind, J
from .objects import CronJob, JobTemplateMeta


def build_job(kind: CronJobKind[J], cronjob: CronJob, scheduled: datetime) -> dict[str, object]:
    """Return the Job to create; the template's name, namespace and finalizers are not used."""
    template = cronjob.spec.job_template
    given = template.metadata or JobTemplateMeta()
    annotations = {**(given.annotations or {}), kind.scheduled_time: _timestamp(cronjob, scheduled)}
    owner = OwnerReference(
        api_version=kind.cronjobs.api_version,
        kind=kind.cronjobs.kind,
        name=cronjob.metadata.name,
        uid=cronjob.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    metadata: dict[str, object] = {
        "name": cronjob.job_name(scheduled),
        "namespace": cronjob.metadata.namespace,
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    if given.labels:
        metadata["labels"] = given.labels
    return {
        "apiVersion": kind.jobs.api_version,
        "kind": kind.jobs.kind,
        "metadata": metadata,
        "spec": template.spec,
    }


def _timestamp(cronjob: CronJob, scheduled: datetime) -> str:
    """Format a time in the CronJob's time zone, as Go does; in UTC if it has none."""
    name = cronjob.spec.time_zone
    local = scheduled.astimezone(cron.load_time_zone(name) if name else UTC)
    return local.isoformat(timespec="seconds").replace("+00:00", "Z")
