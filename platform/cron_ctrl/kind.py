"""What differs between the kinds of CronJobs: resources, the Job's status, annotation, events."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Generic, TypeVar

from ..machinery import cron
from ..machinery.reconcile.events import Event
from ..model import times
from ..model.base import ApiStruct
from ..model.cronjob import CronJob, job_from_template, parse_time
from ..model.meta import ObjectMeta, ObjectReference, OwnerReference
from ..model.names import Resource


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


J = TypeVar("J", bound=OwnedJob)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTexts:
    """Events that differ between the kinds; the others are functions of this module."""

    created: Callable[[CronJob, str], Event]
    """A Job of this name was created."""
    finished: Callable[[OwnedJob], Event]
    """An active Job has finished."""
    missing: Callable[[str], Event]
    """An active Job of this name does not exist."""
    unexpected: Callable[[OwnedJob], Event | None]
    """A Job of the CronJob that the schedule did not create; ``None`` if that is
    not reported."""
    blocked: Callable[[datetime], Event]
    """A Job is not started at this time: one is active, and the policy is Forbid."""
    replaced: Callable[[OwnedJob], Event | None]
    """An active Job will be deleted, since the policy is Replace; ``None`` if that is not
    reported."""
    foreign: Callable[[str], Event]
    """A Job of this name exists that the CronJob does not control."""
    unknown_zone: Callable[[str, str], Event]
    """There is no such time zone: name and error."""
    unparseable: Callable[[str, str], Event]
    """The text is not a schedule: text and error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobKind(Generic[J]):
    """A kind of CronJobs and the kind of its Jobs."""

    queue_name: str
    """Name of the work queue in logs and metrics."""
    cronjobs: Resource
    jobs: Resource
    job_type: type[J]
    """Fields of a Job that are read."""
    scheduled_time: str
    """Annotation of a Job: the time for which it was created."""
    events: EventTexts

    def owner(self, job: J) -> OwnerReference | None:
        """Return the CronJob that controls the Job, if any."""
        owner = job.metadata.controller
        if owner is None or owner.kind != self.cronjobs.kind:
            return None
        return owner if owner.api_version.partition("/")[0] == self.cronjobs.group else None

    def is_controlled_by(self, job: J, cronjob: CronJob) -> bool:
        """Whether the Job is this CronJob's, and not one's of the same name."""
        return self.owner(job) is not None and cronjob.metadata.controls(job.metadata)

    def scheduled_for(self, job: J, cronjob: CronJob) -> datetime | None:
        """Return the time for which this Job of *cronjob* was created.

        ``None`` for other Jobs, such as those of ``kubectl create job --from``.
        """
        scheduled = parse_time(job.metadata.annotations.get(self.scheduled_time))
        if scheduled is None or job.metadata.name != cronjob.job_name(scheduled):
            return None
        return scheduled

    def build_job(self, cronjob: CronJob, scheduled: datetime) -> dict[str, object]:
        """Return the Job to create for one time."""
        zone = cronjob.spec.time_zone
        local = scheduled.astimezone(cron.load_time_zone(zone) if zone else UTC)
        # As Go formats a time.
        text = local.isoformat(timespec="seconds").replace("+00:00", "Z")
        return job_from_template(
            cronjob,
            cronjob.job_name(scheduled),
            {self.scheduled_time: text},
            cronjobs=self.cronjobs,
            jobs=self.jobs,
            blocks_deletion=True,
        )

    def reference(self, job: J) -> ObjectReference:
        """Return the reference for ``status.active``."""
        return ObjectReference(
            api_version=self.jobs.api_version,
            kind=self.jobs.kind,
            namespace=job.metadata.namespace,
            name=job.metadata.name,
            uid=job.metadata.uid,
            resource_version=job.metadata.resource_version,
        )


def too_late(due: datetime) -> Event:
    """Return the event on a time whose deadline has passed."""
    return _warning("MissSchedule", f"Missed scheduled time to start a job: {times.format(due)}")


def too_many_missed(due: datetime) -> Event:
    """Return the event on more missed times than a restart explains."""
    message = (
        "too many missed start times. Set or decrease .spec.startingDeadlineSeconds "
        "or check clock skew"
    )
    return Event("TooManyMissedTimes", message, warning=True, about=times.format(due))


def clock_behind(last: datetime) -> Event:
    """Return the event on a wall clock that was put back."""
    message = f"the clock is behind the last scheduled time {times.format(last)}"
    return _warning("ScheduledInFuture", message)


def without_times(schedule: str) -> Event:
    """Return the event on a schedule without a time in the next years."""
    message = f"invalid schedule: {schedule}: it has no time in the next years"
    return _warning("InvalidSchedule", message)


def zone_in_schedule(schedule: str) -> Event:
    """Return the event on a schedule with a time zone, which the API does not support."""
    message = f'the time zone in schedule "{schedule}" takes precedence; use .spec.timeZone'
    return _warning("UnsupportedSchedule", message)


def create_failed(error: str) -> Event:
    """Return the event on a Job that the API server rejected."""
    return _warning("FailedCreate", f"Error creating job: {error}")


def deleted(name: str) -> Event:
    """Return the event on a deleted Job."""
    return Event("SuccessfulDelete", f"Deleted job {name}")


def delete_failed(name: str, error: str) -> Event:
    """Return the event on a Job that was not deleted."""
    return _warning("FailedDelete", f"Error deleting job {name}: {error}")


def _warning(reason: str, message: str) -> Event:
    return Event(reason, message, warning=True)
