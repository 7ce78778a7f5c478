"""Decisions of the CronJob controller: a pure function from a CronJob and its Jobs to a plan.

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
from . import kind as kinds
from .kind import CronJobKind, Event, J
from .objects import CronJob, CronJobStatus, Outcome, OwnedJob, parse_time, unix_minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[J]):
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
    """Events on lasting conditions, recorded unless the last plan has the same."""
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


def decide(
    kind: CronJobKind[J],
    cronjob: CronJob,
    jobs: Iterable[J],
    now: datetime,
    *,
    local_zone: tzinfo = UTC,
    changed_at: datetime | None = None,
) -> Plan[J]:
    """Return the plan for *cronjob*, which controls *jobs*, all that exist.

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
    plan: Plan[J] = Plan(status=status, changes=changes, notices=unexpected)
    if cronjob.metadata.deletion_timestamp is not None:
        return plan
    plan = replace(plan, delete=_beyond_history(cronjob, owned))
    if cronjob.spec.suspend:
        return plan
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
        plan,
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
    schedule = _parse(kind, cronjob, local_zone, notices)
    if schedule is None:
        return _Start(notices=notices)
    last = parse_time(cronjob.status.last_schedule_time)
    since = last or parse_time(cronjob.metadata.creation_timestamp) or now
    if changed_at is not None:
        since = max(since, min(changed_at, now))
    if last is not None and last > now:
        notices.append(kinds.clock_behind(last))
    missed = schedule.missed(since, now)
    following = schedule.next(since if missed is None else missed.latest)
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
    if missed.too_many and _too_many_missed(cronjob, schedule, since, now):
        notices.append(kinds.too_many_missed(due))
    return _Start(create=due, next=following, notices=notices)


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
