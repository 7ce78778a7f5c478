"""Decisions of the CronJob controllers: a pure function from a CronJob and its Jobs to effects.

Everything follows from the objects, so that an interrupted reconcile is completed by the next one.
A *scheduled time* is handled once ``status.lastScheduleTime`` or the name of a Job shows it; only
the latest one is ever started. A scheduled Job that is missing in the status, since a process ended
between both writes, is added to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Generic

import msgspec

from ...model import times
from .. import cron
from ..reconcile.events import Event
from . import kind as kinds
from .kind import CronJobKind, J
from .objects import CronJob, CronJobStatus, Outcome, OwnedJob, parse_time, unix_minute

START_DELAY = 0.1
"""Seconds after a scheduled time until the reconcile: a timer may fire slightly early."""

_RECHECK = 86400.0
"""Seconds after which a schedule without a time in the next years is checked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobView(Generic[J]):
    """A CronJob and all Jobs that it controls."""

    cronjob: CronJob
    jobs: Sequence[J]
    now: datetime
    local_zone: tzinfo
    """Time zone of CronJobs without ``timeZone``."""
    changed_at: datetime | None
    """When the schedule was changed, if this process has seen it."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Record events on lasting conditions, unless the last decision had the same."""

    notices: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class StartJob(Generic[J]):
    """Create the Job of a scheduled time, after the Jobs that it replaces are deleted."""

    scheduled: datetime
    replace: tuple[J, ...]


@dataclass(frozen=True, slots=True)
class SetStatus(Generic[J]):
    """Write the status, with the Job of *start* if that exists now, unless nothing differs."""

    status: CronJobStatus
    changes: tuple[Event, ...]
    """Recorded once it is written."""
    start: StartJob[J] | None


@dataclass(frozen=True, slots=True)
class DeleteJobs(Generic[J]):
    """Delete finished Jobs beyond the history limits."""

    jobs: tuple[J, ...]


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Reconcile again after some seconds, when the next Job may be due."""

    seconds: float


Effect = RequeueAfter | Notify | StartJob[J] | SetStatus[J] | DeleteJobs[J]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Generic[J]):
    """What a CronJob needs, in the order of the fields."""

    replace: Sequence[J] = ()
    """Jobs to delete before another one is created."""
    create: datetime | None = None
    """Scheduled time of the Job to create."""
    status: CronJobStatus
    """The status, without the Job to create."""
    changes: Sequence[Event] = ()
    """Events on what changed in the status."""
    notices: Sequence[Event] = ()
    """Events on lasting conditions, recorded unless the last found has the same."""
    delete: Sequence[J] = ()
    """Finished Jobs beyond the history limits; after the status shows that they have run."""
    next: datetime | None = None
    """When to reconcile again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Whether to start a Job now, and when to check again."""

    create: datetime | None = None
    next: datetime | None = None
    notices: Sequence[Event] = ()


def decide(kind: CronJobKind[J], view: CronJobView[J]) -> list[Effect[J]]:
    """Return what a CronJob needs, in order."""
    found = schedule(
        kind,
        view.cronjob,
        view.jobs,
        view.now,
        local_zone=view.local_zone,
        changed_at=view.changed_at,
    )
    effects: list[Effect[J]] = []
    if found.next is not None:
        seconds = max((found.next - view.now).total_seconds(), 0.0) + START_DELAY
        effects.append(RequeueAfter(seconds))
    elif found.notices:
        effects.append(RequeueAfter(_RECHECK))
    effects.append(Notify(tuple(found.notices)))
    start = None
    if found.create is not None:
        start = StartJob(found.create, tuple(found.replace))
        effects.append(start)
    effects.append(SetStatus(found.status, tuple(found.changes), start))
    if found.delete:  # after the status shows that they have run
        effects.append(DeleteJobs(tuple(found.delete)))
    return effects


def schedule(
    kind: CronJobKind[J],
    cronjob: CronJob,
    jobs: Iterable[J],
    now: datetime,
    *,
    local_zone: tzinfo = UTC,
    changed_at: datetime | None = None,
) -> Schedule[J]:
    """Return what *cronjob* needs, which controls *jobs*, all that exist.

    *local_zone* applies without ``timeZone``. Times before *changed_at*, when the schedule was
    changed, are not due.
    """
    owned = sorted(jobs, key=lambda job: (job.metadata.creation_timestamp or "", job.metadata.name))
    status, changes = _observe(kind, cronjob, owned)
    unexpected = [
        event
        for job in owned
        if job.outcome is None
        and kind.scheduled_for(job, cronjob) is None
        and (event := kind.events.unexpected(job)) is not None
    ]
    found: Schedule[J] = Schedule(status=status, changes=changes, notices=unexpected)
    if cronjob.metadata.deletion_timestamp is not None:
        return found
    found = replace(found, delete=_beyond_history(cronjob, owned))
    if cronjob.spec.suspend:
        return found
    start = _start(
        kind, msgspec.structs.replace(cronjob, status=status), now, local_zone, changed_at
    )
    replaced: Sequence[J] = ()
    if start.create is not None and cronjob.spec.concurrency_policy == "Replace":
        active = {reference.uid for reference in status.active or ()}
        replaced = [
            job
            for job in owned
            if job.metadata.uid in active and job.metadata.deletion_timestamp is None
        ]
    return replace(
        found,
        replace=replaced,
        create=start.create,
        notices=[*unexpected, *start.notices],
        next=start.next,
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


def _observe(
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


def _start(
    kind: CronJobKind[J],
    cronjob: CronJob,
    now: datetime,
    local_zone: tzinfo,
    changed_at: datetime | None,
) -> _Start:
    """Return whether a scheduled time is due; *cronjob* has its new status."""
    notices: list[Event] = []
    parsed = _parse(kind, cronjob, local_zone, notices)
    if parsed is None:
        return _Start(notices=notices)
    last = parse_time(cronjob.status.last_schedule_time)
    since = last or parse_time(cronjob.metadata.creation_timestamp) or now
    if changed_at is not None:
        since = max(since, min(changed_at, now))
    if last is not None and last > now:
        notices.append(kinds.clock_behind(last))
    missed = parsed.missed(since, now)
    following = parsed.next(since if missed is None else missed.latest)
    if following is None:
        notices.append(kinds.without_times(cronjob.spec.schedule))
    if missed is None:
        return _Start(next=following, notices=notices)
    due = missed.latest
    if last is not None and unix_minute(last) == unix_minute(due):
        return _Start(next=following, notices=notices)  # the names of Jobs have minutes
    skipped = _reason_not_to_start(kind, cronjob, due, now)
    if skipped is not None:
        return _Start(next=following, notices=[*notices, skipped])
    if missed.too_many and _too_many_missed(cronjob, parsed, since, now):
        notices.append(kinds.too_many_missed(due))
    return _Start(create=due, next=following, notices=notices)


def _parse(
    kind: CronJobKind[J], cronjob: CronJob, local_zone: tzinfo, notices: list[Event]
) -> cron.Schedule | None:
    """Return the schedule; None with a notice if it or its time zone is invalid."""
    text, name = cronjob.spec.schedule, cronjob.spec.time_zone
    try:
        zone = local_zone if name is None else cron.load_time_zone(name or "UTC")
        parsed = cron.parse(text, zone)
    except cron.UnknownTimeZoneError as error:
        notices.append(kind.events.unknown_zone(name or "", str(error)))
        return None
    except cron.ScheduleError as error:
        notices.append(kind.events.unparseable(text, str(error)))
        return None
    if cron.mentions_time_zone(text):
        notices.append(kinds.zone_in_schedule(text))
    return parsed


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
