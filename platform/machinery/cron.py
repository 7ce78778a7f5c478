"""Cron schedules: grammar and times of robfig/cron's standard parser, as Kubernetes uses it.

A schedule is five fields (minute, hour, day of month, month, day of week), a descriptor such as
``@daily``, or ``@every <duration>``. Its *times* are the instants at which a clock of its time zone
shows a matching minute: a local time skipped by daylight saving is left out, a repeated one occurs
twice. The day rule: if day of month or day of week is a star, both must match, otherwise either.
A prefix ``TZ=`` or ``CRON_TZ=`` is parsed; validators reject it (:func:`mentions_time_zone`).

All instants are aware datetimes; results are in UTC. The work per call is bounded for any schedule
and any interval.
"""

import os
import re
from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from ..model import durations

TOO_MANY_MISSED = 100
"""Missed times above which Kubernetes warns of a clock that is wrong or a controller that was down
for long."""

SEARCH_YEARS = 5
"""Calendar years after the current one in which the next time is searched."""

_MICROSECOND, _SECOND, _MINUTE = (
    timedelta(microseconds=1),
    timedelta(seconds=1),
    timedelta(minutes=1),
)
_EARLIEST, _LATEST = datetime(2, 1, 1, tzinfo=UTC), datetime(9990, 1, 1, tzinfo=UTC)
"""Between them local times can be computed."""
_MAX_SHIFT = timedelta(hours=25)
"""More than any zone has ever turned its clock back."""

_STAR = 1 << 63
"""Bit of a field with a plain star."""


class ScheduleError(ValueError):
    """The text is not a schedule."""

    def __init__(self, reason: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.reason = reason
        """The error without the field: the message of kube-apiserver."""
        self.field = field
        """``minute``, ``hour``, ``day of month``, ``month`` or ``day of week``; empty if the error
        is not in one field."""


class UnknownTimeZoneError(ValueError):
    """The time zone is not in the database."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown time zone {name}")


class Schedule(Protocol):
    """A parsed schedule."""

    def next(self, after: datetime) -> datetime | None:
        """Return the first time strictly after *after*; None if there is none in some years."""
        ...

    def missed(self, since: datetime, until: datetime) -> "Missed | None":
        """Return the times after *since* up to and including *until*; None if there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Missed:
    """The times of a schedule in an interval."""

    latest: datetime
    """The last one."""
    too_many: bool
    """Whether there are more than :data:`TOO_MANY_MISSED`. The times of an hour that a clock change
    skips or repeats may be counted or not."""


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """A schedule of five fields: one bit per value, and :data:`_STAR`."""

    minute: int
    hour: int
    day_of_month: int
    month: int
    day_of_week: int
    zone: tzinfo

    def next(self, after: datetime) -> datetime | None:
        """Return the first time strictly after *after*; None if there is none in some years."""
        start = _clamp(after).astimezone(self.zone)
        local = _next_full_minute(start)
        ahead = (start.astimezone(UTC) + _MAX_SHIFT).astimezone(self.zone)
        if _offset(ahead) < _offset(start):
            # The clock will be turned back: local times before *local* will occur again.
            change = _first_change(start, ahead)
            found = self._first_instant(local, start)
            if found is not None and found < change:
                return found
            start = (change - _MICROSECOND).astimezone(self.zone)
            local = _next_full_minute(change.astimezone(self.zone), inclusive=True)
        return self._first_instant(local, start)

    def missed(self, since: datetime, until: datetime) -> Missed | None:
        """Return the times after *since* up to and including *until*; None if there are none."""
        since, until = _clamp(since), _clamp(until)
        first = self.next(since)
        if first is None or first > until:
            return None
        second = self.next(first)
        if second is None or second > until:
            return Missed(first, too_many=False)
        too_many = self._count_local(since, until) > TOO_MANY_MISSED
        return Missed(self._latest(second, until), too_many)

    def _count_local(self, since: datetime, until: datetime) -> int:
        """Count the local times in the interval, up to one more than :data:`TOO_MANY_MISSED`."""
        last = until.astimezone(self.zone).replace(tzinfo=None)
        found = self._next_local(_next_full_minute(since.astimezone(self.zone)), last.year)
        count = 0
        while found is not None and found <= last and count <= TOO_MANY_MISSED:
            count += 1
            found = self._next_local(found + _MINUTE, last.year)
        return count

    def _latest(self, low: datetime, high: datetime) -> datetime:
        """Return the last time up to *high*; *low* is an earlier one."""
        latest, unmatched_from = low, high + _SECOND
        while unmatched_from - low > _SECOND:  # no time in [unmatched_from, high]
            middle = low + (unmatched_from - low) / 2
            found = self.next(middle)
            if found is not None and found <= high:
                low = latest = found
            else:
                unmatched_from = middle
        return latest

    def _first_instant(self, local: datetime, after: datetime) -> datetime | None:
        """Return the first instant after *after* whose local time matches, from *local* on."""
        limit = local.year + SEARCH_YEARS
        found = self._next_local(local, limit)
        while found is not None:
            for fold in (0, 1):
                instant = found.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)
                exists = instant.astimezone(self.zone).replace(tzinfo=None) == found
                if exists and instant > after:
                    return instant
            found = self._next_local(found + _MINUTE, limit)
        return None

    def _next_local(self, start: datetime, limit: int) -> datetime | None:
        """Return the first matching local time from *start* (a full minute) to the year *limit*."""
        minutes = _first_bit(self.minute, start.minute)
        if minutes is not None and self._matches_hour(start):
            return start.replace(minute=minutes)
        lowest_minute = _first_bit(self.minute, 0)
        if lowest_minute is None:
            return None
        hour = _first_bit(self.hour, start.hour + 1)
        if hour is not None and self._matches_day(start):
            return start.replace(hour=hour, minute=lowest_minute)
        lowest_hour = _first_bit(self.hour, 0)
        if lowest_hour is None:
            return None
        year, month, day = start.year, start.month, start.day + 1
        while year <= limit:
            if self.month >> month & 1:
                found = _first_bit(self._days(year, month), day)
                if found is not None:
                    return datetime(year, month, found, lowest_hour, lowest_minute)
            year, month, day = (year + 1, 1, 1) if month == 12 else (year, month + 1, 1)
        return None

    def _matches_hour(self, local: datetime) -> bool:
        return bool(self.hour >> local.hour & 1) and self._matches_day(local)

    def _matches_day(self, local: datetime) -> bool:
        in_month = self.month >> local.month & 1
        return bool(in_month and self._days(local.year, local.month) >> local.day & 1)

    def _days(self, year: int, month: int) -> int:
        """Return the matching days of a month, one bit each."""
        return _matching_days(self.day_of_month, self.day_of_week, year, month)


@lru_cache(maxsize=8192)
def _matching_days(day_of_month: int, day_of_week: int, year: int, month: int) -> int:
    first_weekday, length = monthrange(year, month)
    all_days = (1 << length + 1) - 2  # bit 1 is the first of the month
    by_date = day_of_month & all_days
    first = (first_weekday + 1) % 7  # monthrange counts from Monday, cron from Sunday
    week = day_of_week & 0x7F
    week = (week >> first | week << 7 - first) & 0x7F
    by_weekday = (week * _WEEKS << 1) & all_days
    both = (day_of_month | day_of_week) & _STAR
    return by_date & by_weekday if both else by_date | by_weekday


_WEEKS = sum(1 << 7 * week for week in range(5))
"""Repeats seven bits for each week of a month."""


@dataclass(frozen=True, slots=True)
class EverySchedule:
    """``@every``: at a fixed interval from the reference time, without regard to the clock."""

    interval: timedelta
    """Whole seconds, at least one."""

    def next(self, after: datetime) -> datetime | None:
        """Return *after* in whole seconds plus the interval; None after the last year."""
        try:
            return after.astimezone(UTC).replace(microsecond=0) + self.interval
        except OverflowError:
            return None

    def missed(self, since: datetime, until: datetime) -> Missed | None:
        """Return the times after *since* up to and including *until*; None if there are none."""
        start = since.astimezone(UTC).replace(microsecond=0)
        count = (until - start) // self.interval
        if count < 1:
            return None
        return Missed(start + count * self.interval, count > TOO_MANY_MISSED)


@dataclass(frozen=True, slots=True)
class _Field:
    """Range and names of a field."""

    name: str
    low: int
    high: int
    names: Mapping[str, int]


def _numbered(names: str, start: int) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split(), start)}


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _numbered("jan feb mar apr may jun jul aug sep oct nov dec", 1)),
    _Field("day of week", 0, 6, _numbered("sun mon tue wed thu fri sat", 0)),
)
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
_SPACES = re.compile(r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
"""What Go regards as white space."""
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MAX_DIGITS = 18
"""More overflow an integer of Go, nearly."""


@lru_cache(maxsize=8192)
def parse(text: str, zone: tzinfo = UTC) -> Schedule:
    """Parse a schedule for the local time of *zone*, unless the text has a time zone, too.

    Raises:
        ScheduleError: the text is not a schedule.
    """
    if not text:
        raise ScheduleError("empty spec string")
    if text.startswith(("TZ=", "CRON_TZ=")):
        name, separator, rest = text.partition("=")[2].partition(" ")
        if not separator:
            raise ScheduleError("no schedule after the time zone")
        try:
            zone = local_time_zone() if name == "Local" else load_time_zone(name or "UTC")
        except UnknownTimeZoneError as error:
            raise ScheduleError(f"provided bad location {name}: {error}") from error
        text = _strip(rest)
    if text.startswith("@"):
        return _parse_descriptor(text, zone)
    fields = [each for each in _SPACES.split(text) if each]
    if len(fields) != len(_FIELDS):
        found = " ".join(fields)
        raise ScheduleError(f"expected exactly 5 fields, found {len(fields)}: [{found}]")
    bits = [_parse_field(each, field) for each, field in zip(fields, _FIELDS, strict=True)]
    minute, hour, day_of_month, month, day_of_week = bits
    return CronSchedule(minute, hour, day_of_month, month, day_of_week, zone)


def _parse_descriptor(text: str, zone: tzinfo) -> Schedule:
    if text in _DESCRIPTORS:
        return parse(_DESCRIPTORS[text], zone)
    if not text.startswith(_EVERY):
        raise ScheduleError(f"unrecognized descriptor: {text}")
    try:
        interval = durations.parse(text.removeprefix(_EVERY))
    except durations.DurationError as error:
        raise ScheduleError(f"failed to parse duration {text}: {error}") from error
    return EverySchedule(max(interval // _SECOND, 1) * _SECOND)


def _parse_field(text: str, field: _Field) -> int:
    bits = 0
    for item in text.split(","):
        if item:  # empty items are ignored; a field without any item never matches
            bits |= _parse_range(item, field)
    return bits


def _parse_range(text: str, field: _Field) -> int:
    """Return the bits of ``*``, ``?``, ``n`` or ``a-b``, each with an optional ``/step``."""
    span, *steps = text.split("/")
    low, *highs = span.split("-")
    star = low in ("*", "?")
    if star:
        start, end = field.low, field.high
    else:
        start = _parse_value(low, field)
        if len(highs) > 1:
            raise ScheduleError(f"too many hyphens: {text}", field=field.name)
        end = _parse_value(highs[0], field) if highs else start
    if len(steps) > 1:
        raise ScheduleError(f"too many slashes: {text}", field=field.name)
    step = _parse_number(steps[0], field) if steps else 1
    if steps and not highs:
        end = field.high
    problem = _range_problem(start, end, field)
    if not problem and step == 0:
        problem = "step of range should be a positive number"
    if problem:
        raise ScheduleError(f"{problem}: {text}", field=field.name)
    bits = sum(1 << value for value in range(start, end + 1, step))
    return bits | _STAR if star and step == 1 else bits


def _range_problem(start: int, end: int, field: _Field) -> str:
    if start < field.low:
        return f"beginning of range ({start}) below minimum ({field.low})"
    if end > field.high:
        return f"end of range ({end}) above maximum ({field.high})"
    if start > end:
        return f"beginning of range ({start}) beyond end of range ({end})"
    return ""


def _parse_value(text: str, field: _Field) -> int:
    number = field.names.get(text.lower())
    return _parse_number(text, field) if number is None else number


def _parse_number(text: str, field: _Field) -> int:
    problem = ""
    if not _NUMBER.fullmatch(text):
        problem = "invalid syntax"
    elif len(text.lstrip("+-0")) > _MAX_DIGITS:
        problem = "value out of range"
    if problem:
        cause = f'strconv.Atoi: parsing "{text}": {problem}'
        raise ScheduleError(f"failed to parse int from {text}: {cause}", field=field.name)
    if int(text) < 0:
        raise ScheduleError(f"negative number ({int(text)}) not allowed: {text}", field=field.name)
    return int(text)


def _strip(text: str) -> str:
    return _SPACES.sub(" ", text).strip(" ")


# Time zones


def mentions_time_zone(schedule: str) -> bool:
    """Return whether a schedule contains ``TZ``, which validators reject."""
    return "TZ" in schedule


class TimeZoneProblem(Enum):
    """Why a validator rejects a time zone."""

    EMPTY = "empty"
    MALFORMED = "malformed"
    """It is not a path of names that the database may have."""
    LOCAL = "local"
    """It names the local time of a process."""
    UNKNOWN = "unknown"


_ZONE_SEGMENT = re.compile(r"[A-Za-z.\-_0-9+]{1,14}", re.ASCII)


def time_zone_problem(name: str) -> TimeZoneProblem | None:
    """Return what is wrong with a ``timeZone``, in the order of Kubernetes' checks."""
    if not name:
        return TimeZoneProblem.EMPTY
    for segment in name.split("/"):
        known = segment not in (".", "..") and not segment.startswith("-")
        if not known or not _ZONE_SEGMENT.fullmatch(segment):
            return TimeZoneProblem.MALFORMED
    if name.lower() == "local":
        return TimeZoneProblem.LOCAL
    try:
        load_time_zone(name)
    except UnknownTimeZoneError:
        return TimeZoneProblem.UNKNOWN
    return None


@lru_cache(maxsize=1024)
def load_time_zone(name: str) -> tzinfo:
    """Return the time zone of the database.

    Raises:
        UnknownTimeZoneError: there is none.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:  # also directories and other files
        raise UnknownTimeZoneError(name) from error


def local_time_zone() -> tzinfo:
    """Return the time zone of this process: ``TZ``, or ``/etc/localtime``, or UTC."""
    name = os.environ.get("TZ")
    if name is not None:
        try:
            return load_time_zone(name.removeprefix(":") or "UTC")
        except UnknownTimeZoneError:
            return UTC
    try:
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return UTC


def _first_bit(bits: int, start: int) -> int | None:
    """Return the lowest set bit from *start* on, except :data:`_STAR`."""
    rest = (bits & ~_STAR) >> start
    return (rest & -rest).bit_length() - 1 + start if rest else None


def _offset(moment: datetime) -> timedelta:
    return moment.utcoffset() or timedelta()


def _clamp(moment: datetime) -> datetime:
    """Return *moment*, or the nearest for which local times can be computed."""
    return min(max(moment, _EARLIEST), _LATEST)


def _next_full_minute(moment: datetime, *, inclusive: bool = False) -> datetime:
    """Return the first full minute after *moment* (or at it) on its own clock, without a zone."""
    minute = moment.replace(tzinfo=None, second=0, microsecond=0)
    return minute if inclusive and minute == moment.replace(tzinfo=None) else minute + _MINUTE


def _first_change(start: datetime, end: datetime) -> datetime:
    """Return the first second in which the UTC offset differs from that of *start*, as in *end*."""
    low, high = (each.astimezone(UTC).replace(microsecond=0) for each in (start, end))
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if _offset(middle.astimezone(start.tzinfo)) == _offset(start):
            low = middle
        else:
            high = middle
    return high
