"""What will be free on the nodes at future times: for each a numpy matrix of resources and nodes.

The times are a short list. What ends between two of them counts as free from the later one on, so
what is planned is never too early. Start reservations are subtracted for as long as they last.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from ...state.nodes.node_matrix import pods_that_fit
from ...state.resources import BoolVector, FloatVector, IntVector, Matrix

MAX_TIMES = 32
"""Most times at which what running gangs hold becomes free."""

Allowed = Callable[[float], bool]
"""Returns whether the limits of a queue permit that a gang starts at a Unix time."""


@dataclass(frozen=True, slots=True)
class PodNeed:
    """Pods of one class that a gang needs to start."""

    request: IntVector
    feasible: BoolVector
    """Which nodes the filters permit."""

    count: int


@dataclass(frozen=True, slots=True)
class Occupation:
    """What pods of a gang use, or will use, and when."""

    start: float
    """Unix time; infinite if it is not known."""

    end: float
    """Unix time; infinite if it is not known."""

    nodes: IntVector
    """Indexes of nodes, without repeats."""

    amounts: Matrix
    """What is used there: a row per resource, a column per node."""


class Profile:
    """What is free on the nodes from now on, with start reservations subtracted."""

    def __init__(
        self,
        now: float,
        free: Matrix,
        ends: FloatVector,
        held: "Held",
        times: Iterable[float] = (),
    ) -> None:
        """Compute what will be free.

        Args:
            now: Unix time.
            free: what is free now, a row per resource and a column per node.
            ends: when each of *held* ends, as Unix time; infinite if that is not known.
            held: what pods use on nodes now.
            times: further times that will be asked for.
        """
        self.now = now
        self.times = _times(now, ends, times)
        known = np.isfinite(ends)
        steps = np.searchsorted(self.times, np.maximum(ends[known], now))
        released = held.released(steps, known, len(self.times), free.shape)
        np.cumsum(released, axis=0, out=released)
        released += free
        self.free: list[Matrix] = list(released)
        """What is free from each of :attr:`times` on, until the next one.

        A matrix for each, so that another time is added without a copy of all.
        """
        unknown = held.released(np.zeros((~known).sum(), np.int64), ~known, 1, free.shape)[0]
        self.some_time = self.free[-1] + unknown
        """What is free once pods have ended whose end is not known, without the reservations that
        wait for these."""
        self.waits_for_unknown = False
        """Whether a reservation is subtracted from :attr:`some_time`."""
        self._least: list[Matrix] = []
        """The minimum of :attr:`free` up to each of the first times, as far as it was asked for."""

    # -- reservations --------------------------------------------------------------------------

    def subtract(self, occupation: Occupation) -> None:
        """Subtract what is used by *occupation*."""
        self._add(occupation, -1)

    def add(self, occupation: Occupation) -> None:
        """Undo :meth:`subtract`."""
        self._add(occupation, 1)

    def _add(self, occupation: Occupation, sign: int) -> None:
        amounts = occupation.amounts * sign
        rows = len(amounts)
        if math.isinf(occupation.start):
            self.some_time[:rows, occupation.nodes] += amounts
            return
        self._require_time(occupation.start)
        if math.isfinite(occupation.end):
            self._require_time(occupation.end)
        first, last = np.searchsorted(self.times, (occupation.start, occupation.end))
        for step in range(max(int(first), 0), int(last)):
            self.free[step][:rows, occupation.nodes] += amounts
        for step in range(int(first), len(self._least)):
            least = self.free[step][:rows, occupation.nodes]
            if step:
                least = np.minimum(least, self._least[step - 1][:rows, occupation.nodes])
            self._least[step][:rows, occupation.nodes] = least

    def _require_time(self, time: float) -> None:
        """Divide the interval that contains *time*."""
        step = int(np.searchsorted(self.times, time))
        if time <= self.now or (step < len(self.times) and self.times[step] == time):
            return
        self.times = np.insert(self.times, step, time)
        self.free.insert(step, self.free[step - 1].copy())
        if step < len(self._least):
            self._least.insert(step, self._least[step - 1].copy())

    # -- questions -----------------------------------------------------------------------------

    def least_until(self, end: float, *, is_planned: bool = False) -> Matrix:
        """Return what is free on the nodes at each time from now until *end*; not to be changed.

        What a gang takes of it that runs until then delays no reservation. One whose start is
        planned itself leaves nothing to those whose start is not known.
        """
        count = max(int(np.searchsorted(self.times, end)), 1)
        for free in self.free[len(self._least) : count]:
            least = np.minimum(self._least[-1], free) if self._least else free.copy()
            self._least.append(least)
        least = self._least[count - 1]
        if self.waits_for_unknown and not is_planned:
            least = np.minimum(least, self.some_time)
        return least

    def fits_at(self, occupation: Occupation) -> bool:
        """Return whether *occupation* is still free, where it uses anything."""
        nodes, wanted = occupation.nodes, occupation.amounts
        if math.isinf(occupation.start):
            found = self.some_time[: len(wanted), nodes]
            return bool((found >= wanted)[wanted > 0].all())
        first, last = self._steps(occupation.start, occupation.end)
        rows, columns = np.nonzero(wanted > 0)
        cells = rows * self.some_time.shape[1] + nodes[columns]
        least = wanted[rows, columns]
        return all(bool((free.take(cells) >= least).all()) for free in self.free[first:last])

    def earliest(
        self,
        pod_needs: Sequence[PodNeed],
        duration: float,
        allowed: Allowed,
        *,
        before: float,
        is_planned: bool = False,
    ) -> Occupation | None:
        """Return where and when *pod_needs* fit first, for *duration* seconds (or infinity).

        Only starts *before* that time are considered. *allowed* is asked whether the queue permits
        a start, and *is_planned* as for :meth:`least_until`.
        """
        for step, time in enumerate(self.times.tolist()):
            if time >= before:
                return None
            if not self._may_fit(pod_needs, self.free[step]) or not allowed(time):
                continue
            first, last = self._steps(time, time + duration)
            nodes = _usable(pod_needs, self.free[step])
            window = reduce(np.minimum, (free[:, nodes] for free in self.free[first:last]))
            if self.waits_for_unknown and not is_planned:
                window = np.minimum(window, self.some_time[:, nodes])
            needs = [replace(need, feasible=need.feasible[nodes]) for need in pod_needs]
            found = choose_nodes(needs, window)
            if found is not None:
                return Occupation(time, time + duration, nodes[found[0]], found[1])
        return None

    def at_some_time(self, pod_needs: Sequence[PodNeed]) -> Occupation | None:
        """Return where *pod_needs* fit once pods have ended whose end is not known."""
        found = choose_nodes(pod_needs, self.some_time)
        return None if found is None else Occupation(math.inf, math.inf, *found)

    def _steps(self, start: float, end: float) -> tuple[int, int]:
        """Return the first and the last step, exclusive, of an interval."""
        first = max(int(np.searchsorted(self.times, start, side="right")) - 1, 0)
        return first, max(int(np.searchsorted(self.times, end)), first + 1)

    @staticmethod
    def _may_fit(pod_needs: Sequence[PodNeed], free: Matrix) -> bool:
        """Return whether the sums over nodes suffice, which is quick to compute."""
        wanted = sum((need.request * need.count for need in pod_needs), start=np.int64(0))
        rows = np.flatnonzero(wanted)
        return bool((np.maximum(free[rows], 0).sum(axis=1) >= np.asarray(wanted)[rows]).all())


@dataclass(frozen=True, slots=True)
class Held:
    """What pods use: an item per pod."""

    nodes: IntVector
    requests: Matrix
    """A row per resource, a column per pod."""

    def released(
        self, steps: IntVector, pods: BoolVector, count: int, shape: tuple[int, ...]
    ) -> Matrix:
        """Return what *pods* free at each of *count* steps, of the given *shape*.

        *steps* is the one in which each of them ends.
        """
        rows, columns = shape
        cells = steps * columns + self.nodes[pods]
        result = np.zeros((count, rows, columns), np.int64)
        for row in range(min(rows, len(self.requests))):
            requested = self.requests[row][pods]
            if requested.any():
                sums = np.zeros(count * columns, np.int64)
                np.add.at(sums, cells, requested)
                result[:, row] = sums.reshape(count, columns)
        return result


def choose_nodes(pod_needs: Iterable[PodNeed], free: Matrix) -> tuple[IntVector, Matrix] | None:
    """Return nodes for all of *pod_needs* and what is used there, or ``None`` if they do not fit.

    Nodes that take the most pods are first, so that few are used.
    """
    left = free
    used = None
    for need in pod_needs:
        rows = len(need.request)
        fitting = pods_that_fit(need.request, left[:rows])
        fitting[~need.feasible] = 0
        order = np.argsort(-fitting, kind="stable")
        chosen = np.minimum(np.cumsum(fitting[order]), need.count)
        if not len(chosen) or chosen[-1] < need.count:
            return None
        pods = np.zeros(len(fitting), np.int64)
        pods[order] = np.diff(chosen, prepend=0)
        taken = np.zeros_like(free)
        taken[:rows] = need.request[:, None] * pods
        used = taken if used is None else used + taken
        left = free - used
    if used is None:
        return None
    nodes = np.flatnonzero(used.any(axis=0))
    return nodes, used[:, nodes]


def _usable(pod_needs: Iterable[PodNeed], free: Matrix) -> IntVector:
    """Return the nodes that *free* lets take a pod, so that only these need be compared."""
    usable = np.zeros(free.shape[1], np.bool_)
    for need in pod_needs:
        rows = np.flatnonzero(need.request)
        usable |= need.feasible & (free[rows] >= need.request[rows, None]).all(axis=0)
    return np.flatnonzero(usable)


def _times(now: float, ends: FloatVector, others: Iterable[float]) -> FloatVector:
    """Return *now*, *others*, and when what is held becomes free, :data:`MAX_TIMES` at most.

    Of more ends, the first ones are exact, and of the others as many fall between two times each.
    """
    later = np.unique(ends[np.isfinite(ends) & (ends > now)])
    if len(later) > MAX_TIMES:
        exact = later[: MAX_TIMES // 2]
        rest = later[MAX_TIMES // 2 :]
        chosen = np.linspace(0, len(rest) - 1, MAX_TIMES // 2 + 1).round().astype(np.int64)[1:]
        later = np.concatenate([exact, rest[chosen]])
    wanted = [time for time in others if now < time < math.inf]
    return np.unique(np.concatenate([[now], later, wanted]))
