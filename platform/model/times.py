"""Points in time as Kubernetes writes them: RFC 3339 in UTC, whole seconds or microseconds."""

import re
from datetime import UTC, datetime

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:[.,](\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


class TimeError(ValueError):
    """The text is no point in time as RFC 3339 writes it."""


def parse(text: str) -> datetime:
    """Read a point in time and give it in UTC; what is finer than a microsecond is cut off.

    Raises:
        TimeError: the text is not RFC 3339, or names a day or a time that does not exist.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise TimeError(f"not a time as RFC 3339 writes it: {text!r}")
    day, time, fraction, zone = match.groups(default="")
    try:
        read = datetime.fromisoformat(
            f"{day}T{time}.{fraction[:6].ljust(6, '0')}{'+00:00' if zone in 'Zz' else zone}"
        )
        return read.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise TimeError(f"no such time: {text!r} ({wrong})") from wrong


def format(timestamp: datetime) -> str:  # noqa: A001 - read as times.format
    """Write a point in time in whole seconds, as most fields have it; fractions are cut off.

    *moment* must know its zone.
    """
    return f"{_utc(timestamp).isoformat(timespec='seconds')}Z"


def format_micros(timestamp: datetime) -> str:
    """Write a point in time with six decimals, as Leases and Events have it.

    *moment* must know its zone.
    """
    return f"{_utc(timestamp).isoformat(timespec='microseconds')}Z"


def _utc(timestamp: datetime) -> datetime:
    if timestamp.tzinfo is None:
        raise ValueError("a time without a zone could mean any moment")
    return timestamp.astimezone(UTC).replace(tzinfo=None)
