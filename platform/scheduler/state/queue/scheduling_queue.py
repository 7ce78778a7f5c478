"""Which gangs are to be tried, and what the others wait for.

A gang that was rejected is unschedulable. It is kept in a *group* of gangs with equal demand, which
the same rejection concerns. A group wakes when one of the things that it waits for happens; then
its first gang is tried, and the others only if that one is scheduled. A gang that itself has
changed, whose timer is due, or that has not been tried for long, is tried on its own.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from ..gangs.gang import Gang
from ..podinfo.equivalence import EquivalenceClass
from .starving_groups import StarvingGroups

OrderKey = tuple[object, ...]
"""Sort key of a gang; unique."""

RESYNC_SECONDS = 300.0
"""A gang is tried again after this time if nothing has woken it."""

_RESYNC_BATCH = 100
"""How many gangs a cycle tries for that reason: one cycle may have rejected thousands."""


class ClusterEvent(NamedTuple):
    """An event after which rejected gangs may be schedulable."""

    kind: str
    name: str = ""


ANY = ClusterEvent("any")
"""Waited for: each of the others. Published: every gang is to be tried again."""

FREED = ClusterEvent("freed")
"""Resources of a node were freed, or a node was added or changed."""

USAGE = ClusterEvent("usage")
"""A pod arrived at a node or left it."""

RESERVED = ClusterEvent("reserved")
"""Admitted gangs need less than before."""

PODGROUP = ClusterEvent("podgroup")
"""The spec of a PodGroup changed."""

QUEUES = ClusterEvent("queues")
"""The spec of a queue changed."""

TOTAL = ClusterEvent("total")
"""What all nodes have in total changed."""

VICTIMS = ClusterEvent("victims")
"""What decides about evictions changed: status, priority or traits of pods, sums of queues."""

CYCLE = ClusterEvent("cycle")
"""A cycle has tried all gangs."""

STARTS = ClusterEvent("starts")
"""A planned start has moved or ended, so that others may start."""

OWN: frozenset[ClusterEvent] = frozenset()
"""Waited for by a gang that only its own changes can help."""

RESYNC, TIMER, NODES = "resync", "timer", "nodes"
"""Other reasons of a retry."""


def queue_gained(name: str) -> ClusterEvent:
    """Return the event that queue *name* may allocate or admit more."""
    return ClusterEvent("queue", name)


def plugin_event(name: str) -> ClusterEvent:
    """Return an event that a plugin defines."""
    return ClusterEvent("plugin", name)


@dataclass(frozen=True, slots=True)
class NodeNeed:
    """The nodes take fewer than *count* pods of a class."""

    eq_class: EquivalenceClass
    count: int
    capacity: int
    """How many they take."""


@dataclass(frozen=True, slots=True)
class LimitNeed:
    """What a limit must leave free for gangs with equal demand to be admitted."""

    events: frozenset[ClusterEvent]
    """Events of no use to the gangs while less than that is free."""

    request: tuple[tuple[str, int], ...]
    free_of: Callable[[str], Mapping[str, int]]
    """Returns what is free now of the limit of that name, or more."""

    name: str = ""

    def is_met(self, free: Mapping[str, int]) -> bool:
        """Return whether *free* is sufficient."""
        return all(free.get(name, 0) >= units for name, units in self.request)


@dataclass(frozen=True, slots=True)
class QueueingHints:
    """What a rejected gang waits for; any of it is enough."""

    events: frozenset[ClusterEvent] = OWN
    needs: tuple[NodeNeed, ...] = ()
    demand: Hashable | None = None
    """Equal for gangs that the same rejection concerns; ``None`` if it concerns this one only."""

    limit_need: LimitNeed | None = None
    """What must be free, too, after some of the events."""

    def __or__(self, other: "QueueingHints") -> "QueueingHints":
        """Return what a gang waits for that was rejected twice."""
        return QueueingHints(self.events | other.events, self.needs + other.needs)


class UnschedulableGroup:
    """Parked gangs with equal demand, in order."""

    def __init__(self, demand: Hashable) -> None:
        """Start without gangs."""
        self.demand = demand
        self.hints = QueueingHints()
        self.order_version: object = None
        self.is_woken_by_nodes = False
        """Whether it was woken for no other reason than that its needs are met."""
        self._members: list[tuple[OrderKey, Gang]] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Gang]:
        """Return the gangs, the first one first."""
        return (gang for _, gang in self._members)

    @property
    def gangs(self) -> list[Gang]:
        """The gangs, the first one first."""
        return [gang for _, gang in self._members]

    def members(self) -> list[tuple[OrderKey, Gang]]:
        """Return the gangs with their order, the first one first."""
        return list(self._members)

    def first(self) -> tuple[OrderKey, Gang]:
        """Return the first gang with its order."""
        return self._members[0]

    def add(self, order: OrderKey, gang: Gang) -> None:
        """Add *gang*."""
        insort(self._members, (order, gang), key=_order)
        gang.group_order = order

    def remove(self, gang: Gang) -> None:
        """Remove *gang*."""
        index = bisect_left(self._members, gang.group_order, key=_order)
        if self._members[index][1] is not gang:
            raise ValueError(f"{gang.key} is not in the group")
        del self._members[index]

    def sort(self, order: Callable[[Gang], OrderKey], version: object) -> None:
        """Sort the gangs again if orders have changed since, that is, with another *version*."""
        if self.order_version == version:
            return
        self.order_version = version
        self._members = sorted(((order(gang), gang) for gang in self.gangs), key=_order)
        for key, gang in self._members:
            gang.group_order = key


def _is_possible(
    need: LimitNeed | None, event: ClusterEvent, known: dict[object, Mapping[str, int]]
) -> bool:
    """Return whether *event* may help gangs with *need*; *known* is what is free of limits."""
    if need is None or event not in need.events:
        return True
    key = need.free_of, need.name
    free = known.get(key)
    if free is None:
        free = known[key] = need.free_of(need.name)
    return need.is_met(free)


def _order(member: tuple[OrderKey, Gang]) -> OrderKey:
    return member[0]


@dataclass(slots=True)
class _NeededClass:
    """The groups that wait for capacity for one class."""

    counts: dict[UnschedulableGroup, int] = field(default_factory=dict)


class SchedulingQueue:
    """The pending gangs: those to be tried, and the unschedulable ones."""

    def __init__(self) -> None:
        """Start without gangs."""
        self.active: dict[str, Gang] = {}
        """Gangs to be tried one by one."""
        self.woken: dict[Hashable, UnschedulableGroup] = {}
        """Groups whose first gang is to be tried."""
        self.retries: Counter[str] = Counter()
        """How often unschedulable gangs and groups were to be tried again, by reason."""
        self.published: set[ClusterEvent] = set()
        """Events that have not woken the gangs yet."""
        self._groups: dict[Hashable, UnschedulableGroup] = {}
        self.starving = StarvingGroups(self._groups)
        """For which groups pods may be evicted."""
        self._by_event: dict[ClusterEvent, dict[Hashable, UnschedulableGroup]] = {}
        self._by_class: dict[EquivalenceClass, _NeededClass] = {}
        self._tried_at: dict[str, tuple[float, Gang]] = {}
        """When unschedulable gangs were tried, in order."""
        self._timers: list[tuple[float, str]] = []
        self._timer_of: dict[str, float] = {}
        self._has_holds = False
        """Whether resources were held for gangs that wait when that was noted last."""

    def __len__(self) -> int:
        """Return the number of unschedulable gangs."""
        return len(self._tried_at)

    # -- gangs ---------------------------------------------------------------------------------

    def add_unschedulable(
        self,
        gang: Gang,
        hints: QueueingHints,
        order: OrderKey,
        *,
        order_version: object,
        now: float,
        retry_at: float | None = None,
    ) -> None:
        """Add *gang*, which was rejected at Unix time *now*; it is not tried until something wakes
        it."""
        self.discard(gang)
        demand = hints.demand or ("gang", gang.key)
        group = self._groups.get(demand)
        if group is None:
            group = self._groups[demand] = UnschedulableGroup(demand)
            group.order_version = order_version
        elif group.order_version != order_version:
            group.order_version = None  # to be sorted before it is used
        group.add(order, gang)
        gang.unschedulable_group, gang.rejected_version = group, gang.version
        self._tried_at[gang.key] = (now, gang)
        if retry_at is not None:
            self._timer_of[gang.key] = retry_at
            heapq.heappush(self._timers, (retry_at, gang.key))
        self.woken.pop(demand, None)
        if hints != group.hints:
            self._remove_from_indexes(group)
            group.hints = hints
            self._add_to_indexes(group)

    def activate_all(self) -> None:
        """Let each unschedulable gang be tried on its own."""
        for _, gang in list(self._tried_at.values()):
            self.activate(gang, ANY.kind)

    def activate(self, gang: Gang, reason: str = "") -> None:
        """Let *gang* be tried on its own; *reason* is that of a retry."""
        if reason and gang.unschedulable_group is not None:
            self.retries[reason] += 1
        self.discard(gang)
        self.active[gang.key] = gang

    def discard(self, gang: Gang) -> None:
        """Forget *gang*, if it is known."""
        self.active.pop(gang.key, None)
        self._tried_at.pop(gang.key, None)
        self._timer_of.pop(gang.key, None)
        group = gang.unschedulable_group
        if group is None:
            return
        gang.unschedulable_group = None
        group.remove(gang)
        if not group:
            self._remove_from_indexes(group)
            del self._groups[group.demand]
            self.woken.pop(group.demand, None)
            self.starving.forget(group.demand)

    # -- events --------------------------------------------------------------------------------

    def publish(self, event: ClusterEvent) -> None:
        """Record that *event* has happened."""
        self.published.add(event)

    def wake_published(self) -> None:
        """Wake the groups that wait for what was published."""
        published, self.published = self.published, set()
        if published - {CYCLE}:
            self.starving.retry()
        if ANY in published:
            for group in self._groups.values():
                self._wake(group, ANY.kind)
            return
        free: dict[object, Mapping[str, int]] = {}
        for event in sorted(published):
            for group in self._by_event.get(event, {}).values():
                if _is_possible(group.hints.limit_need, event, free):
                    self._wake(group, event.kind)
        if published:
            for group in self._by_event.get(ANY, {}).values():
                self._wake(group, ANY.kind)

    def note_holds(self, *, has_holds: bool, events: frozenset[ClusterEvent]) -> None:
        """Note whether anything is held for gangs. What nodes take depends on the gang then, so
        groups that wait for nodes, and were rejected before, are woken by *events*, too."""
        if has_holds and not self._has_holds:
            for group in self._groups.values():
                if group.hints.needs:
                    self._remove_from_indexes(group)
                    group.hints = replace(group.hints, events=group.hints.events | events)
                    self._add_to_indexes(group)
        self._has_holds = has_holds

    def needed_classes(self) -> Iterable[EquivalenceClass]:
        """Return the classes for which groups wait for capacity."""
        return self._by_class.keys()

    def wake_class(self, eq_class: EquivalenceClass, capacity: int) -> None:
        """Wake the groups that need no more than *capacity* pods of *eq_class* to fit."""
        needed = self._by_class.get(eq_class)
        if needed is not None:
            for group, count in needed.counts.items():
                if count <= capacity:
                    self._wake(group, NODES)

    def activate_exceeding(self, eq_class: EquivalenceClass, capacity: int) -> None:
        """Activate the gangs that need more than *capacity* pods of *eq_class*, all that the nodes
        could take if nothing else ran, and that were rejected when that was more: nothing is to be
        kept from others for them."""
        needed = self._by_class.get(eq_class)
        groups = [] if needed is None else [*needed.counts.items()]
        for group, count in groups:
            for gang in group.gangs if count > capacity else ():
                is_known = gang.diagnosis is None or gang.diagnosis.exceeds_nodes
                if not is_known and gang.counts.allocated < gang.min_member:
                    self.activate(gang, NODES)

    def wake_due(self, now: float) -> None:
        """Activate the gangs whose timer is due at Unix time *now*, and some of those that were not
        tried for long."""
        while self._timers and self._timers[0][0] <= now:
            due, key = heapq.heappop(self._timers)
            if self._timer_of.get(key) == due:
                self.activate(self._tried_at[key][1], TIMER)
        for tried_at, gang in list(islice(self._tried_at.values(), _RESYNC_BATCH)):
            if tried_at + RESYNC_SECONDS > now:
                return
            self.activate(gang, RESYNC)

    def next_due(self) -> float | None:
        """Return when :meth:`wake_due` is to be called next, in Unix time."""
        while self._timers and self._timer_of.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        due = [self._timers[0][0]] if self._timers else []
        if self._tried_at:
            due.append(next(iter(self._tried_at.values()))[0] + RESYNC_SECONDS)
        evictions_due = self.starving.next_due()
        return min(due if evictions_due is None else [*due, evictions_due], default=None)

    def groups(self) -> Iterable[UnschedulableGroup]:
        """Return all groups."""
        return self._groups.values()

    def group(self, demand: Hashable) -> UnschedulableGroup | None:
        """Return the group with *demand*."""
        return self._groups.get(demand)

    def is_woken(self, demand: Hashable) -> bool:
        """Return whether the group with *demand* is to be tried again."""
        return demand in self.woken

    def is_awaited(self, event: ClusterEvent) -> bool:
        """Return whether a group waits for *event* itself."""
        return event in self._by_event

    def is_to_be_tried(self, gang: Gang) -> bool:
        """Return whether *gang* is to be tried on its own or is in a group that was woken."""
        group = gang.unschedulable_group
        return gang.key in self.active or (group is not None and group.demand in self.woken)

    def has_work(self) -> bool:
        """Return whether something was published that a group waits for."""
        if not self.published or not self._groups:
            return False
        if ANY in self.published or ANY in self._by_event or self.starving.actions:
            return True
        return not self._by_event.keys().isdisjoint(self.published)

    def to_try(self, at_most: int) -> int:
        """Return how many tasks are to be tried, or some number above *at_most*.

        A gang without tasks counts as one: it may be admitted.
        """
        total = 0
        for gang in self.active.values():
            total += len(gang.pending_tasks) + len(gang.gated_by_queue) or 1
            if total > at_most:
                return total
        for group in self.woken.values():
            total += max(len(group.first()[1].pending_tasks), 1) * len(group)
            if total > at_most:
                return total
        return total

    # -- private -------------------------------------------------------------------------------

    def _wake(self, group: UnschedulableGroup, reason: str) -> None:
        is_new = group.demand not in self.woken
        group.is_woken_by_nodes = reason == NODES and (is_new or group.is_woken_by_nodes)
        if is_new:
            self.woken[group.demand] = group
            self.retries[reason] += 1

    def _add_to_indexes(self, group: UnschedulableGroup) -> None:
        for event in group.hints.events:
            self._by_event.setdefault(event, {})[group.demand] = group
        for need in group.hints.needs:
            counts = self._by_class.setdefault(need.eq_class, _NeededClass()).counts
            counts[group] = min(need.count, counts.get(group, need.count))

    def _remove_from_indexes(self, group: UnschedulableGroup) -> None:
        for event in group.hints.events:
            groups = self._by_event[event]
            groups.pop(group.demand, None)
            if not groups:
                del self._by_event[event]
        for need in group.hints.needs:
            needed = self._by_class.get(need.eq_class)
            if needed is not None:
                needed.counts.pop(group, None)
                if not needed.counts:
                    del self._by_class[need.eq_class]
