"""How exact planned starts were, from which the interval of the next one follows.

Most gangs end before their limits, so most planned starts are too late, and by how much differs
from cluster to cluster. The start of a gang is compared with what was planned when it first had a
reservation, as a fraction of the wait. The fractions are skewed: few gangs wait for as long as was
planned, and most for much less. So the interval is the shortest one that contains enough of them,
and not that between two quantiles, whose middle is far from most of them.
"""

import math
from collections import deque
from collections.abc import Collection

KEPT = 200
"""How many of the last starts count."""

LEAST = 10
"""How many are needed for an interval."""

_INSIDE = 0.82
"""The fraction of the last starts that the interval contains. It was chosen by them, so that it
contains fewer of the next ones: eighty percent are wanted."""


class StartErrors:
    """The planned and the actual waits of the last gangs."""

    def __init__(self) -> None:
        """Start without any."""
        self._planned: dict[str, tuple[float, float]] = {}
        """When gangs that wait first had a reservation, and the start, as Unix time."""
        self._fractions: deque[float] = deque(maxlen=KEPT)
        """The actual wait as a fraction of the planned one."""

    def plan(self, key: str, now: float, start: float) -> None:
        """Note that the gang *key* is to start at *start*, which is later than *now* and
        finite; only its first planned start counts."""
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

    def interval(self, now: float, start: float) -> tuple[float, float] | None:
        """Return between which times a gang starts that is planned to start at *start*, as eighty
        percent of gangs do; ``None`` if too few starts are known."""
        if len(self._fractions) < LEAST:
            return None
        ordered = sorted(self._fractions)
        count = math.ceil(len(ordered) * _INSIDE)
        intervals = zip(ordered, ordered[count - 1 :], strict=False)
        low, high = min(intervals, key=lambda each: each[1] - each[0])
        return now + low * (start - now), now + high * (start - now)
