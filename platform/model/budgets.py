"""Budgets of queues: what a queue, with those below it, may use in a window of time."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from . import durations, names, quantity
from .resource_names import is_counted

DEFAULT_WINDOW = 720 * 3600.0
MIN_WINDOW = 60.0
"""Seconds."""

HARD, SOFT = "hard", "soft"
POLICIES = (HARD, SOFT)

_FIRST_MONDAY = 4 * 86400.0
"""Unix time from which windows are counted: days begin at midnight UTC, weeks on Monday."""


class Window(NamedTuple):
    """Part of the time, in Unix time; its end is not part of it."""

    start: float
    end: float


class Budget(NamedTuple):
    """What a queue may use."""

    hours: Mapping[str, str]
    """By resource, a quantity of it for one hour: ``{"cpu": "1000"}`` are 1,000 CPU-hours."""

    window: float
    """Seconds."""

    is_hard: bool
    """Whether gangs wait once it is used up; else the queue is last."""

    def window_at(self, time: float) -> Window:
        """Return the window that contains Unix time *time*."""
        start = time - (time - _FIRST_MONDAY) % self.window
        return Window(start, start + self.window)


Problem = tuple[str, str, str]
"""Name of an annotation, its value, and what is wrong with it."""


def budget_of(annotations: Mapping[str, str]) -> Budget | None:
    """Return the budget of a queue; ``None`` if it has none, or an annotation is malformed: it may
    have been written without a webhook."""
    if names.BUDGET not in annotations or any(budget_problems(annotations)):
        return None
    window = annotations.get(names.BUDGET_WINDOW)
    return Budget(
        dict(_entries(annotations[names.BUDGET])),
        DEFAULT_WINDOW if window is None else durations.parse(window).total_seconds(),
        annotations.get(names.BUDGET_POLICY, HARD) == HARD,
    )


def budget_problems(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what is wrong with the budget in *annotations* of a queue."""
    checks = (
        (names.BUDGET, _budget_error),
        (names.BUDGET_WINDOW, _window_error),
        (names.BUDGET_POLICY, _policy_error),
    )
    for name, check in checks:
        text = annotations.get(name)
        if text is None:
            continue
        if error := check(text):
            yield name, text, error
        elif names.BUDGET not in annotations:
            yield name, text, f"has no effect without {names.BUDGET}"


def _entries(text: str) -> Iterator[tuple[str, str]]:
    for entry in text.split(","):
        name, _, hours = entry.partition("=")
        yield name, hours


def _budget_error(text: str) -> str:
    known: set[str] = set()
    for name, hours in _entries(text):
        if not is_counted(name) or name in known:
            why = "is given twice" if name in known else "is no resource of nodes"
            return f"{name!r} {why}; a budget is such as cpu=1000,nvidia.com/gpu=50, in hours"
        known.add(name)
        try:
            if quantity.parse(hours) <= quantity.parse("0"):
                return f"the hours of {name} must be more than 0"
        except quantity.QuantityError:
            return f"the hours of {name} must be a quantity, not {hours!r}"
    return ""


def _window_error(text: str) -> str:
    try:
        seconds = durations.parse(text).total_seconds()
    except durations.DurationError as error:
        return str(error)
    return "" if seconds >= MIN_WINDOW else "must be at least 1m"


def _policy_error(text: str) -> str:
    return "" if text in POLICIES else f"must be {HARD} or {SOFT}"
