"""What differs between the kinds of CronJobs: resources, the Job's status, annotation, events."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from ...model import times
from ...model.meta import ObjectReference, OwnerReference
from ...model.names import Resource
from ..reconcile.events import Event
from .objects import CronJob, OwnedJob, parse_time

J = TypeVar("J", bound=OwnedJob)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTexts:
    """Reasons and messages that the kinds do not share; the others are functions of this module."""

    created: Callable[[CronJob, str], Event]
    """A Job of this name was created."""
    finished: Callable[[OwnedJob], Event]
    """An active Job has finished."""
    missing: Callable[[str], Event]
    """An active Job of this name does not exist."""
    unexpected: Callable[[OwnedJob], Event | None]
    """A Job of the CronJob that the schedule did not create; ``None`` if that is no news."""
    blocked: Callable[[datetime], Event]
    """A Job is not started at this time: one is active, and the policy is Forbid."""
    replaced: Callable[[OwnedJob], Event | None]
    """An active Job will be deleted, since the policy is Replace."""
    foreign: Callable[[str], Event]
    """A Job of this name exists that the CronJob does not control."""
    unknown_zone: Callable[[str, str], Event]
    """There is no such time zone: name and error."""
    unparseable: Callable[[str, str], Event]
    """The text is not a schedule: text and error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobKind(Generic[J]):
    """A kind of CronJobs and the kind of its Jobs."""

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
    return Event(
        "MissSchedule", f"Missed scheduled time to start a job: {times.format(due)}", warning=True
    )


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
    return Event("ScheduledInFuture", message, warning=True)


def without_times(schedule: str) -> Event:
    """Return the event on a schedule without a time in the next years."""
    message = f"invalid schedule: {schedule}: it has no time in the next years"
    return Event("InvalidSchedule", message, warning=True)


def zone_in_schedule(schedule: str) -> Event:
    """Return the event on a schedule with a time zone, which the API does not support."""
    message = f'the time zone in schedule "{schedule}" takes precedence; use .spec.timeZone'
    return Event("UnsupportedSchedule", message, warning=True)


def create_failed(error: str) -> Event:
    """Return the event on a Job that the API server rejected."""
    return Event("FailedCreate", f"Error creating job: {error}", warning=True)


def deleted(name: str) -> Event:
    """Return the event on a deleted Job."""
    return Event("SuccessfulDelete", f"Deleted job {name}")


def delete_failed(name: str, error: str) -> Event:
    """Return the event on a Job that was not deleted."""
    return Event("FailedDelete", f"Error deleting job {name}: {error}", warning=True)
