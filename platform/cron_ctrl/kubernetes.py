"""The kind batch/v1 CronJob: its Jobs and events.

It is controlled in the embedded cluster only: elsewhere kube-controller-manager controls all
CronJobs, which have no ``managedBy``, and both would start, replace and delete the same Jobs.
"""

from datetime import datetime

from ..machinery.reconcile.events import Event
from ..model import times
from ..model.base import ApiStruct
from ..model.cronjob import CronJob
from ..model.meta import Condition
from ..model.names import BATCH_CRONJOBS, BATCH_JOBS
from .kind import CronJobKind, EventTexts, Outcome, OwnedJob

SCHEDULED_TIME = "batch.kubernetes.io/cronjob-scheduled-timestamp"
"""Annotation of a Job: the time for which it was created."""

_OUTCOMES = {"": None, "Complete": Outcome.SUCCEEDED, "Failed": Outcome.FAILED}


class JobStatus(ApiStruct, frozen=True):
    """Fields of a Job's status."""

    conditions: tuple[Condition, ...] | None = None
    start_time: str | None = None
    completion_time: str | None = None


class Job(OwnedJob, frozen=True):
    """A Job of batch/v1."""

    status: JobStatus = JobStatus()

    @property
    def finished_as(self) -> str:
        """``Complete`` or ``Failed``; empty while the Job is not finished."""
        for condition in self.status.conditions or ():
            if condition.type in ("Complete", "Failed") and condition.status == "True":
                return condition.type
        return ""

    @property
    def outcome(self) -> Outcome | None:
        """How the Job ended; ``None`` while it is not finished."""
        return _OUTCOMES[self.finished_as]

    @property
    def succeeded_at(self) -> str | None:
        """When the Job succeeded."""
        return self.status.completion_time if self.finished_as == "Complete" else None

    @property
    def started_at(self) -> str | None:
        """When the Job was started."""
        return self.status.start_time or self.metadata.creation_timestamp


# Events, with the reasons and messages of Kubernetes.


def _created(cronjob: CronJob, name: str) -> Event:
    return Event("SuccessfulCreate", f"Created job {name}")


def _finished(job: OwnedJob) -> Event:
    message = f"Saw completed job: {job.metadata.name}, condition: {job.finished_as}"
    return Event("SawCompletedJob", message)


def _missing(name: str) -> Event:
    return Event("MissingJob", f"Active job is missing: {name}")


def _unexpected(job: OwnedJob) -> Event:
    message = f"Job {job.metadata.name} was not created by the schedule"
    return Event("UnexpectedJob", message, warning=True)


def _blocked(due: datetime) -> Event:
    message = "Not starting job because prior execution is running and concurrency policy is Forbid"
    return Event("JobAlreadyActive", message, about=times.format(due))


def _foreign(name: str) -> Event:
    message = f"Error creating job: a job {name} exists that this CronJob does not control"
    return Event("FailedCreate", message, warning=True)


def _unknown_zone(name: str, error: str) -> Event:
    return Event("UnknownTimeZone", f'invalid timeZone: "{name}": {error}', warning=True)


def _unparseable(schedule: str, error: str) -> Event:
    message = f'unparseable schedule: "{schedule}": {error}'
    return Event("UnparseableSchedule", message, warning=True)


KIND = CronJobKind(
    queue_name="cronjob",
    cronjobs=BATCH_CRONJOBS,
    jobs=BATCH_JOBS,
    job_type=Job,
    scheduled_time=SCHEDULED_TIME,
    events=EventTexts(
        created=_created,
        finished=_finished,
        missing=_missing,
        unexpected=_unexpected,
        blocked=_blocked,
        replaced=lambda job: None,
        foreign=_foreign,
        unknown_zone=_unknown_zone,
        unparseable=_unparseable,
    ),
)
