"""Ten years of schedules on a virtual clock, against a walk through every quarter of an hour."""

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cronjobs import VOLCANO, cronjob, decide
from support.examples import examples

from batholith.cron_ctrl.decide import with_created
from batholith.model.cronjob import CronJob

BEGIN = datetime(2016, 1, 1, tzinfo=UTC)
END = BEGIN.replace(year=2026)
QUARTER = timedelta(minutes=15)

SCHEDULES: dict[str, dict[str, Any]] = {
    "30 2 * * *": {"hour": {2}, "minute": {30}},
    "0,15 1-3 * * 0": {"hour": {1, 2, 3}, "minute": {0, 15}, "weekday": {0}},
    "45 23 29 2 *": {"hour": {23}, "minute": {45}, "day": {29}, "month": {2}},
    "0 0 13,31 * 5": {"hour": {0}, "minute": {0}, "day": {13, 31}, "weekday": {5}},
    "0 */12 1 */3 *": {"hour": {0, 12}, "minute": {0}, "day": {1}, "month": {1, 4, 7, 10}},
}
"""Schedules, and their values. Only quarters of an hour: offsets of all zones are multiples."""
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca")


def is_due(values: dict[str, Any], local: datetime) -> bool:
    """Whether a clock shows a time of the schedule."""
    if local.hour not in values["hour"] or local.minute not in values["minute"]:
        return False
    if "month" in values and local.month not in values["month"]:
        return False
    by_day = [local.day in values["day"]] if "day" in values else []
    by_day += [local.isoweekday() % 7 in values["weekday"]] if "weekday" in values else []
    return any(by_day) if by_day else True


@lru_cache
def slow_times(zone: str) -> dict[str, list[datetime]]:
    """Every time in the ten years, by schedule."""
    tz = ZoneInfo(zone)
    times: dict[str, list[datetime]] = {schedule: [] for schedule in SCHEDULES}
    moment = BEGIN
    while moment < END:
        local = moment.astimezone(tz)
        for schedule, values in SCHEDULES.items():
            if is_due(values, local):
                times[schedule].append(moment)
        moment += QUARTER
    return times


class Controller:
    """Executes plans on a CronJob whose Jobs complete at once."""

    def __init__(self, cronjob_: CronJob) -> None:
        self.cronjob = cronjob_
        self.jobs: list[Any] = []
        self.started: list[datetime] = []

    def reconcile(self, now: datetime) -> datetime | None:
        """Execute the plan; return when the next one is needed."""
        plan = decide(VOLCANO, self.cronjob, self.jobs, now)
        status = plan.status
        if plan.create is not None:
            created = VOLCANO.job(plan.create, "Complete")
            status = with_created(VOLCANO.kind, status, created, plan.create)
            self.jobs.append(created)
            self.started.append(plan.create)
        self.jobs = [each for each in self.jobs if each not in plan.delete]
        self.cronjob = msgspec.structs.replace(self.cronjob, status=status)
        return plan.next


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_time_of_ten_years_is_started_once(schedule: str, zone: str) -> None:
    """INV-CRON-1, INV-CRON-2."""
    created = BEGIN - timedelta(seconds=1)
    controller = Controller(
        cronjob(schedule, created=created, timeZone=zone, successfulJobsHistoryLimit=3)
    )
    now: datetime | None = created
    while now is not None and now < END:
        now = controller.reconcile(now + timedelta(seconds=0.1))
        assert len(controller.jobs) <= 4
    started = [each for each in controller.started if each < END]
    assert started == slow_times(zone)[schedule]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from([*SCHEDULES]),
    st.sampled_from(ZONES),
    st.lists(
        st.integers(-3 * 86400, 40 * 86400) | st.integers(-7200, 7200), min_size=1, max_size=40
    ),
)
def test_downtimes_and_clock_jumps_start_the_latest_time_only_and_none_again(
    schedule: str, zone: str, jumps: list[int]
) -> None:
    """INV-CRON-1, INV-CRON-2: whenever it is asked, in any order of times."""
    known = slow_times(zone)[schedule]
    now = BEGIN + timedelta(days=800)
    controller = Controller(cronjob(schedule, created=now, timeZone=zone))
    handled = now
    for seconds in jumps:
        now += timedelta(seconds=seconds)
        before = len(controller.started)
        controller.reconcile(now)
        found = bisect_right(known, now)
        latest = known[found - 1] if found else BEGIN
        expected = [latest] if latest > handled else []
        handled = max([handled, *expected])
        assert controller.started[before:] == expected
