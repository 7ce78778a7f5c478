"""The votes of plugins on evictions: who may evict, who may be evicted, and in which order.

A plugin that raises an exception permits nothing: the :class:`~.plugin_calls.PluginError` rejects
the gang that is to get the resources.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Protocol

import numpy as np

from ..plugins.extension_points import Preemptor, VictimPlugin, has_method
from ..state.gangs.gang import Gang, QueueInfo, Task
from ..state.gangs.task_table import TaskTable
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import MAX_AMOUNT, BoolVector, IntVector
from .framework import Framework
from .plugin_calls import PluginCalls, PluginError

SortKey = tuple[float | str | tuple[float, ...], ...]


class Reach(Enum):
    """Whose tasks may be evicted."""

    PREEMPT = "preempt"
    """Those of gangs of the same queue."""

    RECLAIM = "reclaim"
    """Those of other queues."""


class _Orders(Protocol):
    """What the votes need of the session."""

    def queue_order(self, queue: QueueInfo) -> SortKey:
        """Return the sort key of *queue*; the smallest is first."""
        ...


class VictimVotes:
    """Asks the plugins of one session."""

    def __init__(self, framework: Framework, calls: PluginCalls, orders: _Orders) -> None:
        """Ask the plugins of *framework* by *calls*."""
        self._framework = framework
        self._calls = calls
        self._orders = orders

    def job_starving(self, gang: Gang) -> bool:
        """Return whether *gang* may evict others; ``False`` without a plugin that votes."""
        for tier in self._framework.job_starving:
            if tier:
                return all(
                    self._calls.call(each, "job_starving", partial(each.job_starving, gang))
                    for each in tier
                )
        return False

    def job_pipelined(self, gang: Gang) -> bool:
        """Return whether *gang* is ready once the resources that its tasks wait for are free."""
        for tier in self._framework.job_pipelined:
            votes = [
                self._calls.call(each, "job_pipelined", partial(each.job_pipelined, gang))
                for each in tier
            ]
            if False in votes:
                return False
            if True in votes:
                return True
        return True

    def preemptive_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return for how many more pods of *eq_class* the queue may reclaim resources."""
        counts = (
            self._calls.call(
                each, "preemptive_count", partial(each.preemptive_count, queue, eq_class)
            )
            for each in self._framework.preemptive
        )
        return max(min(counts, default=MAX_AMOUNT), 0)

    def victims(
        self, reach: Reach, preemptor: Preemptor, candidates: Sequence[Task]
    ) -> Sequence[Task]:
        """Return those of *candidates*, in their order, that may all be evicted together."""
        if not candidates:
            return ()
        for tier in self._voters(reach):
            permitted: list[Task] | None = None
            for plugin, function in tier:
                vote = partial(function, preemptor, candidates)
                permits = self._calls.call(plugin, _POINTS[reach], vote)
                if permits is not None:
                    uids = {task.uid for task in permits}
                    permitted = [
                        task
                        for task in (candidates if permitted is None else permitted)
                        if task.uid in uids
                    ]
            if permitted is not None:
                return permitted
        return ()

    def mask(
        self, reach: Reach, preemptor: Preemptor, table: TaskTable, slots: IntVector
    ) -> BoolVector:
        """Return which tasks of *slots* :meth:`victims` may permit. It may then permit fewer, never
        others."""
        mask = np.ones(len(slots), np.bool_)
        for tier in self._voters(reach):
            for plugin, _ in tier:
                if has_method(plugin, "victim_mask"):
                    function = partial(plugin.victim_mask, preemptor, table, slots)
                    own = self._calls.call(plugin, "victim_mask", function)
                    if own is not None:
                        mask &= own
            if tier:  # a later tier is asked only if all of this one abstain
                return mask
        return np.zeros(len(slots), np.bool_)

    def queue_ranks(self, queues: Sequence[QueueInfo], preemptor: QueueInfo) -> list[int]:
        """Return for each of *queues* how many others lose tasks before it does."""
        plugins = self._framework.victim_queue_order
        order = self._calls.order

        def key(queue: QueueInfo) -> tuple[float, ...]:
            return tuple(
                order(
                    each,
                    "victim_queue_order",
                    partial(each.victim_queue_order, queue, preemptor),
                )
                for each in plugins
            )

        positions = range(len(queues))
        last_first = sorted(
            positions, key=lambda position: self._orders.queue_order(queues[position]), reverse=True
        )
        ranks = [0] * len(queues)
        for rank, position in enumerate(sorted(last_first, key=lambda each: key(queues[each]))):
            ranks[position] = rank
        return ranks

    def _voters(
        self, reach: Reach
    ) -> list[
        list[tuple[VictimPlugin, Callable[[Preemptor, Sequence[Task]], Sequence[Task] | None]]]
    ]:
        if reach is Reach.PREEMPT:
            return [
                [(each, each.preemptable) for each in tier] for tier in self._framework.preemptable
            ]
        return [[(each, each.reclaimable) for each in tier] for tier in self._framework.reclaimable]


_POINTS = {Reach.PREEMPT: "preemptable", Reach.RECLAIM: "reclaimable"}

__all__ = ["PluginError", "Reach", "VictimVotes"]
