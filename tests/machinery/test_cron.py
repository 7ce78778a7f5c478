"""Cron schedules against tables and against a walk from minute to minute."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.machinery import cron
from batholith.machinery.cron import ScheduleError, TimeZoneProblem

NEW_YORK, SAO_PAULO = ZoneInfo("America/New_York"), ZoneInfo("America/Sao_Paulo")
NOW = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def next_local(schedule: str, after: str, zone: tzinfo = UTC) -> str | None:
    """The next time as its zone's clock shows it."""
    found = cron.parse(schedule, zone).next(at(after))
    return None if found is None else found.astimezone(zone).isoformat()


# The reference: every minute is checked.


@dataclass
class SlowSchedule:
    """Sets of values, and whether both day fields must match."""

    values: list[set[int]]
    both_days: bool

    def matches(self, local: datetime) -> bool:
        minute, hour, day, month, weekday = self.values
        in_month = local.month in month and local.hour in hour and local.minute in minute
        by_date, by_weekday = local.day in day, local.isoweekday() % 7 in weekday
        fits = by_date and by_weekday if self.both_days else by_date or by_weekday
        return in_month and fits and local.second == 0


BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def slow_parse(text: str) -> SlowSchedule:
    """Parse fields without names."""
    values, stars = [], []
    for field, (low, high) in zip(text.split(), BOUNDS, strict=True):
        found: set[int] = set()
        star = False
        for item in field.split(","):
            span, _, step = item.partition("/")
            begin, _, end = span.partition("-")
            if span in ("*", "?"):
                begin, end, star = str(low), str(high), star or step in ("", "1")
            if not end:
                end = str(high) if step else begin
            found |= set(range(int(begin), int(end) + 1, int(step or 1)))
        values.append(found)
        stars.append(star)
    return SlowSchedule(values, both_days=stars[2] or stars[4])


def slow_times(text: str, zone: tzinfo, after: datetime, until: datetime) -> Iterator[datetime]:
    schedule = slow_parse(text)
    minute = after.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    while minute <= until:
        if schedule.matches(minute.astimezone(zone)):
            yield minute
        minute += timedelta(minutes=1)


def times(text: str, zone: tzinfo, after: datetime, until: datetime) -> Iterator[datetime]:
    schedule = cron.parse(text, zone)
    found = schedule.next(after)
    while found is not None and found <= until:
        yield found
        found = schedule.next(found)


# Times.


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00"),
        ("* * * * *", "2026-01-01T00:00:59.999999+00:00", "2026-01-01T00:01:00+00:00"),
        ("? ? ? ? ?", "2026-12-31T23:59:30+00:00", "2027-01-01T00:00:00+00:00"),
        ("*/15 * * * *", "2026-01-01T00:45:00+00:00", "2026-01-01T01:00:00+00:00"),
        ("5/20 * * * *", "2026-01-01T00:45:00+00:00", "2026-01-01T01:05:00+00:00"),
        ("10-20/5 * * * *", "2026-01-01T00:15:00+00:00", "2026-01-01T00:20:00+00:00"),
        ("0 0 * FEB *", "2026-03-01T00:00:00+00:00", "2027-02-01T00:00:00+00:00"),
        ("0 0 * * Sun", "2026-11-22T00:00:00+00:00", "2026-11-29T00:00:00+00:00"),
        ("0 9 * * mon-fri", "2026-11-20T09:00:00+00:00", "2026-11-23T09:00:00+00:00"),
        ("0,30 1,2,,3 * * *", "2026-11-20T01:30:00+00:00", "2026-11-20T02:00:00+00:00"),
        ("*-5 * * * *", "2026-11-20T01:30:00+00:00", "2026-11-20T01:31:00+00:00"),
        ("+5 05 * * *", "2026-11-20T01:30:00+00:00", "2026-11-20T05:05:00+00:00"),
        # Leap years.
        ("0 0 29 2 *", "2026-11-22T00:00:00+00:00", "2028-02-29T00:00:00+00:00"),
        ("0 0 29 2 *", "2096-02-29T00:00:00+00:00", None),  # 2104 is too far away
        ("0 0 31 * *", "2026-11-22T00:00:00+00:00", "2026-12-31T00:00:00+00:00"),
        # Dates that do not exist.
        ("0 0 30 2 *", "2026-11-22T00:00:00+00:00", None),
        ("0 0 31 4,6,9,11 *", "2026-11-22T00:00:00+00:00", None),
        (", * * * *", "2026-11-22T00:00:00+00:00", None),
        ("* , * * *", "2026-11-22T00:00:00+00:00", None),
        # Descriptors.
        ("@yearly", "2026-11-22T14:30:05+00:00", "2027-01-01T00:00:00+00:00"),
        ("@annually", "2026-11-22T14:30:05+00:00", "2027-01-01T00:00:00+00:00"),
        ("@monthly", "2026-11-22T14:30:05+00:00", "2026-12-01T00:00:00+00:00"),
        ("@weekly", "2026-11-22T14:30:05+00:00", "2026-11-29T00:00:00+00:00"),
        ("@daily", "2026-11-22T14:30:05+00:00", "2026-11-23T00:00:00+00:00"),
        ("@midnight", "2026-11-22T14:30:05+00:00", "2026-11-23T00:00:00+00:00"),
        ("@hourly", "2026-11-22T14:30:05+00:00", "2026-11-22T15:00:00+00:00"),
        ("@every 1h30m", "2026-11-22T14:30:05.5+00:00", "2026-11-22T16:00:05+00:00"),
        ("@every 1.7s", "2026-11-22T14:30:05+00:00", "2026-11-22T14:30:06+00:00"),
        ("@every 10ms", "2026-11-22T14:30:05+00:00", "2026-11-22T14:30:06+00:00"),
        ("@every -5m", "2026-11-22T14:30:05+00:00", "2026-11-22T14:30:06+00:00"),
        # The ends of time.
        ("* * * * *", "0001-01-01T00:00:00+00:00", "0002-01-01T00:01:00+00:00"),
        ("* * * * *", "9999-12-31T23:59:59+00:00", "9990-01-01T00:01:00+00:00"),
        ("@every 1h", "9999-12-31T23:59:59+00:00", None),
        # A zone in the text.
        ("TZ=Europe/Berlin 0 6 * * *", "2026-07-01T00:00:00+00:00", "2026-07-01T04:00:00+00:00"),
        ("CRON_TZ=UTC   @daily", "2026-07-01T01:00:00+00:00", "2026-07-02T00:00:00+00:00"),
        ("TZ= 0 6 * * *", "2026-07-01T00:00:00+00:00", "2026-07-01T06:00:00+00:00"),
    ],
)
def test_next_time(schedule: str, after: str, expected: str | None) -> None:
    assert next_local(schedule, after) == expected


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("0 0 13 * 5", ["2026-02-06", "2026-02-13", "2026-02-20", "2026-02-27", "2026-03-06"]),
        ("0 0 13 * *", ["2026-02-13", "2026-03-13"]),
        ("0 0 * * 5", ["2026-02-06", "2026-02-13"]),
        ("0 0 */1 * 5", ["2026-02-06", "2026-02-13"]),
        ("0 0 */2 * 5", ["2026-02-01", "2026-02-03", "2026-02-05", "2026-02-06", "2026-02-07"]),
        ("0 0 13 * */3", ["2026-02-01", "2026-02-04", "2026-02-07", "2026-02-08"]),
        ("0 0 13,* * 5", ["2026-02-06", "2026-02-13"]),
        ("0 0 13 * 1,?", ["2026-02-13", "2026-03-13"]),
        ("0 0 1-31 * 5", ["2026-02-01", "2026-02-02", "2026-02-03"]),
    ],
)
def test_either_day_field_suffices_unless_one_is_a_star(schedule: str, expected: list[str]) -> None:
    """The month begins with a Sunday."""
    found = times(schedule, UTC, at("2026-01-31T12:00:00+00:00"), at("2026-04-01T00:00:00+00:00"))
    assert [f"{next(found):%Y-%m-%d}" for _ in expected] == expected


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        # The clock is put forward: 02:00 to 03:00 is skipped.
        ("0 2 * * *", "2012-03-11T00:00:00-05:00", "2012-03-12T02:00:00-04:00"),
        ("30 2 11 3 *", "2012-03-11T00:00:00-05:00", "2013-03-11T02:30:00-04:00"),
        ("0 * * * *", "2012-03-11T01:00:00-05:00", "2012-03-11T03:00:00-04:00"),
        ("*/20 * * * *", "2012-03-11T01:40:00-05:00", "2012-03-11T03:00:00-04:00"),
        ("0 3 * * *", "2012-03-11T00:00:00-05:00", "2012-03-11T03:00:00-04:00"),
        # The clock is put back: 01:00 to 02:00 is repeated.
        ("30 2 4 11 *", "2012-11-04T00:00:00-04:00", "2012-11-04T02:30:00-05:00"),
        ("0 * * * *", "2012-11-04T00:00:00-04:00", "2012-11-04T01:00:00-04:00"),
        ("0 * * * *", "2012-11-04T01:00:00-04:00", "2012-11-04T01:00:00-05:00"),
        ("0 * * * *", "2012-11-04T01:00:00-05:00", "2012-11-04T02:00:00-05:00"),
        ("30 1 * * *", "2012-11-04T00:00:00-04:00", "2012-11-04T01:30:00-04:00"),
        ("30 1 * * *", "2012-11-04T01:30:00-04:00", "2012-11-04T01:30:00-05:00"),
        ("30 1 * * *", "2012-11-04T01:45:00-04:00", "2012-11-04T01:30:00-05:00"),
        ("30 1 * * *", "2012-11-04T01:30:00-05:00", "2012-11-05T01:30:00-05:00"),
    ],
)
def test_times_when_the_clock_is_changed(schedule: str, after: str, expected: str) -> None:
    assert next_local(schedule, after, NEW_YORK) == expected


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("0 0 * * *", "2018-11-05T00:00:00-02:00"),
        ("0 1 * * *", "2018-11-04T01:00:00-02:00"),
        ("0 9 4 11 *", "2018-11-04T09:00:00-02:00"),
        ("0 5 3 11 *", "2019-11-03T05:00:00-03:00"),
    ],
)
def test_a_skipped_midnight_does_not_affect_the_rest_of_the_day(
    schedule: str, expected: str
) -> None:
    assert next_local(schedule, "2018-11-03T06:00:00-03:00", SAO_PAULO) == expected


def test_a_day_that_a_country_skipped_has_no_times() -> None:
    found = next_local("0 12 * * *", "2011-12-29T12:00:00-10:00", ZoneInfo("Pacific/Apia"))
    assert found == "2011-12-31T12:00:00+14:00"


# Errors.


@pytest.mark.parametrize(
    ("schedule", "field", "reason"),
    [
        ("", "", "empty spec string"),
        (" ", "", "expected exactly 5 fields, found 0: []"),
        ("* * * *", "", "expected exactly 5 fields, found 4: [* * * *]"),
        ("0 0 * * * *", "", "expected exactly 5 fields, found 6: [0 0 * * * *]"),
        ("60 * * * *", "minute", "end of range (60) above maximum (59): 60"),
        ("* 24 * * *", "hour", "end of range (24) above maximum (23): 24"),
        ("* * 0 * *", "day of month", "beginning of range (0) below minimum (1): 0"),
        ("* * 32 * *", "day of month", "end of range (32) above maximum (31): 32"),
        ("* * * 13 *", "month", "end of range (13) above maximum (12): 13"),
        ("* * * * 7", "day of week", "end of range (7) above maximum (6): 7"),
        ("* * * * 5-1", "day of week", "beginning of range (5) beyond end of range (1): 5-1"),
        (
            "* * * * fri-mon",
            "day of week",
            "beginning of range (5) beyond end of range (1): fri-mon",
        ),
        ("*/0 * * * *", "minute", "step of range should be a positive number: */0"),
        ("1-2-3 * * * *", "minute", "too many hyphens: 1-2-3"),
        ("1/2/3 * * * *", "minute", "too many slashes: 1/2/3"),
        (
            "x * * * *",
            "minute",
            'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax',
        ),
        (
            "-5 * * * *",
            "minute",
            'failed to parse int from : strconv.Atoi: parsing "": invalid syntax',
        ),
        (
            "* * jan * *",
            "day of month",
            'failed to parse int from jan: strconv.Atoi: parsing "jan": invalid syntax',
        ),
        (
            "* * * january *",
            "month",
            'failed to parse int from january: strconv.Atoi: parsing "january": invalid syntax',
        ),
        (
            "٣ * * * *",
            "minute",
            'failed to parse int from ٣: strconv.Atoi: parsing "٣": invalid syntax',
        ),
        ("*/-1 * * * *", "minute", "negative number (-1) not allowed: -1"),
        (
            f"{'9' * 5000} * * * *",
            "minute",
            f"failed to parse int from {'9' * 5000}: "
            f'strconv.Atoi: parsing "{"9" * 5000}": value out of range',
        ),
        ("@Daily", "", "unrecognized descriptor: @Daily"),
        ("@every", "", "unrecognized descriptor: @every"),
        ("@daily ", "", "unrecognized descriptor: @daily "),
        ("@every x", "", 'failed to parse duration @every x: time: invalid duration "x"'),
        ("TZ=UTC", "", "no schedule after the time zone"),
        ("TZ=Nowhere * * * * *", "", "provided bad location Nowhere: unknown time zone Nowhere"),
    ],
)
def test_errors_name_the_field(schedule: str, field: str, reason: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        cron.parse(schedule)
    assert (caught.value.field, caught.value.reason) == (field, reason)
    assert str(caught.value) == (f"{field}: {reason}" if field else reason)


@given(
    st.text(alphabet="0123456789*?/-, @TZ=every\tjanmo\u00a0", max_size=30) | st.text(max_size=30)
)
def test_any_text_is_a_schedule_or_an_error(text: str) -> None:
    try:
        schedule = cron.parse(text)
    except ScheduleError:
        return
    found = schedule.next(NOW)
    assert found is None or found > NOW


# Time zones.


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("UTC", None),
        ("Etc/UTC", None),
        ("Europe/Berlin", None),
        ("America/Argentina/Buenos_Aires", None),
        ("Etc/GMT+5", None),
        ("", TimeZoneProblem.EMPTY),
        ("Local", TimeZoneProblem.LOCAL),
        ("LOCAL", TimeZoneProblem.LOCAL),
        ("../etc/passwd", TimeZoneProblem.MALFORMED),
        ("Europe/./Berlin", TimeZoneProblem.MALFORMED),
        ("/etc/localtime", TimeZoneProblem.MALFORMED),
        ("Europe//Berlin", TimeZoneProblem.MALFORMED),
        ("Europe/-Berlin", TimeZoneProblem.MALFORMED),
        ("Europe/Berlin\n", TimeZoneProblem.MALFORMED),
        ("Europe/ABCDEFGHIJKLMNO", TimeZoneProblem.MALFORMED),
        ("Europe", TimeZoneProblem.UNKNOWN),
        ("Europe/Atlantis", TimeZoneProblem.UNKNOWN),
        ("zone.tab", TimeZoneProblem.UNKNOWN),
    ],
)
def test_time_zones_are_checked_as_kubernetes_does(
    name: str, problem: TimeZoneProblem | None
) -> None:
    assert cron.time_zone_problem(name) is problem


@pytest.mark.parametrize(
    ("schedule", "mentioned"),
    [("0 0 * * *", False), ("TZ=UTC 0 0 * * *", True), ("0 0 * * * TZ", True)],
)
def test_schedules_with_a_time_zone_are_recognized(schedule: str, mentioned: bool) -> None:
    assert cron.mentions_time_zone(schedule) is mentioned


@pytest.mark.parametrize(
    ("variable", "name"),
    [("Asia/Tokyo", "Asia/Tokyo"), (":Asia/Tokyo", "Asia/Tokyo"), ("", "UTC"), ("Nowhere", "UTC")],
)
def test_local_time_is_that_of_the_environment(
    variable: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", variable)
    zone = cron.local_time_zone()
    assert NOW.astimezone(zone).utcoffset() == NOW.astimezone(ZoneInfo(name)).utcoffset()


def test_local_time_without_environment_is_that_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TZ", raising=False)
    assert NOW.astimezone(cron.local_time_zone()).utcoffset() is not None


# Missed times.


@pytest.mark.parametrize(
    ("schedule", "since", "latest", "too_many"),
    [
        ("0 * * * *", "2026-11-22T14:00:00+00:00", None, False),
        ("0 * * * *", "2026-11-22T13:59:59+00:00", "2026-11-22T14:00:00+00:00", False),
        ("30 * * * *", "2026-11-22T13:30:00+00:00", "2026-11-22T14:30:00+00:00", False),
        ("* * * * *", "2026-11-22T12:50:00+00:00", "2026-11-22T14:30:00+00:00", False),
        ("* * * * *", "2026-11-22T12:49:00+00:00", "2026-11-22T14:30:00+00:00", True),
        ("* * * * *", "1970-01-01T00:00:00+00:00", "2026-11-22T14:30:00+00:00", True),
        ("* * 1 1 *", "2020-01-01T00:00:00+00:00", "2026-01-01T23:59:00+00:00", True),
        ("0 0 29 2 *", "2020-01-01T00:00:00+00:00", "2024-02-29T00:00:00+00:00", False),
        ("0 0 30 2 *", "2020-01-01T00:00:00+00:00", None, False),
        ("* * * * *", "2026-11-22T14:30:00+00:00", None, False),
        ("* * * * *", "2030-01-01T00:00:00+00:00", None, False),
        ("@every 7m", "2026-11-22T14:00:30+00:00", "2026-11-22T14:28:30+00:00", False),
        ("@every 1s", "2026-11-22T14:28:20+00:00", "2026-11-22T14:30:00+00:00", False),
        ("@every 1s", "2026-11-22T14:28:19+00:00", "2026-11-22T14:30:00+00:00", True),
        ("@every 1h", "2026-11-22T14:28:20+00:00", None, False),
        ("@every 1h", "2030-01-01T00:00:00+00:00", None, False),
    ],
)
def test_missed_times(schedule: str, since: str, latest: str | None, too_many: bool) -> None:
    missed = cron.parse(schedule).missed(at(since), NOW)
    if latest is None:
        assert missed is None
    else:
        assert missed == cron.Missed(at(latest), too_many)


def test_missed_times_since_ever_until_the_end_of_time() -> None:
    since, until = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    missed = cron.parse("0 0 1 1 *", NEW_YORK).missed(since, until)
    assert missed == cron.Missed(at("9989-01-01T05:00:00+00:00"), too_many=True)
    assert cron.parse("@every 24h").missed(since, until) is not None


# Against the reference.

ZONES = st.sampled_from(
    [
        "UTC",
        "America/New_York",
        "America/Sao_Paulo",
        "America/St_Johns",  # put its clock back at one minute past midnight until 2011
        "Asia/Kathmandu",
        "Australia/Lord_Howe",  # by half an hour
        "Europe/Berlin",
        "Africa/Casablanca",
        "Antarctica/Troll",  # by two hours
        "Pacific/Apia",
        "Pacific/Kwajalein",
    ]
).map(ZoneInfo)


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    span = st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, high).map(lambda number: f"/{number}")
    item = st.one_of(
        st.sampled_from(["*", "*", "?"]),
        value.map(str),
        span,
        st.builds(str.__add__, st.one_of(st.just("*"), span, value.map(str)), step),
    )
    return st.lists(item, min_size=1, max_size=3).map(",".join)


SCHEDULES = st.tuples(
    st.just("*") | _field(0, 59),
    st.just("*") | _field(0, 23),
    st.just("*") | _field(1, 31),
    st.just("*") | _field(1, 12),
    st.just("*") | _field(0, 6),
).map(" ".join)
CHANGES = (  # of the clocks of the zones above
    "2007-11-04T02:31:00+00:00",
    "2010-11-07T02:31:00+00:00",
    "2011-03-13T03:31:00+00:00",
    "2011-12-30T10:00:00+00:00",
    "1993-08-21T12:00:00+00:00",
    "2012-11-04T06:00:00+00:00",
    "2018-02-18T02:00:00+00:00",
    "2018-11-04T03:00:00+00:00",
    "2024-04-06T15:00:00+00:00",
    "2024-10-05T15:30:00+00:00",
    "2026-03-29T01:00:00+00:00",
    "2026-10-25T01:00:00+00:00",
)
INSTANTS = st.builds(
    lambda change, seconds: at(change) + timedelta(seconds=seconds),
    st.sampled_from(CHANGES),
    st.integers(-2 * 86400, 86400),
) | st.datetimes(datetime(1985, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))


@settings(max_examples=examples(150), deadline=None)
@given(SCHEDULES, ZONES, INSTANTS)
@example("0 0 * * *", ZoneInfo("America/St_Johns"), at("2010-11-06T00:00:00+00:00"))
@example("* * * * *", ZoneInfo("Pacific/Apia"), at("2011-12-30T09:00:00+00:00"))
def test_times_are_those_of_the_slow_reference(
    schedule: str, zone: tzinfo, after: datetime
) -> None:
    until = after + timedelta(hours=60)
    expected = slow_times(schedule, zone, after, until)
    for number, (slow, fast) in enumerate(
        zip(expected, times(schedule, zone, after, until), strict=True)
    ):
        assert fast == slow
        if number > 300:  # enough of a dense schedule
            return


@settings(max_examples=examples(60), deadline=None)
@given(SCHEDULES, ZONES, INSTANTS, st.integers(0, 3 * 86400))
def test_missed_times_are_those_of_the_slow_reference(
    schedule: str, zone: tzinfo, since: datetime, seconds: int
) -> None:
    until = since + timedelta(seconds=seconds)
    expected = list(slow_times(schedule, zone, since, until))
    missed = cron.parse(schedule, zone).missed(since, until)
    assert (missed.latest if missed else None) == (expected[-1] if expected else None)
    if missed and len(expected) > cron.TOO_MANY_MISSED + 120:
        assert missed.too_many
    if missed and len(expected) <= cron.TOO_MANY_MISSED - 120:
        assert not missed.too_many


@given(SCHEDULES, INSTANTS)
def test_no_time_within_five_years_means_that_the_date_does_not_exist(
    schedule: str, after: datetime
) -> None:
    if cron.parse(schedule).next(after) is None:
        days, months = slow_parse(schedule).values[2:4]
        assert min(days) > 28, schedule
        assert months <= {2, 4, 6, 9, 11}


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("schedule", "zone"),
    [
        ("*/7 * * * *", "Europe/Berlin"),
        ("30 1,2 * * *", "America/New_York"),
        ("0 0 13,29-31 */2 5", "America/Sao_Paulo"),
        ("59 23 29 2 1-5", "Australia/Lord_Howe"),
        ("0 */5 * * 0", "Africa/Casablanca"),
    ],
)
def test_ten_years_of_a_schedule(schedule: str, zone: str) -> None:
    begin = at("2010-01-01T00:00:00+00:00")
    end = begin.replace(year=2020)
    found = times(schedule, ZoneInfo(zone), begin, end)
    assert list(found) == list(slow_times(schedule, ZoneInfo(zone), begin, end))


def test_every_visits_all_times() -> None:
    found = times("@every 61m", UTC, NOW, NOW + timedelta(days=2))
    assert [*found] == [NOW + timedelta(minutes=61) * number for number in range(1, 48)]


def test_fields_are_separated_by_what_go_regards_as_white_space() -> None:
    assert next_local("0\u00a00\t*\u3000* \x85*", "2026-11-22T14:30:05+00:00") == (
        "2026-11-23T00:00:00+00:00"
    )
    with pytest.raises(ScheduleError, match=re.escape("found 1")):
        cron.parse("0\x1c0\x1c*\x1c*\x1c*")
