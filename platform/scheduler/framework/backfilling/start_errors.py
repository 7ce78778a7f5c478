"""How exact probable starts were, from which the interval of the next one follows.

Gangs start earlier or later than is probable, and by how much differs from cluster to cluster. The
start of a gang is compared with the one that was probable when it first had a reservation, as a
fraction of the wait. The fractions are skewed: few gangs wait for much longer than is probable. So
the interval is the shortest one that contains enough of them, and not that between two quantiles.
"""

import math
from collections import deque
from collections.abc import Collection
from statistics import median
from typing import NamedTuple

KEPT = 200
"""How many of the last starts count."""

LEAST = 10
"""How many are needed for an interval."""

_INSIDE = 0.84
"""The fraction of the last starts that the interval contains. It was chosen by them, so that it
contains fewer of the next ones: eighty percent are wanted."""


class Interval(NamedTuple):
    """When a gang starts, as Unix times."""

    earliest: float
    expected: float
    """Half of the gangs start until then."""

    latest: float


class StartErrors:
    """The probable and the actual waits of the last gangs."""

    def __init__(self) -> None:
        """Start without any."""
        self._planned: dict[str, tuple[float, float]] = {}
        """When gangs that wait first had a reservation, and the probable start, as Unix time."""
        self._fractions: deque[float] = deque(maxlen=KEPT)
        """The actual wait as a fraction of the probable one."""

    def plan(self, key: str, now: float, start: float) -> None:
        """Note that the gang *key* probably starts at *start*, which is later than *now* and
        finite; only what was probable first counts."""
        self._planned.setdefault(key, (now, start))

    def observe(self, key: str, now: float) -> None:
        """Learn that the gang *key* starts *now*, if its start was planned."""
        since, start = self._planned.pop(key, (now, now))
        if start > since:
            self._fractions.append((now - since) / (start - since))

    def forget_others(self, keys: Collection[str]) -> None:
        """Forget the gangs that are not in *keys*: they wait no more."""
        for key in [each for each in self._planned if each not in keys]:
            del self._planned[key]

    def interval(self, now: float, start: float) -> Interval | None:
        """Return when a gang starts that probably starts at *start*: an interval in which eighty
        percent of gangs do; ``None`` if too few starts are known."""
        if len(self._fractions) < LEAST:
            return None
        ordered = sorted(self._fractions)
        count = math.ceil(len(ordered) * _INSIDE)
        intervals = zip(ordered, ordered[count - 1 :], strict=False)
        low, high = min(intervals, key=lambda each: each[1] - each[0])
        middle = min(max(median(ordered), low), high)
        return Interval(*(now + each * (start - now) for each in (low, middle, high)))
