"""Durations and timestamps are parsed and formatted as in Go and Kubernetes."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.model import durations, times
from batholith.model.durations import DurationError
from batholith.model.times import TimeError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("-2s", -2),
        ("+2s", 2),
        ("300ms", 0.3),
        (".5s", 0.5),
        ("1.s", 1),
        ("2us3µs4μs", 0.000009),
        ("1999ns", 0.000001),
        ("1m1m", 120),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert durations.parse(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "invalid"),
        ("-", "invalid"),
        ("5", "missing unit"),
        ("5 m", "unknown unit"),
        ("3d", "unknown unit"),
        ("s", "invalid"),
        ("1..5s", "missing unit"),
        ("300000h999999999h", "invalid"),
        ("1" * 200 + "s", "invalid"),
    ],
)
def test_malformed_durations_are_rejected(text: str, why: str) -> None:
    with pytest.raises(DurationError, match=why):
        durations.parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (3605, "1h0m5s"),
        (90, "1m30s"),
        (60, "1m0s"),
        (1.5, "1.5s"),
        (0.02, "20ms"),
        (0.0015, "1.5ms"),
        (0.000007, "7µs"),
        (-62.25, "-1m2.25s"),
    ],
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert durations.format(timedelta(seconds=seconds)) == text


@given(st.timedeltas(timedelta(days=-9999), timedelta(days=9999)))
def test_durations_round_trip(duration: timedelta) -> None:
    assert durations.parse(durations.format(duration)) == duration


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-08-01T10:20:30Z", datetime(2026, 8, 1, 10, 20, 30, tzinfo=UTC)),
        ("2026-08-01T10:20:30.5Z", datetime(2026, 8, 1, 10, 20, 30, 500_000, tzinfo=UTC)),
        ("2026-08-01t10:20:30.123456789z", datetime(2026, 8, 1, 10, 20, 30, 123_456, tzinfo=UTC)),
        ("2026-08-01T10:20:30+02:00", datetime(2026, 8, 1, 8, 20, 30, tzinfo=UTC)),
    ],
)
def test_timestamps_are_parsed_to_utc(text: str, moment: datetime) -> None:
    read = times.parse(text)
    assert read == moment
    assert read.utcoffset() == timedelta()
    assert times.known(text) == moment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-08-01",
        "2026-08-01T10:20:30",
        "20260801T102030Z",
        "2026-02-30T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
    ],
)
def test_malformed_timestamps_are_rejected(text: str) -> None:
    with pytest.raises(TimeError):
        times.parse(text)


@pytest.mark.parametrize(
    "text", [None, "", "2026-08-01", "2026-08-01T10:20:30", "0001-01-01T00:00:00+01:00", "\0"]
)
def test_what_is_no_time_is_unknown(text: str | None) -> None:
    assert times.known(text) is None


def test_timestamps_are_formatted_in_utc() -> None:
    moment = datetime(2026, 8, 1, 10, 20, 30, 45, tzinfo=timezone(timedelta(hours=2)))
    assert times.format(moment) == "2026-08-01T08:20:30Z"
    assert times.format_micros(moment) == "2026-08-01T08:20:30.000045Z"
    with pytest.raises(ValueError, match="zone"):
        times.format(moment.replace(tzinfo=None))


@given(st.datetimes(timezones=st.just(UTC)))
def test_timestamps_round_trip(moment: datetime) -> None:
    assert times.parse(times.format_micros(moment)) == moment
    assert times.parse(times.format(moment)) == moment.replace(microsecond=0)
