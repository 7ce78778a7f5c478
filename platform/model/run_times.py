"""How long jobs may run, and are expected to, as their annotations state it."""

from collections.abc import Mapping
from enum import StrEnum

from . import durations, names

OF_RUN_TIME = (names.TIME_LIMIT, names.RUNNING_ESTIMATE, names.ACTIVE_DEADLINE, names.SUBMITTED_BY)
"""Annotations of pods and their owners that their PodGroup inherits."""

OF_LIMIT = (names.TIME_LIMIT, names.ACTIVE_DEADLINE)
"""Those that limit a run time."""


class Basis(StrEnum):
    """Where a run time is known from."""

    LIMIT = "limit"
    """It is enforced."""

    ESTIMATE = "estimate"
    PREDICTION = "prediction"
    """From former jobs of the same user."""

    UNKNOWN = "unknown"


def time_limit_error(text: str) -> str:
    """Return why *text* is not a time limit; empty if it is."""
    try:
        seconds = durations.parse(text).total_seconds()
    except durations.DurationError as error:
        return str(error)
    return "" if seconds > 0 else "must be more than 0"


def seconds_of(annotations: Mapping[str, str], name: str) -> float | None:
    """Return the duration in the annotation *name* in seconds.

    ``None`` if it is missing, malformed or not above zero: users may write it on objects that no
    webhook has seen.
    """
    text = annotations.get(name, "")
    if not text or time_limit_error(text):
        return None
    return durations.parse(text).total_seconds()


def limit_of(annotations: Mapping[str, str]) -> float | None:
    """Return the limit of a job or PodGroup in seconds: its time limit, else the deadline of its
    owner."""
    found = seconds_of(annotations, names.TIME_LIMIT)
    if found is not None:
        return found
    deadline = annotations.get(names.ACTIVE_DEADLINE, "")
    return float(deadline) if _is_count(deadline) else None


def warning_of(annotations: Mapping[str, str]) -> float:
    """Return how many seconds before its time limit the pods of a job get SIGTERM; 0 if that is
    malformed, or not less than the limit."""
    limit = seconds_of(annotations, names.TIME_LIMIT) or 0.0
    warning = seconds_of(annotations, names.TIME_LIMIT_WARNING) or 0.0
    return warning if warning < limit else 0.0


def deadline_of(active_deadline: int | None, annotations: Mapping[str, str]) -> float | None:
    """Return the seconds after which the controller of a job ends it: ``activeDeadlineSeconds`` or
    the time limit, the lesser of them."""
    limit = seconds_of(annotations, names.TIME_LIMIT)
    return min((each for each in (active_deadline, limit) if each is not None), default=None)


def deadline_annotation(seconds: int | None) -> dict[str, str]:
    """Return the annotation of a PodGroup whose owner has ``activeDeadlineSeconds``."""
    return {} if seconds is None else {names.ACTIVE_DEADLINE: str(seconds)}


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:16]) > 0
