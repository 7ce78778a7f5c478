"""Which starving gangs cannot evict any pod, so that no search for victims is needed for them."""

import numpy as np

from ..state.gangs.gang import Gang
from ..state.gangs.victim_columns import PREEMPTABLE
from ..state.resources import IntVector
from .session import Session

_NONE = np.iinfo(np.int64).max


class PossibleVictims:
    """The pods that run when an action starts; it adds none."""

    def __init__(self, session: Session) -> None:
        """Compare all pods once."""
        self._cache = session.cache
        self._lowest = self._lowest_priorities()

    def may_preempt(self, gang: Gang) -> bool:
        """Return whether the queue of *gang* has pods of gangs with a lower priority."""
        if self._cache.reservations:
            return True  # it may take what is held for another gang
        number = self._cache.task_table.queue_id(self._cache.queues.of(gang).name)
        return 0 <= number < len(self._lowest) and bool(self._lowest[number] < gang.priority)

    def may_reclaim(self, gang: Gang) -> bool:
        """Return whether another queue has pods that may be reclaimed."""
        own = self._cache.queues.of(gang)
        return bool(self._cache.reservations) or any(
            queue is not own
            and queue.object is not None
            and queue.object.spec.reclaimable is not False
            and queue.allocated
            for queue in self._cache.queues.by_name.values()
        )

    def _lowest_priorities(self) -> IntVector:
        """Return the lowest priority of a gang with pods that may be evicted, by the number of its
        queue."""
        table = self._cache.task_table
        slots = np.flatnonzero(table.node >= 0)
        slots = slots[PREEMPTABLE.values(table, slots)]
        queues = table.queue[slots]
        lowest: IntVector = np.full(int(queues.max(initial=-1)) + 1, _NONE, np.int64)
        np.minimum.at(lowest, queues, table.gang_priority[table.gang[slots]])
        return lowest
