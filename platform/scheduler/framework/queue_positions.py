"""The positions of waiting gangs in their queues, for explanations."""

from bisect import bisect_left
from dataclasses import dataclass

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang
from .plugin_decisions import SortKey
from .session import Session

_GANGS_PER_SECOND = 1000
"""The order of a queue with n gangs is computed again after n / 1000 seconds, so that it costs
little of the scheduler's time; positions are as old as that at most."""


@dataclass(frozen=True, slots=True)
class _Order:
    """The sort keys of the waiting gangs of one queue, in order."""

    keys: list[SortKey]
    computed_at: float


class QueuePositions:
    """Positions of waiting gangs among those of their queue, in the order of scheduling."""

    def __init__(self, cache: SchedulerCache) -> None:
        """Start without any order."""
        self._cache = cache
        self._orders: dict[str, _Order] = {}

    def position(self, session: Session, gang: Gang, *, now: float) -> tuple[int, int]:
        """Return the position of *gang*, from 1, and the number of waiting gangs.

        *now* is a reading of a monotonic clock.
        """
        order = self._order(session, self._cache.queues.of(gang).name, now)
        rank = bisect_left(order.keys, session.job_order(gang)) + 1
        return rank, max(len(order.keys), rank)

    def _order(self, session: Session, queue: str, now: float) -> _Order:
        order = self._orders.get(queue)
        if order is None or now - order.computed_at >= len(order.keys) / _GANGS_PER_SECOND:
            self._compute(session, now)
            order = self._orders.setdefault(queue, _Order([], now))
        return order

    def _compute(self, session: Session, now: float) -> None:
        keys: dict[str, list[SortKey]] = {}
        for gang in self._cache.pending_gangs.values():
            keys.setdefault(self._cache.queues.of(gang).name, []).append(session.job_order(gang))
        self._orders = {queue: _Order(sorted(each), now) for queue, each in keys.items()}
