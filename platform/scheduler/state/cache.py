"""The scheduler cache: nodes, gangs, queues and PVCs, updated event by event.

A pod becomes a task of its gang and uses resources of its node; a gang counts in its queue. Events
are applied between cycles only (:meth:`SchedulerCache.apply` raises otherwise), so a cycle sees
a consistent snapshot without a copy. An event after which a rejected gang may be schedulable
(resources freed, a node or queue changed) increments :attr:`SchedulerCache.capacity_generation`;
gangs that were rejected in the current generation are skipped.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ...model import names
from ...model.pod import FINISHED
from ...model.podgroup import PodGroup, PodGroupPhase
from ...model.queue import Queue as QueueObject
from .core_types import Namespace, Node, PersistentVolumeClaim, Pod, PriorityClass
from .equivalence import EquivalenceCache, EquivalenceClass, known_pod
from .events import (
    CacheEvent,
    NamespaceEvent,
    NodeEvent,
    PlacementForgotten,
    PodEvent,
    PodGroupEvent,
    PriorityClassEvent,
    PVCEvent,
    QueueEvent,
    Recheck,
)
from .gangs import Gang, QueueInfo, Task, TaskStatus, add_amounts, positive_difference, sum_amounts
from .node_matrix import NodeMatrix
from .pod_topology import PodTopology
from .pvcs import PVCTracker
from .resources import Amounts, IntVector


class SchedulerCache:
    """Nodes, gangs and queues after the last event, with the assumed placements."""

    def __init__(
        self,
        *,
        gang_scheduler_names: Collection[str] = (names.SCHEDULER_NAME,),
        pod_scheduler_names: Collection[str] = (),
        default_queue: str = names.DEFAULT_QUEUE,
        queue_gates: bool = False,
    ) -> None:
        """Start empty.

        Pods whose ``schedulerName`` is one of *gang_scheduler_names* are scheduled as gangs, those
        of *pod_scheduler_names* one by one. *queue_gates* is whether this scheduler removes
        queue gates.
        """
        self.node_matrix = NodeMatrix()
        self.pod_topology = PodTopology()
        self.eq_classes = EquivalenceCache(self.pod_topology)
        self.node_matrix.occupancy_listeners.append(self._count_terms)
        self.pvcs = PVCTracker()
        self.gangs: dict[str, Gang] = {}
        self.queues: dict[str, QueueInfo] = {}
        self.capacity_generation = 0
        self.pending_gangs: dict[str, Gang] = {}
        """Gangs that are not admitted yet, or have gated or pending tasks."""
        self._gang_scheduler_names = frozenset(gang_scheduler_names)
        self._pod_scheduler_names = frozenset(pod_scheduler_names)
        self._default_queue = default_queue
        self._queue_gates = queue_gates
        self._priority_classes: dict[str, PriorityClass] = {}
        self._tasks: dict[str, tuple[Gang, Task]] = {}
        self._other_pods: dict[str, tuple[int, EquivalenceClass]] = {}
        self._changed_gangs: dict[str, Gang] = {}
        self._dirty_gangs: dict[str, Gang] = {}
        self._queue_contributions: dict[str, tuple[str, tuple[Amounts, ...]]] = {}
        self._changed_queues: set[str] = set()
        self._last_cycle_generation = -1
        self._in_cycle = False

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """Refuse events while the block runs a cycle, maybe in a thread."""
        self._in_cycle = True
        try:
            yield
        finally:
            self._in_cycle = False

    def apply(self, event: CacheEvent) -> None:
        """Apply *event*.

        Raises:
            RuntimeError: a cycle is running.
        """
        if self._in_cycle:
            raise RuntimeError("cannot change the scheduler cache: a cycle is running")
        match event:
            case PodEvent(old, new):
                self.update_pod(old, new)
            case NodeEvent(old, new):
                self.update_node(old, new)
            case PodGroupEvent(old, new):
                self.update_podgroup(old, new)
            case QueueEvent(old, new):
                self.update_queue(old, new)
            case PVCEvent(old, new):
                self.update_pvc(old, new)
            case NamespaceEvent(old, new):
                self.update_namespace(old, new)
            case PriorityClassEvent(old, new):
                self.update_priority_class(old, new)
            case PlacementForgotten(uid):
                self.forget(uid)
            case Recheck(key):
                self._recheck(key)

    # -- events --------------------------------------------------------------------------------

    def update_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Add, update or delete a pod. An assumed placement is kept until the pod has its node."""
        if new is None:
            if old is not None:
                self._remove_pod(old.metadata.uid)
                self.capacity_generation += 1
            return
        known = self._tasks.get(new.metadata.uid)
        if known and (_is_stale_update(known[1], new) or self._update_in_place(*known, new)):
            return
        self._remove_pod(new.metadata.uid)
        gang = self._gang_of(new)
        if gang is not None:
            self._add_task(gang, self._new_task(new, self._hold_terms(new)))
        elif new.spec.node_name and new.status.phase not in FINISHED:
            eq_class = self._hold_terms(new)
            node_index = self._add_to_node(new.spec.node_name, eq_class)
            self._other_pods[new.metadata.uid] = (node_index, eq_class)

    def update_node(self, old: Node | None, new: Node | None) -> None:
        """Add, update or delete a node."""
        if new is not None:
            self.capacity_generation += self.node_matrix.update_node(new)
        elif old is not None:
            self.node_matrix.remove_node(old.metadata.name)
            self.capacity_generation += 1

    def update_pvc(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        """Add, update or delete a PVC; gangs that mount it are tried again."""
        for uid in self.pvcs.update(old, new):
            gang = self._tasks[uid][0]
            gang.version += 1
            self.mark_changed(gang)

    def update_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Add, update or delete a PodGroup."""
        podgroup = new or old
        if podgroup is None:
            return
        key = podgroup.metadata.key
        if new is None and key not in self.gangs:
            return
        gang = self._get_or_create_gang(key)
        self.capacity_generation += gang.set_podgroup(new)
        self.mark_changed(gang)

    def update_queue(self, old: QueueObject | None, new: QueueObject | None) -> None:
        """Add, update or delete a queue."""
        name = (new or old or QueueObject()).metadata.name
        queue = self.queue_named(name)
        known = queue.object
        queue.object = new
        if new is None and not queue.gangs:
            del self.queues[name]
        if (
            known is None
            or new is None
            or (known.spec, known.status.state) != (new.spec, new.status.state)
        ):
            self.capacity_generation += 1
        if new is not None and known is None:
            self._changed_queues.add(name)

    def update_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        """Add, update or delete a namespace, whose labels selectors of terms may refer to."""
        known = new or old
        if known is not None:
            labels = new.metadata.labels if new is not None else None
            uids = self.pod_topology.update_namespace(known.metadata.name, labels)
            self._reclassify(uids)
            self.capacity_generation += bool(uids)

    def update_priority_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        """Add, update or delete a priority class; rare, so all gangs are updated."""
        if old is not None:
            self._priority_classes.pop(old.metadata.name, None)
        if new is not None:
            self._priority_classes[new.metadata.name] = new
        for gang in self.gangs.values():
            gang.priority = self._priority(gang)

    # -- effects of a cycle --------------------------------------------------------------------

    def assume(self, gang: Gang, allocations: Iterable[tuple[Task, int]]) -> None:
        """Assume *allocations*: tasks of *gang*, and the nodes that they are allocated on."""
        for task, node_index in allocations:
            gang.update_task_status(task, TaskStatus.BINDING)
            task.node_index = node_index
            task.node = self.node_matrix.names[node_index]
        self.mark_changed(gang)
        self.refresh()

    def forget(self, uid: str) -> Gang | None:
        """Forget an assumed placement, so that its resources are free again.

        Returns the gang of the pod, or ``None`` if no placement of the pod is assumed.
        """
        gang, task = self._tasks.get(uid, (None, None))
        if gang is None or task is None or task.status is not TaskStatus.BINDING:
            return None
        self._remove_from_node(task.node_index, task.eq_class)
        gang.update_task_status(task, TaskStatus.PENDING)
        gang.version += 1
        task.node, task.node_index = "", -1
        self.capacity_generation += 1
        self.mark_changed(gang)
        return gang

    def mark_ungated(self, gang: Gang, tasks: Iterable[Task]) -> None:
        """Record that the queue gate of *tasks* is removed."""
        for task in tasks:
            gang.mark_ungated(task)

    def mark_enqueued(self, gang: Gang) -> None:
        """Record that *gang* is admitted to its queue."""
        gang.phase = PodGroupPhase.INQUEUE
        self.mark_changed(gang)
        self.refresh()

    def mark_changed(self, gang: Gang) -> None:
        """Record that *gang* has changed."""
        self._changed_gangs[gang.key] = gang
        self._dirty_gangs[gang.key] = gang

    # -- lookups -------------------------------------------------------------------------------

    def task(self, uid: str) -> Task | None:
        """Return the task of the pod with *uid*."""
        known = self._tasks.get(uid)
        return known[1] if known else None

    def queue_named(self, name: str) -> QueueInfo:
        """Return queue *name*; one that is not known yet has no ``object``."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = QueueInfo(name)
        return queue

    def queue_of(self, gang: Gang) -> QueueInfo:
        """Return the queue of *gang*."""
        return self.queue_named("" if gang.single else gang.queue_name or self._default_queue)

    def refresh(self) -> None:
        """Update the queue sums and the pending gangs for gangs that changed."""
        while self._dirty_gangs:
            gang = self._dirty_gangs.popitem()[1]
            self._update_queue_sums(gang)
            is_new = gang.is_pending and gang.podgroup is not None
            if gang.pending_tasks or gang.gated_by_queue or is_new:
                self.pending_gangs[gang.key] = gang
            else:
                self.pending_gangs.pop(gang.key, None)
            if gang.podgroup is None and not gang.tasks:
                self.gangs.pop(gang.key, None)

    def has_changes(self) -> bool:
        """Return whether anything has changed since the last call that needs a cycle."""
        changes = bool(self._changed_gangs or self._changed_queues or self._dirty_gangs)
        changes, self._last_cycle_generation = (
            changes or self._last_cycle_generation != self.capacity_generation,
            self.capacity_generation,
        )
        return changes

    def pending_task_count(self) -> int:
        """Return how many tasks a cycle would try to allocate."""
        self.refresh()
        return sum(
            len(gang.pending_tasks) + len(gang.gated_by_queue)
            for gang in self.pending_gangs.values()
            if gang.last_attempt != (self.capacity_generation, gang.version)
        )

    def pop_changed_gangs(self) -> list[Gang]:
        """Return the gangs that have changed since the last call."""
        changed = list(self._changed_gangs.values())
        self._changed_gangs.clear()
        return changed

    def pop_changed_queues(self) -> set[str]:
        """Return queues whose allocation may have changed since the last call, with ancestors."""
        changed: set[str] = set()
        for name in self._changed_queues:
            changed.update(self._with_ancestors(name))
        self._changed_queues.clear()
        return changed

    def subtree_allocated(self, name: str) -> Amounts:
        """Return what is allocated in queue *name* and in all queues below it."""
        return sum_amounts(
            queue.allocated
            for queue in self.queues.values()
            if name in self._with_ancestors(queue.name)
        )

    # -- private -------------------------------------------------------------------------------

    def _gang_of(self, pod: Pod) -> Gang | None:
        meta, name = pod.metadata, pod.spec.scheduler_name
        if name in self._pod_scheduler_names:
            return self._get_or_create_gang(f"{meta.namespace}/pod:{meta.uid}", single=True)
        group = meta.annotations.get(names.GROUP_NAME)
        if name in self._gang_scheduler_names and group:
            return self._get_or_create_gang(f"{meta.namespace}/{group}")
        return None

    def _get_or_create_gang(self, key: str, *, single: bool = False) -> Gang:
        gang = self.gangs.get(key)
        if gang is None:
            gang = self.gangs[key] = Gang(key, single=single)
        return gang

    def _update_in_place(self, gang: Gang, task: Task, pod: Pod) -> bool:
        """Apply an update that changes neither resources nor constraints, as most updates do.

        Returns whether *pod* is such an update.
        """
        eq_class = self.eq_classes.get(pod)
        if self._gang_of(pod) is not gang or eq_class is not task.eq_class:
            return False
        updated = self._new_task(pod, eq_class)
        if task.node_index < 0:
            if not updated.has_same_scheduling_fields(task):
                return False
            task.reported_condition = updated.reported_condition
        elif task.node != updated.node or not updated.status.on_node:
            return False
        elif updated.status is not task.status:
            gang.update_task_status(task, updated.status)
            self.mark_changed(gang)
        return True

    def _new_task(self, pod: Pod, eq_class: EquivalenceClass) -> Task:
        return Task(pod, eq_class, queue_gates=self._queue_gates)

    def _add_task(self, gang: Gang, task: Task) -> None:
        # Also registers its resources before the next cycle.
        self._request_vector(task.eq_class)
        if task.node and task.status.on_node:
            task.node_index = self._add_to_node(task.node, task.eq_class)
        gang.add_task(task)
        self.pvcs.add_task(task)
        self._tasks[task.uid] = (gang, task)
        self.mark_changed(gang)

    # -- terms on other pods -------------------------------------------------------------------

    def _count_terms(
        self, eq_class: EquivalenceClass, node_indexes: Sequence[int], sign: int
    ) -> None:
        if eq_class.footprint:
            eq_class.footprint.add(self.node_matrix.topology, node_indexes, sign)

    def _hold_terms(self, pod: Pod) -> EquivalenceClass:
        """Put the terms of *pod* into use; returns its class."""
        terms = self.eq_classes.unmatched(pod).terms
        for selector in self.pod_topology.add_pod(pod.metadata.uid, known_pod(pod, terms)):
            self._reclassify(self.pod_topology.matching_pods(selector))
        return self.eq_classes.get(pod)

    def _release_terms(self, uid: str) -> None:
        for selector in self.pod_topology.remove_pod(uid):
            self._reclassify(self.pod_topology.matching_pods(selector))

    def _reclassify(self, uids: Iterable[str]) -> None:
        """Update the classes of pods for which other selectors are in use than before."""
        for uid in uids:
            known = self.pod_topology.pod(uid)
            task = self.task(uid)
            other = self._other_pods.get(uid)
            if known is None:
                continue
            matched_by = self.pod_topology.matched_by(known)
            if task is not None:
                before, node_index = task.eq_class, task.node_index
                task.eq_class = before.variant(matched_by)
                self._recount(before, task.eq_class, node_index)
            elif other is not None:
                node_index, before = other
                self._other_pods[uid] = (node_index, before.variant(matched_by))
                self._recount(before, before.variant(matched_by), node_index)

    def _recount(self, before: EquivalenceClass, after: EquivalenceClass, node_index: int) -> None:
        if node_index >= 0 and before is not after:
            self._count_terms(before, (node_index,), -1)
            self._count_terms(after, (node_index,), 1)

    def _remove_pod(self, uid: str) -> None:
        self._release_terms(uid)
        other = self._other_pods.pop(uid, None)
        if other is not None:
            self._remove_from_node(*other)
            self.capacity_generation += 1
        known = self._tasks.pop(uid, None)
        if known is None:
            return
        gang, task = known
        self.pvcs.remove_task(task)
        if task.node_index >= 0:
            self._remove_from_node(task.node_index, task.eq_class)
            self.capacity_generation += 1
        gang.remove_task(task)
        self.mark_changed(gang)

    def _add_to_node(self, name: str, eq_class: EquivalenceClass) -> int:
        node_index = self.node_matrix.column_for(name)
        self.node_matrix.occupy(eq_class, (node_index,))
        return node_index

    def _remove_from_node(self, node_index: int, eq_class: EquivalenceClass) -> None:
        self.node_matrix.vacate(eq_class, (node_index,))
        self.node_matrix.free_if_empty(node_index)

    def _request_vector(self, eq_class: EquivalenceClass) -> IntVector:
        return eq_class.request_vector(self.node_matrix.resource_index)

    def _recheck(self, key: str) -> None:
        gang = self.gangs.get(key)
        if gang is not None:
            self.mark_changed(gang)

    def _update_queue_sums(self, gang: Gang) -> None:
        """Replace the contribution of *gang* to the sums of its queue."""
        before = self._queue_contributions.pop(gang.key, None)
        if before is not None:
            self._add_to_queue(self.queue_named(before[0]), before[1], -1)
            self.queue_named(before[0]).gangs.discard(gang.key)
        is_deleted = gang.podgroup is None and not gang.tasks
        queue = self.queue_of(gang)
        if not is_deleted:
            gang.priority = self._priority(gang)
            counts = (gang.allocated.copy(), gang.requested.copy(), *_reserved_and_elastic(gang))
            self._queue_contributions[gang.key] = (queue.name, counts)
            self._add_to_queue(queue, counts, 1)
            queue.gangs.add(gang.key)
        previous = (before[0], before[1][0]) if before else ("", {})
        current = ("", {}) if is_deleted else (queue.name, gang.allocated)
        if previous != current:
            self._changed_queues.update({previous[0], current[0]} - {""})

    @staticmethod
    def _add_to_queue(queue: QueueInfo, counts: tuple[Amounts, ...], sign: int) -> None:
        sums = (queue.allocated, queue.requested, queue.reserved, queue.elastic)
        for target, delta in zip(sums, counts, strict=True):
            add_amounts(target, delta, sign)

    def _priority(self, gang: Gang) -> int:
        if gang.single:
            return max((task.priority for task in gang.tasks.values()), default=0)
        named = gang.podgroup.spec.priority_class_name if gang.podgroup else ""
        if named in self._priority_classes:
            return self._priority_classes[named].value
        return next(
            (each.value for each in self._priority_classes.values() if each.global_default), 0
        )

    def _with_ancestors(self, name: str) -> list[str]:
        """Return *name* and its ancestors, each once even if they form a loop."""
        path: list[str] = []
        while name and name not in path:
            path.append(name)
            queue = self.queues.get(name)
            parent = queue.object.spec.parent if queue and queue.object else ""
            name = parent or (names.ROOT_QUEUE if name != names.ROOT_QUEUE else "")
        return path


def _is_stale_update(task: Task, pod: Pod) -> bool:
    """Return whether *pod* is a version from before the placement of *task*."""
    unplaced = not pod.spec.node_name and not pod.metadata.deletion_timestamp
    return task.status is TaskStatus.BINDING and unplaced


def _reserved_and_elastic(gang: Gang) -> tuple[Amounts, Amounts]:
    """Return what an admitted *gang* still needs for its minimum, and has beyond it."""
    started = gang.counts.allocated >= gang.min_member
    is_reserving = gang.phase == PodGroupPhase.INQUEUE or (
        gang.phase == PodGroupPhase.RUNNING and started
    )
    gang.min_request = _min_request(gang)
    reserved = positive_difference(gang.min_request, gang.allocated) if is_reserving else {}
    elastic = positive_difference(gang.allocated, gang.min_resources) if gang.min_resources else {}
    return reserved, elastic


def _min_request(gang: Gang) -> Amounts:
    return (
        positive_difference(gang.min_resources, gang.gated_request)
        if gang.gated_request
        else gang.min_resources
    )
