"""How long gangs probably run that have a time limit, or that have exceeded their prediction: that
follows from those that have ended.

Most limits exceed run times by far, but users run much the same job again. So the last run times of
one user's gangs of a name pattern predict more, as far as the limit permits them, and most those of
gangs of equal size. For a gang without such predecessors, the limit counts times the fraction of it
that others have needed.
"""

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from itertools import accumulate, islice
from typing import NamedTuple

from .predictions import MAX_PATTERNS, Pattern

KEPT_RUNS = 20
"""How many of the last runs of a pattern are remembered, in all and of each size."""

_EXPECTED_RUNS = 10
"""How many of them count for a gang that has a limit."""

KEPT_FRACTIONS = 200
"""How many of the last fractions of limits that gangs have needed are remembered."""

LEAST_FRACTIONS = 10
"""How many are needed to expect that a gang ends before its limit."""

_LEAST_SECONDS = 60.0
"""Of shorter runs, the fraction of the limit depends more on starts than on limits."""

_DECAY = 0.7
"""How much a run counts in comparison with the one after it."""

_QUANTILE = 0.4
"""Which part of the runs is shorter than the probable one: less than half, since the first of
several gangs that ends lets others start."""

_RARELY_LESS = 50
"""One in fifty gangs needs a smaller fraction of its limit than is thought possible."""


class Run(NamedTuple):
    """A gang that has ended."""

    pattern: Pattern
    size: int
    """How many pods it needed to start."""

    seconds: float
    limit: float | None
    """In seconds, if it had one."""


class RecentRuns:
    """The last run times by pattern and size, and which fractions of limits were needed."""

    def __init__(self) -> None:
        """Start without any."""
        self._seconds: OrderedDict[tuple[Pattern, int | None], deque[float]] = OrderedDict()
        """By pattern and size, and those of all sizes of a pattern; the latest ones last."""
        self._fractions: deque[float] = deque()
        self._ordered: list[float] = []

    def observe(self, run: Run) -> None:
        """Learn from a gang that has ended."""
        for size in (run.size, None):
            key = run.pattern, size
            seconds = self._seconds.pop(key, None) or deque(maxlen=KEPT_RUNS)
            seconds.append(run.seconds)
            self._seconds[key] = seconds
        while len(self._seconds) > 2 * MAX_PATTERNS:
            self._seconds.popitem(last=False)
        if run.limit and run.seconds >= _LEAST_SECONDS:
            fraction = min(run.seconds / run.limit, 1.0)
            self._fractions.append(fraction)
            insort(self._ordered, fraction)
            if len(self._fractions) > KEPT_FRACTIONS:
                self._ordered.remove(self._fractions.popleft())

    def expect(self, pattern: Pattern, size: int, limit: float, elapsed: float) -> float:
        """Return for how many seconds a gang of *pattern* probably runs in all that needs *size*
        pods, may run for *limit* seconds, and has run for *elapsed*: *limit* at most."""
        ordered = self._ordered
        if len(ordered) < LEAST_FRACTIONS:
            return limit
        least = max(ordered[len(ordered) // _RARELY_LESS] * limit, elapsed)
        possible = self._between(pattern, size, least, limit, _EXPECTED_RUNS)
        if possible:
            return _probable(possible)
        first = bisect_right(ordered, elapsed / limit)
        return ordered[(first + len(ordered) - 1) // 2] * limit if first < len(ordered) else limit

    def next_longer(self, pattern: Pattern, size: int, elapsed: float) -> float | None:
        """Return the shortest of the last run times that are longer than *elapsed* seconds;
        ``None`` if none was."""
        return min(self._between(pattern, size, elapsed, math.inf, KEPT_RUNS), default=None)

    def _between(
        self, pattern: Pattern, size: int, least: float, limit: float, count: int
    ) -> list[float]:
        """Return which of the last *count* run times are above *least* and up to *limit*: of gangs
        of equal size, or else of all gangs of the pattern."""
        for key in ((pattern, size), (pattern, None)):
            known = self._seconds.get(key, ())
            last = islice(known, max(len(known) - count, 0), None)
            found = [each for each in last if least < each <= limit]
            if found:
                return found
        return []


def _probable(seconds: list[float]) -> float:
    """Return which of *seconds*, the latest ones last, is most like the next one."""
    last = len(seconds) - 1
    weighted = sorted((each, _DECAY ** (last - age)) for age, each in enumerate(seconds))
    sums = list(accumulate(weight for _, weight in weighted))
    return weighted[bisect_right(sums, _QUANTILE * sums[-1])][0]
