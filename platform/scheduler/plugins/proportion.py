"""``proportion``: divides the cluster among queues by weight.

A queue deserves its weight's fraction of the cluster, but no more than it requests, no more than
its capability and no less than its guarantee; what one queue does not request is divided among
the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang, QueueInfo, Task, add_amounts, sum_amounts
from ..state.gangs.task_table import TaskTable
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import QUEUES, TOTAL, LimitNeed, queue_gained
from ..state.resources import Amounts, BoolVector, IntVector, Matrix
from .extension_points import NOT_ENOUGH_RESOURCES, Preemptor, Rejection
from .fair_division import UNLIMITED, divide
from .queue_limits import (
    compared,
    count_within,
    free_of_limit,
    guarantee_of,
    inqueue,
    over_limit,
    real_capability,
    share,
    unguaranteed,
)
from .queue_state import queue_state_rejection


class ProportionPlugin:
    """Limits and orders queues by their deserved resources."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
        self._cache: SchedulerCache | None = None
        self._division = Division()

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Compute what each queue deserves, if anything has changed."""
        self._cache = cache
        self._division.update(cache)

    def queue_order(self, queue: QueueInfo) -> tuple[float, ...]:
        """Higher priority first, then the smaller allocated fraction of what it deserves."""
        priority = queue.object.spec.priority if queue.object else 0
        deserved = self._division.deserved(queue.name)
        return (-priority, 0.0 if deserved is None else share(queue.allocated, deserved))

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Reject a gang whose minimum exceeds the real capability of its queue."""
        if gang.single or self._cache is None:
            return None
        queue = self._cache.queues.of(gang)
        if rejection := queue_state_rejection(queue):
            return rejection
        limit = self._division.real_capability(queue.name)
        if not gang.min_resources or limit is None:
            return True
        rejection = over_limit(gang.min_request, inqueue(queue), limit)
        if rejection is None:
            return True
        gained, request = queue_gained(queue.name), tuple(compared(gang.min_request))
        return replace(
            rejection,
            wake_on=frozenset({gained, QUEUES, TOTAL}),
            shared=True,
            limit_need=LimitNeed(frozenset({gained}), request, self._free, queue.name),
        )

    def _free(self, name: str) -> Amounts:
        """Return what gangs that are admitted to queue *name* may have, as of the last session."""
        queue = self._cache.queues.by_name.get(name) if self._cache else None
        limit = self._division.real_capability(name)
        return free_of_limit(queue, limit) if queue and limit else {}

    def job_enqueued(self, gang: Gang) -> None:
        """Do nothing: the cache adds the minimum of an admitted gang to ``reserved``."""

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* are within what the queue deserves."""
        deserved = self._division.deserved(queue.name)
        if deserved is None or queue_state_rejection(queue):
            return 0
        return count_within(eq_class.request, queue.allocated, deserved)

    def borrowable_count(
        self, queue: QueueInfo, eq_class: EquivalenceClass, fraction: float
    ) -> int:
        """Return how many more pods of *eq_class* the queue may have with what others leave idle:
        within its capability, without what others are guaranteed, and *fraction* more than it
        deserves."""
        limit = self._division.real_capability(queue.name)
        deserved = self._division.deserved(queue.name)
        if limit is None or deserved is None or queue_state_rejection(queue):
            return 0
        count = count_within(eq_class.request, queue.allocated, limit)
        if math.isfinite(fraction):
            most = {name: int(units * (1 + fraction)) for name, units in deserved.items()}
            count = min(count, count_within(eq_class.request, queue.allocated, most))
        return count

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection:
        """Return what is insufficient for one more pod of *eq_class*."""
        deserved = self._division.deserved(queue.name)
        rejection = queue_state_rejection(queue)
        if rejection is None and deserved is not None:
            rejection = over_limit(eq_class.request, queue.allocated, deserved)
            if rejection is not None:
                wake_on = frozenset({queue_gained(queue.name), QUEUES, TOTAL})
                rejection = replace(rejection, wake_on=wake_on)
        return rejection or Rejection(NOT_ENOUGH_RESOURCES, "queue resource quota insufficient")

    def preemptive_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* are within what the queue deserves."""
        return self.allocatable_count(queue, eq_class)

    def reclaimable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        """Permit tasks while their queue has more than it deserves."""
        allocated: dict[str, Amounts] = {}
        victims = []
        for task in candidates:
            queue = self._queue_of(task)
            deserved = self._division.deserved(queue.name) if queue else None
            if queue is None or deserved is None:
                continue
            left = allocated.setdefault(queue.name, dict(queue.allocated))
            if any(units > deserved.get(name, 0) for name, units in left.items()):
                add_amounts(left, task.eq_class.request, -1)
                victims.append(task)
        return victims

    def victim_mask(self, preemptor: Preemptor, table: TaskTable, slots: IntVector) -> BoolVector:
        """Exclude the tasks of queues that have no more than they deserve."""
        queues = table.queue[slots]
        numbers, first = np.unique(queues, return_index=True)
        tasks = (table.tasks[slot] for slot in slots[first].tolist())
        over = [task is not None and bool(self.reclaimable(preemptor, (task,))) for task in tasks]
        return np.isin(queues, numbers[np.array(over, np.bool_)])

    def _queue_of(self, task: Task) -> QueueInfo | None:
        if self._cache is None or task.gang is None:
            return None
        return self._cache.queues.of(task.gang)

    def overused(self, queue: QueueInfo) -> bool:
        """Return whether all that the queue deserves is allocated."""
        deserved = self._division.deserved(queue.name)
        return bool(deserved) and all(
            queue.allocated.get(name, 0) >= n for name, n in (deserved or {}).items()
        )


class Division:
    """What each queue deserves and may have at most, updated for queues that changed.

    Queues without gangs get nothing.
    """

    def __init__(self) -> None:
        """Start without queues."""
        self._names: list[str] = []
        self._rows: dict[str, int] = {}
        self._resources: list[str] = []
        self._active = np.zeros(0, np.bool_)
        self._weights = np.zeros(0, np.int64)
        self._total = np.zeros(0, np.int64)
        self._requested = self._guarantee = self._limit = self._deserved = np.zeros(
            (0, 0), np.int64
        )
        self._capabilities: list[Amounts] = []
        self._deserved_amounts: dict[str, Amounts] = {}
        self._versions = (-1, -1)
        self._position = 0

    def deserved(self, name: str) -> Amounts | None:
        """Return what queue *name* deserves; ``None`` if it has no gangs."""
        known = self._deserved_amounts.get(name)
        if known is not None:
            return known
        row = self._rows.get(name, -1)
        if row < 0 or not self._active[row]:
            return None
        units = self._deserved[row].tolist()
        found = {each: n for each, n in zip(self._resources, units, strict=True) if n}
        self._deserved_amounts[name] = found
        return found

    def real_capability(self, name: str) -> Amounts | None:
        """Return the maximum of queue *name*, where a resource without an entry is not limited;
        ``None`` if it has no gangs."""
        row = self._rows.get(name, -1)
        return self._capabilities[row] if row >= 0 and self._active[row] else None

    def update(self, cache: SchedulerCache) -> None:
        """Update for what has changed, and publish which queues deserve more than before."""
        versions = (cache.node_matrix.total_version, cache.queues.version)
        changed = cache.queues.log.since(self._position)
        self._position = cache.queues.log.position
        if versions != self._versions or changed is None:
            self._versions = versions
            self._rebuild(cache)
        elif not changed:
            return
        elif not self._update_rows(cache, set(changed)):
            self._rebuild(cache)
        before = self._deserved
        self._divide()
        if before.shape != self._deserved.shape:
            cache.scheduling_queue.publish(QUEUES)
            return
        for row in np.flatnonzero((self._deserved > before).any(axis=1)).tolist():
            cache.scheduling_queue.publish(queue_gained(self._names[row]))

    def _rebuild(self, cache: SchedulerCache) -> None:
        by_name = sorted(cache.queues.by_name.values(), key=lambda each: each.name)
        queues = [(queue, queue.object.spec) for queue in by_name if queue.object]
        total = cache.node_matrix.total()
        guarantees = [guarantee_of(spec) for _, spec in queues]
        left = unguaranteed(total, sum_amounts(guarantees))
        self._names = [queue.name for queue, _ in queues]
        self._rows = {name: row for row, name in enumerate(self._names)}
        self._capabilities = [
            real_capability(spec, guarantee, left)
            for (_, spec), guarantee in zip(queues, guarantees, strict=True)
        ]
        requested = [queue.requested for queue, _ in queues]
        self._resources = sorted(set().union(total, *guarantees, *requested))
        self._weights = np.array([max(spec.weight, 1) for _, spec in queues], np.int64)
        self._total = self._vector(total)
        self._guarantee = self._matrix(guarantees)
        self._limit = self._matrix(self._capabilities, missing=UNLIMITED)
        self._requested = self._matrix(requested)
        self._active = np.array([bool(queue.gangs) for queue, _ in queues], np.bool_)
        self._deserved = np.zeros((0, 0), np.int64)

    def _update_rows(self, cache: SchedulerCache, names: set[str]) -> bool:
        """Update the requests of queues; returns whether all of their resources are known."""
        known, rows, requested = set(self._resources), list[int](), list[Amounts]()
        for name in names:
            row, queue = self._rows.get(name, -1), cache.queues.by_name.get(name)
            if row < 0 or queue is None:
                continue
            if not queue.requested.keys() <= known:
                return False
            rows.append(row)
            requested.append(queue.requested)
            self._active[row] = bool(queue.gangs)
        self._requested[rows] = self._matrix(requested)
        return True

    def _divide(self) -> None:
        self._deserved_amounts.clear()
        active = np.flatnonzero(self._active)
        self._deserved = np.zeros_like(self._requested)
        self._deserved[active] = divide(
            self._weights[active],
            self._requested[active],
            self._guarantee[active],
            self._limit[active],
            self._total,
        )

    def _vector(self, units: Amounts) -> IntVector:
        return np.array([units.get(name, 0) for name in self._resources], np.int64)

    def _matrix(self, rows: list[Amounts], missing: int = 0) -> Matrix:
        if not rows:
            return np.zeros((0, len(self._resources)), np.int64)
        return np.array(
            [[row.get(name, missing) for name in self._resources] for row in rows], np.int64
        )
