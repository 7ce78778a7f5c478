"""When gangs probably start, which is earlier than planned if others end before their limits.

A planned start is computed from the latest ends of gangs. It depends on nodes, filters and the
limits of queues, and need not be computed again for other ends: a gang starts about when as much
has become free as would be free at its planned start.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from ...state.resources import BoolVector, FloatVector, IntVector, Matrix
from .profile import Held, Occupation

_LEAST = 0.05
"""Which part of the planned wait a gang waits at least: the next one may end at once."""


class _Ended(NamedTuple):
    """What pods free when they end."""

    times: FloatVector
    """In order."""

    sums: IntVector
    """What is free in all from each of these times on."""

    @classmethod
    def of(cls, times: FloatVector, amounts: IntVector) -> Self:
        """Return what pods free that end at *times*."""
        order = np.argsort(times)
        return cls(times[order], amounts[order].cumsum())

    def until(self, time: float) -> int:
        """Return what is free at *time*."""
        count = int(np.searchsorted(self.times, time, side="right"))
        return int(self.sums[count - 1]) if count else 0

    def when(self, amount: int) -> float:
        """Return when *amount* is free; infinite if it never is."""
        first = int(np.searchsorted(self.sums, amount))
        return float(self.times[first]) if first < len(self.times) else math.inf


@dataclass(slots=True)
class ProbableStarts:
    """The probable starts of gangs, in the order of their planned starts."""

    now: float
    """Unix time."""

    capacity: Matrix
    """What nodes have, a row per resource and a column per node."""

    held: Held
    """What pods use on nodes now."""

    ends: FloatVector
    """When each of these ends at the latest, as Unix time."""

    probable_ends: FloatVector
    """When each of them probably ends, which is not later."""

    planned: list[tuple[Occupation, float]]
    """What gangs use that start now, and later those whose starts were asked for, and when they
    probably end, as Unix time."""

    _known: dict[tuple[int, bytes], tuple[_Ended, _Ended]] = field(default_factory=dict)
    """By resource and nodes."""

    def of(
        self, occupation: Occupation, nodes: BoolVector, request: IntVector, seconds: float
    ) -> float:
        """Return when a gang probably starts that is planned to use *occupation*, as Unix time: at
        its planned start at the latest.

        Args:
            occupation: what it will use, after a start that is known.
            nodes: which nodes it may use.
            request: what its pods request in all.
            seconds: for how long it will probably run.
        """
        start, least = occupation.start, self.now + (occupation.start - self.now) * _LEAST
        row = self._scarcest(nodes, request)
        if row is not None and start > self.now:
            start = min(max(self._freed(row, nodes, start), least), start)
        self.planned.append((occupation, start + seconds))
        return start

    def _freed(self, row: int, nodes: BoolVector, planned: float) -> float:
        """Return when as much of the resource in *row* is probably free on *nodes* as is free at
        the time *planned*; that time if nothing more is free then."""
        latest, probable = self._ended(row, nodes)
        wanted, others = latest.until(planned), list[tuple[float, int]]()
        for each, end in self.planned:
            if end <= planned and row < len(each.amounts):
                amount = int(each.amounts[row, nodes[each.nodes]].sum())
                others.append((end, amount))
                wanted += amount if each.end <= planned else 0
        if not wanted:
            return planned
        for end, amount in sorted(others):
            if probable.until(end) + amount >= wanted:
                return min(probable.when(wanted), end)
            wanted -= amount
        return probable.when(wanted)

    def _ended(self, row: int, nodes: BoolVector) -> tuple[_Ended, _Ended]:
        """Return what pods free on *nodes* by their latest and by their probable ends."""
        key = row, nodes.tobytes()
        if key not in self._known:
            pods = nodes[self.held.nodes]
            pods &= row < len(self.held.requests)  # else no pod that runs has ever requested it
            amounts = self.held.requests[min(row, len(self.held.requests) - 1), pods]
            latest, probable = self.ends[pods], self.probable_ends[pods]
            self._known[key] = _Ended.of(latest, amounts), _Ended.of(probable, amounts)
        return self._known[key]

    def _scarcest(self, nodes: BoolVector, request: IntVector) -> int | None:
        """Return the row of the resource of which *request* is the largest part of what *nodes*
        have; ``None`` if it requests nothing."""
        capacity = self.capacity[: len(request), nodes].sum(axis=1)
        fractions = request / np.maximum(capacity, 1)
        return int(fractions.argmax()) if fractions.any() else None
