"""``capacity``: queues with absolute amounts: guaranteed, deserved, and at most.

A queue may borrow beyond what it deserves, up to its capability without what others are guaranteed;
others may reclaim what it has borrowed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...model.queue import QueueSpec
from ..state.cache.cache import SchedulerCache
from ..state.devices.requests import DEVICE_CLASS
from ..state.gangs.gang import Gang, QueueInfo, Task, add_amounts, sum_amounts
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import QUEUES, TOTAL, ClusterEvent, LimitNeed, queue_gained
from ..state.resources import MAX_AMOUNT, Amounts, amounts
from .arguments import integer
from .extension_points import NOT_ENOUGH_RESOURCES, Allocation, Rejection
from .queue_devices import QueueDevices
from .queue_limits import (
    Claimant,
    QueueLimits,
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


@dataclass(slots=True)
class QueueLevel:
    """A queue with its limits, and the sums that are compared with them."""

    name: str
    limits: QueueLimits
    allocated: Amounts = field(default_factory=dict)
    reserved: Amounts = field(default_factory=dict)
    elastic: Amounts = field(default_factory=dict)

    @property
    def sums(self) -> tuple[Amounts, Amounts, Amounts]:
        """The sums, to be changed in place."""
        return (self.allocated, self.reserved, self.elastic)

    def order_key(self) -> tuple[float, float]:
        """Return the smaller allocated fraction of what it deserves first, then queues that
        deserve something."""
        deserved = self.limits.deserved
        return (share(self.allocated, deserved), float(not deserved))


class CapacityPlugin:
    """Limits and orders queues that are independent of each other."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the arguments."""
        self.ancestor_reclaim_level = integer(
            arguments, "ancestorReclaimLevel", default=0, minimum=0
        )
        self._cache: SchedulerCache | None = None
        self._limits: dict[str, QueueLimits] = {}
        self._specs: dict[str, QueueSpec] = {}
        self._total: Amounts = {}
        self._versions = (-1, -1)
        self._devices: QueueDevices | None = None
        """If a queue deserves some."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Compute the limits again if a queue or the cluster has changed; count devices."""
        self._cache = cache
        versions = (cache.queues.version, cache.node_matrix.total_version)
        if versions != self._versions:
            self._versions = versions
            total = cache.node_matrix.total()
            if self._update_specs(cache) or total != self._total:
                self._total = total
                self._compute_limits()
        deserved = (name for spec in self._specs.values() for name in _deserved(spec))
        names = frozenset(name for name in deserved if DEVICE_CLASS in name)
        self._devices = QueueDevices(cache, names) if names else None

    def allocated(self, change: Allocation) -> None:
        """Count the devices of *change*."""
        if self._devices is not None:
            self._devices.change(change, allocated=True)

    def deallocated(self, change: Allocation) -> None:
        """Count the devices of *change* no more."""
        if self._devices is not None:
            self._devices.change(change, allocated=False)

    def queue_order(self, queue: QueueInfo) -> tuple[float, ...]:
        """Higher priority first, then the order of the levels."""
        levels = self.levels(queue)
        priority = levels[0].limits.priority if levels else 0
        return (-priority, *(key for level in reversed(levels) for key in level.order_key()))

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Reject a gang whose minimum exceeds the limit of a level."""
        if gang.single or self._cache is None:
            return None
        queue = self._cache.queues.of(gang)
        if rejection := queue_state_rejection(queue) or self.problem(queue):
            return rejection
        if not gang.min_resources:
            return True
        for level in self.levels(queue):
            used = inqueue(level)
            limit, above = level.limits.real_capability, _name_above(level, queue)
            if rejection := over_limit(gang.min_request, used, limit, queue=above):
                gained = frozenset(queue_gained(each.name) for each in self.levels(queue))
                return replace(
                    rejection,
                    wake_on=gained | {QUEUES, TOTAL},
                    shared=True,
                    limit_need=self.limit_need(gang, queue, gained),
                )
        return True

    def job_enqueued(self, gang: Gang) -> None:
        """Do nothing: the cache adds the minimum of an admitted gang to ``reserved``."""

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* are within the limits of all levels."""
        if queue_state_rejection(queue) or self.problem(queue):
            return 0
        counts = (
            count_within(eq_class.request, level.allocated, level.limits.real_capability)
            for level in self.levels(queue)
        )
        return min(counts, default=MAX_AMOUNT)

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection:
        """Return what is insufficient for one more pod of *eq_class*."""
        if rejection := queue_state_rejection(queue) or self.problem(queue):
            return rejection
        for level in self.levels(queue):
            limit, above = level.limits.real_capability, _name_above(level, queue)
            if rejection := over_limit(eq_class.request, level.allocated, limit, queue=above):
                wake_on = frozenset({queue_gained(level.name), QUEUES, TOTAL})
                return replace(rejection, wake_on=wake_on)
        return Rejection(NOT_ENOUGH_RESOURCES, "queue resource quota insufficient")

    # -- eviction ------------------------------------------------------------------------------

    def preemptive_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return for how many more pods of *eq_class* the queue may reclaim: within its own limit,
        and for one resource within what it, or an ancestor that counts, deserves.

        The limits of ancestors are compared once it is known what is evicted: in a full cluster
        only evictions free a part of those that the queue has in common with the victims.
        """
        if queue_state_rejection(queue) or self.problem(queue):
            return 0
        within_limit = min(
            (
                count_within(eq_class.request, level.allocated, level.limits.real_capability)
                for level in self.levels(queue)[:1]
            ),
            default=MAX_AMOUNT,
        )
        counts = (
            (level.limits.deserved.get(name, 0) - level.allocated.get(name, 0)) // units
            for level in self.reclaim_levels(queue)
            for name, units in self._wanted(eq_class)
        )
        return max(min(within_limit, max(counts, default=0)), 0)

    def reclaimable(self, preemptor: Claimant, candidates: Sequence[Task]) -> Sequence[Task] | None:
        """Permit tasks of queues that have more than they deserve, and keep their guarantee."""
        cache = self._cache
        if cache is None:
            return None
        wanted = {name for name, _ in self._wanted(preemptor.eq_class)}
        left: dict[str, Amounts] = {}
        lost: set[str] = set()
        """Claims of the victims."""
        victims = []
        for task in candidates:
            if task.gang is None:
                continue
            queue = cache.queues.of(task.gang)
            levels = self.losing_levels(queue, preemptor.queue)
            request = self._lost(task.eq_class, lost)
            if not levels or wanted.isdisjoint(request):
                continue
            for level in levels:
                left.setdefault(level.name, dict(level.allocated))
            if all(_may_lose(level.limits, left[level.name], request) for level in levels):
                for level in levels:
                    add_amounts(left[level.name], request, -1)
                lost.update(task.eq_class.devices.held)
                victims.append(task)
        return victims

    # -- what a hierarchy changes --------------------------------------------------------------

    def problem(self, queue: QueueInfo) -> Rejection | None:
        """Return why *queue* cannot have any pods, or ``None``."""
        return None

    def levels(self, queue: QueueInfo) -> Sequence[QueueLevel]:
        """Return *queue* with its current sums, followed by its ancestors."""
        limits = self._limits.get(queue.name)
        if limits is None:
            return ()
        allocated = self._allocated_of(queue)
        return (QueueLevel(queue.name, limits, allocated, queue.reserved, queue.elastic),)

    def limit_need(
        self, gang: Gang, queue: QueueInfo, gained: frozenset[ClusterEvent]
    ) -> LimitNeed | None:
        """Return what must be free in *queue* after the events *gained* to admit *gang*, if that
        is known before the next session."""
        return LimitNeed(gained, tuple(compared(gang.min_request)), self._free, queue.name)

    def reclaim_levels(self, queue: QueueInfo) -> Sequence[QueueLevel]:
        """Return the levels of *queue* that entitle it to what they deserve."""
        return self.levels(queue)[:1]

    def losing_levels(self, queue: QueueInfo, gaining: QueueInfo) -> Sequence[QueueLevel]:
        """Return the levels that lose a task of *queue* for one of *gaining*, and have to have more
        than they deserve."""
        return self.levels(queue)[:1]

    def _compute_limits(self) -> None:
        guaranteed = sum_amounts(map(guarantee_of, self._specs.values()))
        self._limits = {
            name: _limits(spec, available=self._total, guaranteed=guaranteed)
            for name, spec in self._specs.items()
        }

    # -- private -------------------------------------------------------------------------------

    def _allocated_of(self, queue: QueueInfo) -> Amounts:
        """Return what *queue* itself has, with the devices that a queue deserves."""
        devices = self._devices.of(queue) if self._devices is not None else None
        return sum_amounts((queue.allocated, devices)) if devices else queue.allocated

    def _wanted(self, eq_class: EquivalenceClass) -> Iterable[tuple[str, int]]:
        """Return what a pod of *eq_class* needs of what queues deserve."""
        if self._devices is None:
            return compared(eq_class.request)
        return compared(sum_amounts((eq_class.request, self._devices.needed_by(eq_class))))

    def _lost(self, eq_class: EquivalenceClass, lost: set[str]) -> Amounts:
        """Return what a queue loses with a pod of *eq_class*, apart from the devices of the claims
        *lost*."""
        request = dict(compared(eq_class.request))
        if self._devices is not None:
            add_amounts(request, self._devices.lost_with(eq_class, lost))
        return request

    def _free(self, name: str) -> Amounts:
        """Return what gangs that are admitted to queue *name* may have, as of the last session."""
        queue = self._cache.queues.by_name.get(name) if self._cache else None
        limits = self._limits.get(name)
        return free_of_limit(queue, limits.real_capability) if queue and limits else {}

    def _update_specs(self, cache: SchedulerCache) -> bool:
        """Return whether the spec of a queue has changed, or a queue is new or deleted."""
        changed = False
        for name, spec in _specs(cache):
            if self._specs.get(name) != spec:
                self._specs[name] = spec
                changed = True
        for name in [each for each in self._specs if not _has_object(cache, each)]:
            del self._specs[name]
            changed = True
        return changed


def _specs(cache: SchedulerCache) -> Iterator[tuple[str, QueueSpec]]:
    for queue in cache.queues.by_name.values():
        if queue.object is not None:
            yield queue.name, queue.object.spec


def _deserved(spec: QueueSpec) -> Iterator[str]:
    """Yield the names of what a queue deserves."""
    yield from spec.deserved
    yield from spec.guarantee.resource


def _has_object(cache: SchedulerCache, name: str) -> bool:
    queue = cache.queues.by_name.get(name)
    return queue is not None and queue.object is not None


def _limits(spec: QueueSpec, *, available: Amounts, guaranteed: Amounts) -> QueueLimits:
    guarantee = guarantee_of(spec)
    capability = real_capability(spec, guarantee, unguaranteed(available, guaranteed))
    devices = {name: n for name, n in amounts(spec.capability).items() if DEVICE_CLASS in name}
    limit = {name: n for name, n in capability.items() if DEVICE_CLASS not in name} | devices
    deserved = {
        name: min(units, limit.get(name, units)) for name, units in amounts(spec.deserved).items()
    }
    for name, units in guarantee.items():
        deserved[name] = max(deserved.get(name, 0), units)
    return QueueLimits(guarantee, deserved, capability, spec.priority)


def _may_lose(limits: QueueLimits, allocated: Amounts, request: Amounts) -> bool:
    """Return whether a queue that has *allocated* may lose *request*."""
    for name, units in request.items():
        if allocated.get(name, 0) - units < limits.guarantee.get(name, 0):
            return False
    common = request.keys() & limits.deserved.keys()
    return not common or any(allocated.get(name, 0) > limits.deserved[name] for name in common)


def _name_above(level: QueueLevel, queue: QueueInfo) -> str:
    """Return the name of *level* unless it is *queue*."""
    return "" if level.name == queue.name else level.name
