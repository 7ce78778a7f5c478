"""What a rejected gang waits for, which follows from the reasons why its tasks did not fit.

A gang waits for a *necessary* condition if there is one: as long as the nodes take fewer pods of
a class than it needs, no other change helps. Then gangs with equal demand wait together. Otherwise
(its classes compete for nodes, or pods depend on other pods) it waits for any change of nodes.
"""

from collections import Counter
from collections.abc import Callable, Hashable

from ..state.gangs.gang import Gang, SubGroups, Task, TaskStatus
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_traits import is_preemptable_gang
from ..state.queue.scheduling_queue import (
    ANY,
    FREED,
    OWN,
    USAGE,
    ClusterEvent,
    NodeNeed,
    QueueingHints,
)
from .gang_domains import used_nodes
from .missing_members import MissingMembers, required_tasks
from .unfit_tasks import ClassCapacity, UnfitTasks

ANY_NODE_CHANGE = frozenset({FREED, USAGE})


CapacityOf = Callable[[EquivalenceClass, UnfitTasks], ClassCapacity | None]


def limit_hints(gang: Gang, queue_name: str, events: frozenset[ClusterEvent]) -> QueueingHints:
    """Return what *gang* waits for if no pod of its size is within the limits of its queue."""
    tasks = list(gang.pending_tasks.values())
    return QueueingHints(events, demand=demand_of(gang, queue_name, tasks, MissingMembers(gang)))


def queueing_hints_of(
    gang: Gang, queue_name: str, unfit: UnfitTasks, capacity_of: CapacityOf
) -> QueueingHints:
    """Return what *gang* of queue *queue_name* waits for, given which of its tasks did not fit."""
    tasks = [task for task in gang.pending_tasks.values() if task.uid not in unfit.blocked]
    missing = MissingMembers(gang)
    if missing.satisfied:
        return _hints_of_extra_tasks(gang, queue_name, tasks, unfit, capacity_of)
    if unfit.blocked and not missing.is_satisfiable(tasks):
        return QueueingHints(OWN)
    required = dict(required_tasks(tasks, missing))
    events: frozenset[ClusterEvent] = frozenset()
    for eq_class, count in required.items():
        capacity = capacity_of(eq_class, unfit)
        if capacity is None or capacity.count >= count:
            continue
        if capacity.is_exact:
            need = NodeNeed(eq_class, count, capacity.count)
            return QueueingHints(needs=(need,), demand=demand_of(gang, queue_name, tasks, missing))
        events = frozenset({FREED, USAGE} if capacity.sees_pods else {FREED})
        events |= unfit.limits.get(eq_class, OWN)
    if events:
        return QueueingHints(events, demand=demand_of(gang, queue_name, tasks, missing))
    if unfit.in_domains or gang.sub_groups is not None:
        demand = demand_of(gang, queue_name, tasks, missing)
        return QueueingHints(ANY_NODE_CHANGE | {ANY}, demand=demand)
    if unfit.limits and len(required) == len({task.eq_class for task in tasks}):
        limits = frozenset().union(*unfit.limits.values())
        if missing.total >= len(tasks) or len(required) == 1:
            return QueueingHints(limits, demand=demand_of(gang, queue_name, tasks, missing))
    # The first tasks may have taken what later ones need. Lower limits may prevent that, too.
    return QueueingHints(ANY_NODE_CHANGE | {ANY})


def _hints_of_extra_tasks(
    gang: Gang, queue_name: str, tasks: list[Task], unfit: UnfitTasks, capacity_of: CapacityOf
) -> QueueingHints:
    """Return what a ready gang waits for: that a task of one of the failed classes fits."""
    events: frozenset[ClusterEvent] = frozenset()
    needs: list[NodeNeed] = []
    for eq_class in unfit.failed:
        capacity = capacity_of(eq_class, unfit)
        if capacity is not None and capacity.count < 1:
            if capacity.is_exact:
                needs.append(NodeNeed(eq_class, 1, capacity.count))
            else:
                events |= {FREED, USAGE} if capacity.sees_pods else {FREED}
        elif eq_class in unfit.limits:
            events |= unfit.limits[eq_class]
        else:
            events |= ANY_NODE_CHANGE
    if not needs and not events:
        return QueueingHints(OWN)
    demand = demand_of(gang, queue_name, tasks, MissingMembers(gang))
    return QueueingHints(events, tuple(needs), demand if not events & ANY_NODE_CHANGE else None)


def demand_of(gang: Gang, queue_name: str, tasks: list[Task], missing: MissingMembers) -> Hashable:
    """Return what decides whether *gang* fits, in which limits, and which pods may be evicted for
    it; equal for equal gangs."""
    counts = Counter(
        (task.eq_class, task.role, task.priority, task.traits.may_preempt) for task in tasks
    )
    return (
        queue_name,
        gang.single,
        gang.borrowable,
        gang.priority,
        is_preemptable_gang(gang.podgroup),
        missing.total,
        frozenset(missing.by_role.items()),
        frozenset(counts.items()),
        gang.topology,
        gang.native is not None and gang.native.never_preempts,
        None if gang.topology is None else frozenset(used_nodes(gang)),
        None if gang.sub_groups is None else _sub_group_demand(gang.sub_groups),
    )


def _sub_group_demand(sub_groups: SubGroups) -> Hashable:
    """Return what decides whether the sub-groups of a gang fit; equal for equal gangs."""
    groups = sorted(sub_groups, key=lambda each: each.order)
    return (
        tuple((each.size, each.minimum, each.topology) for each in sub_groups.policies),
        tuple(
            (
                each.policy.position,
                each.counts.ready,
                frozenset(used_nodes(each)),
                frozenset(
                    Counter(
                        (task.eq_class, task.role, task.priority)
                        for task in each.tasks.values()
                        if task.status is TaskStatus.PENDING and not task.gates
                    ).items()
                ),
            )
            for each in groups
        ),
    )
