"""Durations in Go's notation (``1h30m``, ``1.5s``), as Kubernetes objects carry them, and as
kubectl shows them to users."""

import re
from datetime import timedelta

_UNITS = {  # in nanoseconds
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_TERM = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)", re.ASCII)
_MAX_NANOSECONDS = 2**63 - 1
_MAX_LENGTH = 128
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


class DurationError(ValueError):
    """The text is not a duration in Go's notation."""


def parse(text: str) -> timedelta:
    """Parse a duration, truncated to microseconds.

    Raises:
        DurationError: the text lacks a number, has no or an unknown unit, or exceeds 292 years.
    """
    sign, rest = (text[0], text[1:]) if text[:1] in ("-", "+") else ("", text)
    if rest == "0":
        return timedelta()
    if not rest or len(rest) > _MAX_LENGTH:
        raise DurationError(f'time: invalid duration "{text}"')
    nanos = 0
    while rest:
        term = _TERM.match(rest)
        whole, fraction, unit = term.groups(default="") if term else ("", "", "")
        nanos += _term_nanoseconds(text, number=whole + fraction, decimals=len(fraction), unit=unit)
        rest = rest[term.end() if term else len(rest) :]
    if nanos > _MAX_NANOSECONDS:
        raise DurationError(f'time: invalid duration "{text}"')
    micros = nanos // 1000
    return timedelta(microseconds=-micros if sign == "-" else micros)


def _term_nanoseconds(text: str, *, number: str, decimals: int, unit: str) -> int:
    """Return one number with its unit in nanoseconds."""
    if not number:
        raise DurationError(f'time: invalid duration "{text}"')
    if not unit:
        raise DurationError(f'time: missing unit in duration "{text}"')
    if unit not in _UNITS:
        raise DurationError(f'time: unknown unit "{unit}" in duration "{text}"')
    nanos: int = int(number) * _UNITS[unit] // 10**decimals
    return nanos


def format(duration: timedelta) -> str:  # noqa: A001 - read as durations.format
    """Format a duration as Go does: ``1h0m5s``, ``1.5s``, ``20ms``, ``0s``."""
    micros = duration // timedelta(microseconds=1)
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    if micros < 1_000:
        return f"{sign}{micros}µs" if micros else "0s"
    if micros < 1_000_000:
        return f"{sign}{_decimal(micros, 1_000)}ms"
    minutes, micros = divmod(micros, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    larger = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{larger}{_decimal(micros, 1_000_000)}s"


def human(seconds: float) -> str:
    """Return a duration as kubectl shows ages: at most two units, the smaller one only while it is
    significant (``45s``, ``2m5s``, ``12m``, ``3d4h``)."""
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


def _decimal(number: int, unit: int) -> str:
    """Return *number* / *unit* (a power of ten) without trailing zeros."""
    whole, rest = divmod(number, unit)
    digits = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
