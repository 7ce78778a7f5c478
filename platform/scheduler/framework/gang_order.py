"""In which order the action ``allocate`` tries the gangs of a queue."""

from collections.abc import Iterator
from typing import Protocol

from ..state.gangs.gang import Gang
from ..state.queue.scheduling_queue import UnschedulableGroup
from .backfilling.options import Order
from .candidate import Candidate
from .plugin_decisions import SortKey
from .session import Session


class _Planning(Protocol):
    """What is needed of the planned starts, which contain the order."""

    def duration_of(self, gang: Gang) -> float: ...

    def precedes(self, gang: Gang) -> bool: ...

    def can_reserve(self, queue_name: str) -> bool: ...

    def is_due(self, gang: Gang) -> bool: ...


class GangOrder:
    """The order in which gangs of a queue are tried.

    With the shortest first, gangs that have a start reservation, or may get one, are nevertheless
    in the order of the plugins: of those that do not fit, the first ones get a reservation, not
    the shortest. A queue is put in order again when its last free reservation was used.
    """

    def __init__(self, planning: _Planning, session: Session, order: Order) -> None:
        """Use *order*."""
        self._planning = planning
        self._session = session
        self.is_shortest_first = order is Order.SHORTEST_FIRST
        """Whether the order differs from that of the plugins."""
        self._reserving: dict[str, bool] = {}
        """Whether gangs of a queue could get a reservation when they were put in order."""
        self._following: dict[tuple[object, bool], Iterator[Gang]] = {}
        """The gangs still to be tried of groups, by demand and whether they may get a
        reservation."""

    def has_changed(self, queue_name: str) -> bool:
        """Return whether the gangs of a queue are to be put in order, for the first time or
        again."""
        if not self.is_shortest_first:
            return False
        before = self._reserving.get(queue_name)
        self._reserving[queue_name] = self._planning.can_reserve(queue_name)
        return before is not self._reserving[queue_name]

    def of(self, gang: Gang) -> SortKey:
        """Return the sort key of *gang* within its queue; the smallest is first."""
        order = self._session.job_order(gang)
        duration = self._planning.duration_of(gang)
        if not self.is_shortest_first:
            return order
        is_first = self._is_first(gang, reserving=self._is_reserving(gang))
        return (0.0, 0.0, *order) if is_first else (1.0, duration, *order)

    def first(self, candidate: Candidate) -> Candidate:
        """Return the first gang with the demand of *candidate*."""
        group = candidate.group
        if not group or len(group) == 1:
            return candidate
        left = (each for each in self._sorted(group) if not self._session.is_rejected(each))
        found = next(left, candidate.gang)
        return candidate if self._session.job_valid(found) else Candidate(found, group)

    def following(self, candidate: Candidate) -> Candidate | None:
        """Return the next gang with the demand of *candidate*, if that one was scheduled, or was
        rejected alone."""
        if not self.is_shortest_first:
            return self._session.next_candidate(candidate)
        group = candidate.group
        if not group or self._session.is_group_rejected(candidate):
            return None
        key = group.demand, self._is_reserving(candidate.gang)
        if key not in self._following:
            self._following[key] = iter(self._sorted(group))
        for gang in self._following[key]:
            if gang.unschedulable_group is group and not self._session.is_rejected(gang):
                return Candidate(gang, group)
        return None

    def _sorted(self, group: UnschedulableGroup) -> list[Gang]:
        """Return the gangs of *group*, which are of one queue, in order."""
        first: list[Gang] = []
        others: list[Gang] = []
        reserving = self._is_reserving(group.first()[1])
        for gang in group:
            (first if self._is_first(gang, reserving=reserving) else others).append(gang)
        return first + sorted(others, key=self._planning.duration_of)

    def _is_first(self, gang: Gang, *, reserving: bool) -> bool:
        return (reserving and self._planning.is_due(gang)) or self._planning.precedes(gang)

    def _is_reserving(self, gang: Gang) -> bool:
        return self._reserving.get(self._session.cache.queues.of(gang).name, False)
