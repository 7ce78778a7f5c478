"""The kind batch.volcano.sh CronJob: its Jobs and events."""

from datetime import datetime

from ..machinery.reconcile.events import Event
from ..model import times
from ..model.base import ApiStruct
from ..model.cronjob import CronJob
from ..model.job import JobPhase
from ..model.names import CRONJOBS, INSTANTIATE, JOBS, MANUAL
from .kind import CronJobKind, EventTexts, Outcome, OwnedJob

SCHEDULED_TIME = "volcano.sh/cronjob-scheduled-timestamp"
"""Annotation of a Job: the time for which it was created."""

_OUTCOMES = {
    JobPhase.COMPLETED.value: Outcome.SUCCEEDED,
    JobPhase.FAILED.value: Outcome.FAILED,
    # Volcano keeps terminated Jobs for ever.
    JobPhase.TERMINATED.value: Outcome.FAILED,
}
"""Outcomes by phase. An aborted Job can be resumed, so it is active."""


class JobState(ApiStruct, frozen=True):
    """Fields of a Job's state."""

    phase: str = ""
    last_transition_time: str | None = None


class JobStatus(ApiStruct, frozen=True):
    """Fields of a Job's status."""

    state: JobState = JobState()


class Job(OwnedJob, frozen=True):
    """A Job of Volcano."""

    status: JobStatus = JobStatus()

    @property
    def outcome(self) -> Outcome | None:
        """How the Job ended; ``None`` while it is not finished."""
        return _OUTCOMES.get(self.status.state.phase)

    @property
    def finished_as(self) -> str:
        """The phase."""
        return self.status.state.phase

    @property
    def succeeded_at(self) -> str | None:
        """When the Job completed."""
        completed = self.outcome is Outcome.SUCCEEDED
        return self.status.state.last_transition_time if completed else None


# Events, with Volcano's reasons.


def _created(cronjob: CronJob, name: str) -> Event:
    message = f"Created job {name} for CronJob {cronjob.metadata.key}"
    return Event("SuccessfulCreate", message)


def _finished(job: OwnedJob) -> Event:
    message = f"Saw completed job: {job.metadata.name} in active, remove"
    return Event("SawCompletedJob", message)


def _missing(name: str) -> Event:
    return Event("StaleReference", f"Active job is missing: {name}", warning=True)


def _unexpected(job: OwnedJob) -> Event | None:
    if job.metadata.annotations.get(INSTANTIATE) == MANUAL:
        return None
    message = f"Job {job.metadata.name} was not created by the schedule"
    return Event("OrphanedJob", message, warning=True)


def _blocked(due: datetime) -> Event:
    message = "Job not started: another one is active, and concurrencyPolicy is Forbid"
    return Event("ForbidConcurrent", message, warning=True, about=times.format(due))


def _replaced(job: OwnedJob) -> Event:
    message = f"Job {job.metadata.name} is active and will be replaced"
    return Event("ReplaceConcurrent", message, warning=True)


def _foreign(name: str) -> Event:
    message = f"Job not created: a job {name} exists that this CronJob does not control"
    return Event("ForeignJob", message, warning=True)


def _unknown_zone(name: str, error: str) -> Event:
    return Event("InvalidTimeZone", f'invalid timeZone "{name}": {error}', warning=True)


def _unparseable(schedule: str, error: str) -> Event:
    message = f'unparseable schedule "{schedule}": {error}'
    return Event("UnParseableCronJobSchedule", message, warning=True)


KIND = CronJobKind(
    queue_name="volcano-cronjob",
    cronjobs=CRONJOBS,
    jobs=JOBS,
    job_type=Job,
    scheduled_time=SCHEDULED_TIME,
    events=EventTexts(
        created=_created,
        finished=_finished,
        missing=_missing,
        unexpected=_unexpected,
        blocked=_blocked,
        replaced=_replaced,
        foreign=_foreign,
        unknown_zone=_unknown_zone,
        unparseable=_unparseable,
    ),
)
