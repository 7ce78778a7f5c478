"""Limits of queues on devices of claims: ``deviceclass/NAME`` in their capability, and
``CAPACITY.deviceclass/NAME`` for a capacity of these devices.

Devices are no resources of nodes, and a claim may be shared by pods, so that they are counted by
claim: once in the queue of its pods, and in the ancestors of that. A session counts what is
allocated when it needs that first, and from then on what it allocates.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..plugins.extension_points import NOT_ENOUGH_RESOURCES, Allocation, Rejection
from ..plugins.queue_limits import insufficient
from ..state.cache.cache import SchedulerCache
from ..state.devices.requests import DEVICE_CLASS
from ..state.gangs.device_demands import Bounds, needed
from ..state.gangs.diagnosis import Shortage
from ..state.gangs.gang import QueueInfo, add_amounts, sum_amounts
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import QUEUES, queue_gained
from ..state.resources import MAX_AMOUNT, Amounts


class DeviceQuota:
    """What the queues of a session have of the devices that they have limits for."""

    def __init__(self, cache: SchedulerCache) -> None:
        """Count what is allocated."""
        self._queues = cache.queues
        self._claims = cache.pod_classes.device_claims
        self._limits = cache.queues.device_limits()
        self._used: dict[str, Amounts] = {name: {} for name in self._limits}
        self._shared: dict[str, int] = {}
        """How many pods have got a node in this session with a claim that they share."""
        if self._limits:
            for uid, devices in self._claims.allocated():
                task = cache.task(uid)
                if task is not None and task.gang is not None:
                    self._add(cache.queues.of(task.gang).name, devices, 1)

    def count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* are within the limits of *queue*."""
        if not self._limits or not eq_class.devices.pending:
            return MAX_AMOUNT
        each, once, bounds = self._needed(eq_class)
        count = MAX_AMOUNT
        for name, limit in self._limits_of(queue):
            for key, units in limit.items():
                free = units - self._used[name].get(key, 0) - once.get(key, 0)
                if _exceeds_bounds(key, bounds) or (free < 0 and once.get(key)):
                    return 0
                if wanted := each.get(key):
                    count = min(count, max(free // wanted, 0))
        return count

    def rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection:
        """Return what is insufficient for one more pod of *eq_class*."""
        each, once, bounds = self._needed(eq_class)
        wanted = sum_amounts((each, once))
        for name, limit in self._limits_of(queue):
            of = "queue" if name == queue.name else f'queue "{name}"'
            if unknown := sorted(key for key in limit if _exceeds_bounds(key, bounds)):
                what = "all devices" if unknown[0].startswith(DEVICE_CLASS) else "any capacity"
                text = f"{of} limits {unknown[0]}: claims for {what} cannot be counted"
                return Rejection(NOT_ENOUGH_RESOURCES, text, wake_on=frozenset({QUEUES}))
            used = self._used[name]
            shortages = tuple(
                Shortage(key, wanted[key], units, used.get(key, 0))
                for key, units in sorted(limit.items())
                if key in wanted and used.get(key, 0) + wanted[key] > units
            )
            if shortages:
                found = insufficient(f"{of} resource quota", shortages)
                wake_on = frozenset({queue_gained(name), QUEUES})
                return Rejection(found.reason, found.message, wake_on=wake_on, shortages=shortages)
        return Rejection(NOT_ENOUGH_RESOURCES, "queue resource quota insufficient")

    def change(self, change: Allocation, *, allocated: bool) -> None:
        """Count *change*, which the session has allocated, or else deallocated.

        What evicted pods have is counted until their claims are not allocated any more.
        """
        times = len(change.tasks) if allocated else -len(change.tasks)
        self._count_pending(change.queue, change.eq_class, times)

    @contextmanager
    def counted(self, queue: QueueInfo, eq_class: EquivalenceClass, count: int) -> Iterator[None]:
        """Count *count* pods of *eq_class* as allocated in the block."""
        self._count_pending(queue, eq_class, count)
        try:
            yield
        finally:
            self._count_pending(queue, eq_class, -count)

    def _count_pending(self, queue: QueueInfo, eq_class: EquivalenceClass, count: int) -> None:
        if not self._limits:
            return
        for each in eq_class.devices.pending:
            times = count
            if each.key:
                before = self._shared.get(each.key, 0)
                self._shared[each.key] = before + count
                times = (before + count > 0) - (before > 0)
            self._add(queue.name, needed(each.devices)[0], times)

    def _limits_of(self, queue: QueueInfo) -> Iterator[tuple[str, Amounts]]:
        for name in self._queues.with_ancestors(queue.name):
            if name in self._limits:
                yield name, self._limits[name]

    def _needed(self, eq_class: EquivalenceClass) -> tuple[Amounts, Amounts, Bounds]:
        """Return what each pod needs, what its shared claims need once, and what of it cannot be
        known."""
        each: Amounts = {}
        once: Amounts = {}
        bounds_of_all: set[tuple[str, frozenset[str]]] = set()
        for claim in eq_class.devices.pending:
            if claim.key and self._shared.get(claim.key):
                continue
            found, bounds = needed(claim.devices)
            add_amounts(once if claim.key else each, dict(found))
            bounds_of_all |= bounds
        return each, once, frozenset(bounds_of_all)

    def _add(self, queue_name: str, devices: Mapping[str, int], times: int) -> None:
        for name in self._queues.with_ancestors(queue_name):
            if name in self._used:
                add_amounts(self._used[name], dict(devices), times)


def _exceeds_bounds(key: str, bounds: Bounds) -> bool:
    """Return whether it cannot be known what claims need of what the limit *key* is about."""
    capacity, _, name = key.rpartition(DEVICE_CLASS)
    name = f"{DEVICE_CLASS}{name}"
    return any(
        name == each and capacity.removesuffix(".") not in bounded for each, bounded in bounds
    )
