"""Human-readable ages for tables."""

from datetime import datetime

from ....model import durations, times

UNKNOWN = "<unknown>"


def age(timestamp: str | None, now: datetime) -> str:
    """Return the age of an RFC 3339 time; a missing or malformed one is ``<unknown>``."""
    if not timestamp:
        return UNKNOWN
    try:
        return durations.human((now - times.parse(timestamp)).total_seconds())
    except ValueError:
        return UNKNOWN
