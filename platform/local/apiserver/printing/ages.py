"""Human-readable ages for tables."""

from datetime import datetime

from ....model import times

UNKNOWN = "<unknown>"

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_YEAR = 365 * _DAY


def age(timestamp: str | None, now: datetime) -> str:
    """Return the age of an RFC 3339 time; a missing or malformed one is ``<unknown>``."""
    if not timestamp:
        return UNKNOWN
    try:
        return duration((now - times.parse(timestamp)).total_seconds())
    except ValueError:
        return UNKNOWN


def duration(seconds: float) -> str:
    """Return a duration in at most two units, the smaller one only while it is significant."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 2 * _MINUTE:
        return f"{max(whole, 0)}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", (1, "s"))
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", (_MINUTE, "m"))
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", (_HOUR, "h"))
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        return _two(whole, _YEAR, "y", (_DAY, "d"))
    return f"{whole // _YEAR}y"


def _two(seconds: int, unit: int, name: str, finer: tuple[int, str]) -> str:
    rest = seconds % unit // finer[0]
    return f"{seconds // unit}{name}" + (f"{rest}{finer[1]}" if rest else "")
