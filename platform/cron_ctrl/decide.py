"""Decisions of the CronJob controller: a pure function from a CronJob and its Jobs to effects.

Everything follows from the objects, so that an interrupted reconcile is completed by the next one.
A *scheduled time* is handled once ``status.lastScheduleTime`` or the name of a Job shows it; only
the latest one is ever started. A scheduled Job that the status lacks, because the process ended
between both writes, is added to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Generic

import msgspec

from ..machinery import cron
from ..machinery.reconcile.controller import RequeueAfter
from ..machinery.reconcile.events import Event
from ..model import times
from ..model.cronjob import CronJob, CronJobStatus, parse_time, unix_minute
from . import kind as kinds
from .kind import CronJobKind, J, Outcome, OwnedJob

_START_DELAY = 0.1
"""Seconds after a scheduled time until the reconcile: a timer may fire slightly early."""

_RECHECK = 86400.0
"""Seconds after which a schedule without a time in the next years is checked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobView(Generic[J]):
    """A CronJob, all Jobs that it controls, and the time."""

    cronjob: CronJob
    jobs: Sequence[J]
    now: datetime
    local_zone: tzinfo = UTC
    """Time zone of a CronJob without ``timeZone``."""
    changed_at: datetime | None = None
    """When the schedule was changed, if it is known: earlier times of the new one are not due."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Record those of these events on lasting conditions that the last decision did not have."""

    notices: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class StartJob(Generic[J]):
    """A Job to create, after others were deleted."""

    scheduled: datetime
    replaced: tuple[J, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateStatus(Generic[J]):
    """Start a Job, if one is due, and write the status with it in one write, if it differs.

    A Job that cannot be started does not prevent the write, nor the effects that follow.
    """

    status: CronJobStatus
    """The status without the Job to start."""
    start: StartJob[J] | None
    changes: tuple[Event, ...]
    """Events on what has changed, recorded after the write."""


@dataclass(frozen=True, slots=True)
class DeleteJobs(Generic[J]):
    """Delete finished Jobs beyond the history limits; the status shows that they have run."""

    jobs: tuple[J, ...]


Effect = RequeueAfter | Notify | UpdateStatus[J] | DeleteJobs[J]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """Which scheduled time is due, and when the next one is."""

    scheduled: datetime | None = None
    next: datetime | None = None
    notices: Sequence[Event] = ()


def decide(kind: CronJobKind[J], view: CronJobView[J]) -> list[Effect[J]]:
    """Return what a CronJob needs, in order."""
    cronjob = view.cronjob
    jobs = sorted(
        view.jobs, key=lambda job: (job.metadata.creation_timestamp or "", job.metadata.name)
    )
    status, changes = _observed_status(kind, cronjob, jobs)
    notices = [
        event
        for job in jobs
        if job.outcome is None
        and kind.scheduled_for(job, cronjob) is None
        and (event := kind.events.unexpected(job)) is not None
    ]
    start, effects = None, list[Effect[J]]()
    deleted = cronjob.metadata.deletion_timestamp is not None
    if not deleted and not cronjob.spec.suspend:
        due = _due(kind, msgspec.structs.replace(cronjob, status=status), view)
        notices += due.notices
        if due.scheduled is not None:
            start = StartJob(due.scheduled, _replaced(cronjob, status, jobs))
        if due.next is not None:
            seconds = max((due.next - view.now).total_seconds(), 0.0)
            effects.append(RequeueAfter(seconds + _START_DELAY))
    if notices and not effects:
        effects.append(RequeueAfter(_RECHECK))
    effects += [Notify(tuple(notices)), UpdateStatus(status, start, tuple(changes))]
    if not deleted and (beyond := _beyond_history(cronjob, jobs)):
        effects.append(DeleteJobs(tuple(beyond)))
    return effects


def _replaced(cronjob: CronJob, status: CronJobStatus, jobs: Iterable[J]) -> tuple[J, ...]:
    """Return the active Jobs that are deleted before another one is created."""
    if cronjob.spec.concurrency_policy != "Replace":
        return ()
    active = {reference.uid for reference in status.active or ()}
    return tuple(
        job
        for job in jobs
        if job.metadata.uid in active and job.metadata.deletion_timestamp is None
    )


def with_created(
    kind: CronJobKind[J], status: CronJobStatus, job: J, scheduled: datetime
) -> CronJobStatus:
    """Return the status after *job* was created for *scheduled*, or found to exist."""
    active = status.active or ()
    known = any(reference.uid == job.metadata.uid for reference in active)
    ended = job.outcome is not None or job.metadata.deletion_timestamp is not None
    if not known and not ended:
        active = (*active, kind.reference(job))
    last = parse_time(status.last_schedule_time)
    latest = scheduled if last is None else max(last, scheduled)
    return msgspec.structs.replace(
        status, active=active or None, last_schedule_time=times.format(latest)
    )


def without(status: CronJobStatus, jobs: Iterable[J]) -> CronJobStatus:
    """Return the status after *jobs* were deleted."""
    uids = {job.metadata.uid for job in jobs}
    active = tuple(each for each in status.active or () if each.uid not in uids)
    return msgspec.structs.replace(status, active=active or None)


def _observed_status(
    kind: CronJobKind[J], cronjob: CronJob, jobs: Sequence[J]
) -> tuple[CronJobStatus, list[Event]]:
    """Return the status that the Jobs show, and events on what changed."""
    by_uid = {job.metadata.uid: job for job in jobs}
    changes = []
    active = []
    for reference in cronjob.status.active or ():
        job = by_uid.get(reference.uid)
        if job is None:
            changes.append(kind.events.missing(reference.name))
        elif job.outcome is not None:
            changes.append(kind.events.finished(job))
        else:
            active.append(reference)
    completions = [job.succeeded_at for job in jobs]
    status = CronJobStatus(
        active=tuple(active) or None,
        last_schedule_time=cronjob.status.last_schedule_time,
        last_successful_time=_latest([cronjob.status.last_successful_time, *completions]),
    )
    for job in jobs:
        scheduled = kind.scheduled_for(job, cronjob)
        if scheduled is not None:
            status = with_created(kind, status, job, scheduled)
    return status, changes


def _latest(texts: Iterable[str | None]) -> str | None:
    """Return the latest of some timestamps."""
    parsed = [moment for text in texts if (moment := parse_time(text)) is not None]
    return times.format(max(parsed)) if parsed else None


def _beyond_history(cronjob: CronJob, jobs: Sequence[J]) -> list[J]:
    """Return the finished Jobs that exceed the limits, oldest first."""
    limits = {
        Outcome.SUCCEEDED: cronjob.spec.successful_jobs_history_limit,
        Outcome.FAILED: cronjob.spec.failed_jobs_history_limit,
    }
    beyond: list[J] = []
    for outcome, limit in limits.items():
        if limit is None:
            continue
        finished = [
            job
            for job in jobs
            if job.outcome is outcome and job.metadata.deletion_timestamp is None
        ]
        finished.sort(key=_age_key)
        beyond += finished[: max(len(finished) - max(limit, 0), 0)]
    return beyond


def _age_key(job: OwnedJob) -> tuple[str, str]:
    return job.started_at or "", job.metadata.name


# The schedule


def _due(kind: CronJobKind[J], cronjob: CronJob, view: CronJobView[J]) -> _Due:
    """Return whether a scheduled time is due; *cronjob* has its new status."""
    now, notices = view.now, list[Event]()
    schedule = _parse(kind, cronjob, view.local_zone, notices)
    if schedule is None:
        return _Due(notices=notices)
    last = parse_time(cronjob.status.last_schedule_time)
    since = last or parse_time(cronjob.metadata.creation_timestamp) or now
    if view.changed_at is not None:
        since = max(since, min(view.changed_at, now))
    if last is not None and last > now:
        notices.append(kinds.clock_behind(last))
    missed = schedule.missed(since, now)
    following = schedule.next(since if missed is None else missed.latest)
    if following is None:
        notices.append(kinds.without_times(cronjob.spec.schedule))
    if missed is None:
        return _Due(next=following, notices=notices)
    due = missed.latest
    if last is not None and unix_minute(last) == unix_minute(due):
        return _Due(next=following, notices=notices)  # Jobs are named by the minute
    skipped = _reason_not_to_start(kind, cronjob, due, now)
    if skipped is not None:
        return _Due(next=following, notices=[*notices, skipped])
    if missed.too_many and _too_many_missed(cronjob, schedule, since, now):
        notices.append(kinds.too_many_missed(due))
    return _Due(scheduled=due, next=following, notices=notices)


def _parse(
    kind: CronJobKind[J], cronjob: CronJob, local_zone: tzinfo, notices: list[Event]
) -> cron.Schedule | None:
    """Return the schedule; None with a notice if it or its time zone is invalid."""
    text, name = cronjob.spec.schedule, cronjob.spec.time_zone
    try:
        zone = local_zone if name is None else cron.load_time_zone(name or "UTC")
        schedule = cron.parse(text, zone)
    except cron.UnknownTimeZoneError as error:
        notices.append(kind.events.unknown_zone(name or "", str(error)))
        return None
    except cron.ScheduleError as error:
        notices.append(kind.events.unparseable(text, str(error)))
        return None
    if cron.mentions_time_zone(text):
        notices.append(kinds.zone_in_schedule(text))
    return schedule


def _reason_not_to_start(
    kind: CronJobKind[J], cronjob: CronJob, due: datetime, now: datetime
) -> Event | None:
    """Return why the Job that is due is not started."""
    deadline = cronjob.spec.starting_deadline_seconds
    if deadline is not None and (now - due).total_seconds() > deadline:
        return kinds.too_late(due)
    if cronjob.spec.concurrency_policy == "Forbid" and cronjob.status.active:
        return kind.events.blocked(due)
    return None


def _too_many_missed(
    cronjob: CronJob, schedule: cron.Schedule, since: datetime, now: datetime
) -> bool:
    """Whether too many times were missed within the deadline, if there is one."""
    deadline = cronjob.spec.starting_deadline_seconds
    if deadline is None:
        return True
    if deadline < (now - since).total_seconds():
        since = now - timedelta(seconds=deadline)
    missed = schedule.missed(since, now)
    return missed is not None and missed.too_many
