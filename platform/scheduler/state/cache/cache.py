"""The scheduler cache: nodes, gangs, queues and PVCs, updated event by event.

A pod becomes a task of its gang and uses resources of its node; a gang counts in its queue. Events
are applied between cycles only (:meth:`SchedulerCache.apply` raises otherwise), so a cycle sees
a consistent snapshot without a copy. A rejected gang is skipped until something happens that it
waits for (:mod:`..queue.scheduling_queue`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import assert_never

from ....model import names
from ....model.kept_nodes import keep_seconds_of
from ....model.meta import Condition
from ....model.pod import DISRUPTION_TARGET, FINISHED
from ....model.podgroup import PodGroup, PodGroupPhase
from ....model.queue import Queue, QueueState
from ....model.run_times import OF_LIMIT, OF_RUN_TIME
from ..core_types import Node, PersistentVolume, PersistentVolumeClaim, Pod, PriorityClass
from ..gangs.device_claims import DeviceBinding
from ..gangs.disruption_budgets import DisruptionBudgets
from ..gangs.foreign_pods import ForeignPod, ForeignPods
from ..gangs.gang import (
    Gang,
    Task,
    TaskStatus,
    task_role,
    task_status,
)
from ..gangs.native_gang import native_key, podgroup_key
from ..gangs.pod_classes import ClassifiedPod, PodClasses
from ..gangs.pvcs import ClaimBinding
from ..gangs.role_counts import RoleCounts
from ..gangs.task_table import TaskTable
from ..gangs.task_updates import is_stale_update, is_status_update, keep_evicting
from ..gangs.victim_columns import add_victim_columns
from ..nodes.arrivals import ArrivalShortages
from ..nodes.node_matrix import NodeMatrix
from ..nodes.node_usage import NodeUsage, NodeUsages, UsedAmounts
from ..nodes.numa_topology import NumaTopologies
from ..past_usage.past_usage import PastUsage
from ..planning.described_podgroups import DescribedPodGroups
from ..planning.native_podgroups import NativePodGroups
from ..planning.nominated_pods import NominatedPods
from ..planning.planned_members import PlannedMembers
from ..planning.reservations import Reservation, Reservations
from ..podinfo.declared_fields import PodFields
from ..podinfo.equivalence import EquivalenceClass
from ..podinfo.pod_traits import PodTraits, QueueAffinities, has_topology, own_traits
from ..podinfo.victim_traits import VictimTraits, restarted_traits
from ..queue.admission_rounds import AdmissionRounds
from ..queue.scheduling_queue import ANY, PODGROUP, VICTIMS, SchedulingQueue, queue_gained
from ..run_times.run_times import RunTimes
from ..topology.domains import Domains
from .change_record import ChangeRecord
from .events import (
    CacheEvent,
    CSIDriverEvent,
    CSINodeEvent,
    CSIStorageCapacityEvent,
    DeclarationsChanged,
    DeviceClassEvent,
    DeviceEvent,
    DeviceTaintRuleEvent,
    EvictionForgotten,
    HyperNodeEvent,
    NamespaceEvent,
    NativePodGroupEvent,
    NodeEvent,
    NodesMeasured,
    NumatopologyEvent,
    PlacementForgotten,
    PodDisruptionBudgetEvent,
    PodEvent,
    PodGroupEvent,
    PodOwnerEvent,
    PriorityClassEvent,
    PVCEvent,
    PVEvent,
    QueueEvent,
    Recheck,
    ResourceClaimEvent,
    ResourceQuotaEvent,
    ResourceSliceEvent,
    StorageClassEvent,
    VolumeAttachmentEvent,
)
from .min_runtimes import MinRuntimes
from .queues import Queues
from .resource_quotas import NamespaceQuotas


class SchedulerCache:
    """Nodes, gangs and queues after the last event, with the assumed placements."""

    def __init__(
        self,
        *,
        gang_scheduler_names: Collection[str] = (names.SCHEDULER_NAME,),
        pod_scheduler_names: Collection[str] = (),
        default_queue: str = names.DEFAULT_QUEUE,
        queue_gates: bool = False,
        place_at_creation: bool = False,
    ) -> None:
        """Start empty.

        Pods whose ``schedulerName`` is one of *gang_scheduler_names* are scheduled as gangs, those
        of *pod_scheduler_names* one by one. *queue_gates* is whether this scheduler removes
        queue gates, and *place_at_creation* whether it plans members that do not exist yet.
        """
        self.node_matrix = NodeMatrix()
        self.domains = Domains(self.node_matrix)
        self.task_table = TaskTable(self.node_matrix.resource_index)
        add_victim_columns(self.task_table)
        self.scheduling_queue = SchedulingQueue()
        self.admission_rounds = AdmissionRounds()
        self.changes = ChangeRecord(self.node_matrix, self.scheduling_queue)
        self.queues = Queues(self.task_table, self.scheduling_queue, default_name=default_queue)
        self.min_runtimes = MinRuntimes(self.queues)
        self.run_times = RunTimes(self.queues.objects_of)
        self.past_usage = PastUsage(self.queues.path_of)
        self.reservations = Reservations(self.node_matrix, self._waiting_task)
        self.reservations.on_end = self._on_reservation_end
        self.reservations.charge = self.queues.charge_kept
        self.refused_evictions: dict[str, float] = {}
        """Until when pods are not evicted again whose eviction was refused, by uid."""
        self.pod_classes = PodClasses(
            self.node_matrix, find=self._classified_pod, on_change=self._on_class_changed
        )
        self.role_counts = RoleCounts()
        self._queue_affinities = QueueAffinities()
        self.pod_fields = PodFields()
        """What plugins read of pods; known pods are to be reclassified after a change."""
        self.resource_quotas = NamespaceQuotas()
        self.disruption_budgets = DisruptionBudgets(self.task_table)
        self.node_usage = NodeUsages()
        self.node_matrix.occupancy_listeners += (self.role_counts.observe, self.node_usage.observe)
        self.numa_topologies = NumaTopologies(self.node_matrix)
        self.cycle_time = 0.0
        """Unix time of the cycle, the only time that plugins may use."""
        self.gangs: dict[str, Gang] = {}
        self.pending_gangs: dict[str, Gang] = {}
        """Gangs that are not admitted yet, or have gated or pending tasks."""
        self._gang_scheduler_names = frozenset(gang_scheduler_names)
        self._pod_scheduler_names = frozenset(pod_scheduler_names)
        self._queue_gates = queue_gates
        self._tasks: dict[str, tuple[Gang, Task]] = {}
        self._foreign_pods = ForeignPods(self.node_matrix, self.pod_classes)
        self._nominated_pods = NominatedPods(self.node_matrix, self.pod_classes, self.reservations)
        self._in_cycle = False
        self.planned = PlannedMembers(self, enabled=place_at_creation)
        self.arrivals = ArrivalShortages(self.node_matrix, self.planned.without_pods)
        """What pods that have arrived since the first cycle request beyond what nodes have."""
        self.described = DescribedPodGroups(self)
        self.native = NativePodGroups(self, self.described)

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """Refuse events while the block runs a cycle, maybe in a thread."""
        self._in_cycle = True
        self.node_matrix.available_devices.set_in_cycle(True)
        try:
            yield
        finally:
            self._in_cycle = False
            self.node_matrix.available_devices.set_in_cycle(False)

    def apply(self, event: CacheEvent) -> None:  # noqa: C901, PLR0912, PLR0915 - a branch per event
        """Apply *event*.

        Raises:
            RuntimeError: a cycle is running.
        """
        if self._in_cycle:
            raise RuntimeError("cannot change the scheduler cache: a cycle is running")
        match event:
            case PodEvent(old, new):
                self.native.update_pod(old, new)
            case NodeEvent(old, new):
                self.update_node(old, new)
            case PodGroupEvent(old, new):
                self.described.update_podgroup(old, new)
            case NativePodGroupEvent(resource, old_group, new_group):
                self.native.update_podgroup(resource, old_group, new_group)
            case QueueEvent(old, new):
                self.update_queue(old, new)
            case PlacementForgotten(uid):
                self.forget(uid)
            case EvictionForgotten(uid, until):
                self.refused_evictions[uid] = until
                self.forget_eviction(uid)
            case Recheck(key):
                self.recheck(key)
            case PriorityClassEvent(old, new):
                self.update_priority_class(old, new)
            case PVCEvent(old, new):
                self.update_pvc(old, new)
            case PodOwnerEvent(kind, old, new):
                self.pod_classes.eq_classes.defaults.update(kind, old, new)
            case NamespaceEvent(old, new):
                self._wake_all_if(self.pod_classes.update_namespace(old, new))
            case PVEvent(old, new):
                self.update_volume(old, new)
            case StorageClassEvent(old, new):
                self._retry_pods(self.pod_classes.update_class(old, new))
            case CSIDriverEvent(old, new):
                self._retry_pods(self.pod_classes.update_driver(old, new))
            case CSIStorageCapacityEvent(old, new):
                self._retry_pods(self.pod_classes.update_capacity(old, new))
            case VolumeAttachmentEvent(old, new):
                self._wake_all_if(self.pod_classes.pvcs.update_attachment(old, new))
            case DeviceEvent():
                self._update_devices(event)
            case DeclarationsChanged(pod):
                self.reclassify_pod(pod)
            case CSINodeEvent(old, new):
                self._wake_all_if(self.pod_classes.update_csi_node(old, new))
            case ResourceQuotaEvent(old, new):
                self._wake_all_if(self.resource_quotas.update(old, new))
            case HyperNodeEvent() | NumatopologyEvent():
                self._update_topology(event)
            case PodDisruptionBudgetEvent(old, new):
                self._wake_all_if(self.disruption_budgets.update(old, new))
            case NodesMeasured(by_node, amounts):
                self._update_usage(by_node, amounts)
            case _:
                assert_never(event)

    def _update_topology(self, event: HyperNodeEvent | NumatopologyEvent) -> None:
        match event:
            case HyperNodeEvent(old, new):
                self._wake_all_if(self.domains.update_hypernode(old, new))
            case NumatopologyEvent(old, new):
                self._wake_all_if(self.numa_topologies.update(old, new))

    def _update_usage(
        self, by_node: Mapping[str, NodeUsage], amounts: Mapping[str, UsedAmounts]
    ) -> None:
        self.node_usage.update(by_node, amounts, self.node_matrix)
        self.scheduling_queue.publish(ANY)

    def _wake_all_if(self, has_changed: bool) -> None:
        """Let every rejected gang be tried again, if that may help."""
        if has_changed:
            self.scheduling_queue.publish(ANY)

    # -- events --------------------------------------------------------------------------------

    def update_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Add, update or delete a pod. An assumed placement is kept until the pod has its node."""
        uid = (new or old or Pod()).metadata.uid
        known = self._tasks.get(uid)
        is_adopted = False
        if new is not None and known is None:
            is_adopted = self.planned.observe_pod(self._gang_of(new), new)
        elif new is None and known is not None:
            self.planned.observe_deleted(*known)
        if not is_adopted:
            self._update_pod(old, new)
        if known is not None and known[0].keep_seconds:
            self._keep_node(*known, (new or old or Pod()).status.conditions)
        if new is not None and new.status.nominated_node_name and known is None:
            if uid in self._tasks:
                self.reservations.add_nominated(uid, new.status.nominated_node_name)
            else:
                self._nominated_pods.update(new)
        elif self._nominated_pods.task(uid):
            self._nominated_pods.remove(uid)
        if self.reservations:
            self.reservations.observe(uid)
        if self.refused_evictions and (new is None or new.metadata.deletion_timestamp):
            self.refused_evictions.pop(uid, None)

    def _update_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._remove_pod(old.metadata.uid)
            return
        uid = new.metadata.uid
        known = self._tasks.get(uid)
        if known and (is_stale_update(known[1], new) or self._update_in_place(*known, old, new)):
            return
        gang = self._gang_of(new)
        if gang is None and not known and self._foreign_pods.update(new):
            return
        arrived = bool(new.spec.node_name) and self._node_of(uid) != new.spec.node_name
        self._remove_pod(uid)
        if gang is not None:
            task = self._new_task(new, self.pod_classes.register(new, self._traits(new, gang)))
            if known and known[1].evicting:
                keep_evicting(task)
            self._add_task(gang, task, arrived=arrived)
        elif new.spec.node_name and new.status.phase not in FINISHED:
            self._add_foreign_pod(new, arrived=arrived)

    def update_node(self, old: Node | None, new: Node | None) -> None:
        """Add, update or delete a node."""
        name = (new or old or Node()).metadata.name
        index = self.node_matrix.index_of(name)
        before = self.node_matrix.node_infos[index] if index is not None else None
        if new is not None:
            self.node_matrix.update_node(new)
            index = self.node_matrix.column_for(name)
            if self.node_matrix.is_overcommitted(index):
                self.planned.node_filled(index)
        elif old is not None:
            if index is not None and self.reservations:
                self.reservations.drop_node(index)
            if index is not None:
                self.arrivals.forget(index)
            self.node_matrix.remove_node(name)
        self.domains.update_node(old, new)
        if before and index is not None and self.node_matrix.node_infos[index] != before:
            self.planned.node_changed(index)

    def update_pvc(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        """Add, update or delete a PVC; gangs that mount it are tried again."""
        self._retry_pods(self.pod_classes.update_pvc(old, new))

    def update_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Add, update or delete a PV; gangs that mount it are tried again."""
        self._retry_pods(self.pod_classes.update_volume(old, new))

    def _update_devices(
        self,
        event: ResourceClaimEvent | ResourceSliceEvent | DeviceClassEvent | DeviceTaintRuleEvent,
    ) -> None:
        classes = self.pod_classes
        match event:
            case ResourceClaimEvent(old, new):
                self._retry_pods(classes.update_device_claim(old, new))
            case ResourceSliceEvent(old, new):
                self._retry_pods(classes.update_device_slice(old, new))
            case DeviceClassEvent(old, new):
                self._retry_pods(classes.update_device_class(old, new))
            case DeviceTaintRuleEvent(old, new):
                self._retry_pods(classes.device_claims.update_taint_rule(old, new))

    def _retry_pods(self, uids: Collection[str]) -> None:
        for uid in uids:
            known = self._tasks.get(uid)
            if known is not None:
                known[0].version += 1
                self.changes.mark(known[0])

    def update_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Add, update or delete a PodGroup."""
        podgroup = new or old
        if podgroup is None:
            return
        key = podgroup_key(podgroup)
        if new is None and key not in self.gangs:
            return
        gang = self._get_or_create_gang(key)
        self.run_times.note_end(gang)
        if new is not None:
            gang.keep_seconds = keep_seconds_of(new.metadata.annotations)
        if gang.set_podgroup(new):
            self.scheduling_queue.publish(PODGROUP)
        if old is not None and new is not None and _run_time(old) != _run_time(new):
            gang.version += 1  # it may start before others now
        if gang.tasks and _work_of(old) != _work_of(new):
            for task in gang.tasks.values():
                self.task_table.update_columns(task)
            self.scheduling_queue.publish(VICTIMS)
        if self._queue_affinities or has_topology(old) or has_topology(new):
            self._reclassify(gang)
        self.planned.observe_podgroup(gang, old, new)
        self.changes.mark(gang)

    def update_queue(self, old: Queue | None, new: Queue | None) -> None:
        """Add, update or delete a queue."""
        name, known = self.queues.update(old, new)
        was_open = known is not None and known.status.state == QueueState.OPEN
        if was_open and (new is None or new.status.state != QueueState.OPEN):
            self._retry_gangs_of(name)  # now they wait for that
        if self._queue_affinities.update(name, known, new):
            for gang in self.gangs.values():
                self._reclassify(gang)

    def _retry_gangs_of(self, queue: str) -> None:
        known = self.queues.by_name.get(queue)
        for key in sorted(known.gangs) if known is not None else ():
            gang = self.gangs[key]
            if gang.unschedulable_group is not None:
                self.scheduling_queue.activate(gang)
                self.changes.mark(gang)

    def update_priority_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        """Add, update or delete a priority class; rare, so all gangs are updated."""
        self.queues.priority_classes.update(old, new)
        self.scheduling_queue.publish(VICTIMS)
        for gang in self.gangs.values():
            priority = self.queues.priority_classes.priority_of(gang)
            if priority != gang.priority:
                gang.priority = priority
                gang.version += 1
                self.task_table.update_gang(gang, self.queues.of(gang).name)
                self.changes.mark_stale(gang)

    def recheck(self, key: str) -> None:
        """Let the gang with *key* be reported again."""
        gang = self.gangs.get(key)
        if gang is not None:
            self.changes.mark(gang)

    # -- members without a pod ------------------------------------------------------------------

    def add_member(self, gang: Gang, pod: Pod, *, like: Task | None = None) -> Task:
        """Add a member of *gang* that is to become *pod*; returns its task, which is pending.

        *like* is that of another member with the same spec.
        """
        if like is None:
            eq_class = self.pod_classes.register(pod, self._traits(pod, gang))
        else:
            eq_class = self.pod_classes.register_like(pod, like.eq_class)
        task = Task(pod, eq_class, planned=True)
        self._add_task(gang, task)
        return task

    def allocate_member(self, gang: Gang, task: Task, node: str) -> None:
        """Assume that a pending member is created on *node*."""
        task.node_index = self._add_to_node(node, task.eq_class, releasing=False)
        task.node = node
        self.set_task_statuses(gang, (task,), TaskStatus.BINDING)
        self._mark_allocation_changed(gang)

    def reclassify_pod(self, pod: Pod) -> None:
        """Update the class of the task of *pod*, if there is one, for other declared fields, and
        for other default constraints if it has no node."""
        gang, task = self._tasks.get(pod.metadata.uid, (None, None))
        if gang is None or task is None:
            return
        traits = self._traits(pod, gang)
        if task.status is not TaskStatus.PENDING:
            self._set_traits(gang, task, traits)
            return
        eq_class = self.pod_classes.reregister(pod, task.eq_class, traits)
        if eq_class is not task.eq_class:
            task.eq_class = eq_class
            self._on_class_changed(task)
            gang.version += 1
            self.changes.mark(gang)

    def adopt_member(self, gang: Gang, member: Task, pod: Pod) -> bool:
        """Replace *member* on its node by its *pod*; returns whether it can.

        It can if the pod has arrived there as it was described.
        """
        eq_class = self.pod_classes.get(pod, self._traits(pod, gang))
        if member.node != pod.spec.node_name or eq_class is not member.eq_class:
            return False
        task = self._new_task(pod, eq_class)
        if task.status not in (TaskStatus.BOUND, TaskStatus.RUNNING) or task.role != member.role:
            return False
        if task.pvcs or task.device_claims or eq_class.devices:
            return False  # they are to be followed
        self.pod_classes.unregister(member.uid)
        self.pod_classes.register_like(pod, eq_class)
        task.node_index = member.node_index
        gang.replace_task(member, task)
        self.task_table.replace(member, task)
        del self._tasks[member.uid]
        self._tasks[task.uid] = (gang, task)
        self._check_node(task.node_index, eq_class, arrived=True)
        self.changes.mark(gang)
        return True

    def remove_member(self, task: Task) -> None:
        """Remove a member that has become a pod, or will not."""
        if task.gang is not None:
            self._mark_allocation_changed(task.gang)
        self._remove_pod(task.uid)

    def classify_member(self, gang: Gang, pod: Pod) -> EquivalenceClass:
        """Return the class that *pod*, which is not known, has as a member of *gang*."""
        return self.pod_classes.get(pod, self._traits(pod, gang))

    def add_assumed_pod(self, uid: str, node: str, eq_class: EquivalenceClass) -> None:
        """Charge *node* for a pod that may be created there."""
        node_index = self._add_to_node(node, eq_class, releasing=False)
        self._foreign_pods.by_uid[uid] = ForeignPod(node_index, eq_class, releasing=False)

    def remove_assumed_pod(self, uid: str) -> None:
        """Undo :meth:`add_assumed_pod`."""
        self._remove_pod(uid)

    # -- effects of a cycle --------------------------------------------------------------------

    def assume(self, gang: Gang, tasks: Sequence[Task]) -> None:
        """Assume the placements of allocated *tasks* of *gang*, which have one equivalence
        class."""
        self.set_task_statuses(gang, tasks, TaskStatus.BINDING)
        self._mark_allocation_changed(gang)
        if tasks and tasks[0].eq_class.is_awaited:
            self.scheduling_queue.publish(ANY)

    def assume_volumes(self, task: Task) -> tuple[ClaimBinding, ...]:
        """Assume what the PVCs of *task*, whose placement is assumed, are to be bound to; returns
        that, and what was assumed for other pods that mount them."""
        if task.eq_class.volumes.delayed:
            self.pod_classes.assume_volumes(task)
        return self.pod_classes.pvcs.join(task)

    def assume_devices(self, task: Task) -> tuple[DeviceBinding, ...]:
        """Assume what the claims of devices of *task*, whose placement is assumed, get; returns
        what is to be written into them."""
        if task.eq_class.devices.pending:
            self.pod_classes.assume_devices(task)
        return self.pod_classes.device_claims.join(task)

    def assume_evicted(self, task: Task) -> None:
        """Assume that *task*, which is releasing by a statement, is evicted."""
        task.evicting = True
        if task.gang is not None:
            self._mark_allocation_changed(task.gang)

    def forget_eviction(self, uid: str) -> Gang | None:
        """Forget an assumed eviction: the pod keeps its resources.

        Returns the gang of the pod, or ``None`` if its eviction is not assumed.
        """
        gang, task = self._tasks.get(uid, (None, None))
        if gang is None or task is None or not task.evicting:
            return None
        task.evicting = False
        if task.status is TaskStatus.RELEASING and task.pod_status is not TaskStatus.RELEASING:
            self._update_status(gang, task, task.pod_status)
            self._mark_allocation_changed(gang)
        return gang

    def place_tasks(
        self, gang: Gang, tasks: Sequence[Task], node_indexes: Sequence[int], status: TaskStatus
    ) -> None:
        """Set node and *status* of pending *tasks*, which have one equivalence class."""
        names = self.node_matrix.names
        for task, node_index in zip(tasks, node_indexes, strict=True):
            task.node_index = node_index
            task.node = names[node_index]
        self.set_task_statuses(gang, tasks, status)

    def unplace_tasks(self, gang: Gang, tasks: Sequence[Task]) -> None:
        """Undo :meth:`place_tasks`."""
        for task in tasks:
            task.node_index, task.node = -1, ""
        self.set_task_statuses(gang, tasks, TaskStatus.PENDING)

    def set_task_statuses(self, gang: Gang, tasks: Sequence[Task], status: TaskStatus) -> None:
        """Set the status of *tasks*, which have one status and one equivalence class, in the gang,
        its queue and the task table."""
        delta = gang.update_task_statuses(tasks, status)
        self.task_table.update(tasks)
        self.queues.add_allocated(gang, delta)

    def forget(self, uid: str) -> Gang | None:
        """Forget an assumed placement, so that its resources are free again.

        Returns the gang of the pod, or ``None`` if no placement of the pod is assumed.
        """
        gang, task = self._tasks.get(uid, (None, None))
        if gang is None or task is None or task.status is not TaskStatus.BINDING:
            return None
        node_index = task.node_index
        self.unplace_tasks(gang, (task,))
        self._remove_from_node(node_index, task.eq_class, releasing=False)
        if task.pvcs:
            self._retry_pods(self.pod_classes.release_volumes(uid))
        if self.pod_classes.device_claims.is_concerned(uid):
            self._retry_pods(self.pod_classes.release_devices(uid))
        gang.version += 1
        self._mark_allocation_changed(gang)
        return gang

    def mark_ungated(self, gang: Gang, tasks: Iterable[Task]) -> None:
        """Record that the queue gate of *tasks* is removed."""
        for task in tasks:
            gang.mark_ungated(task)
        self.queues.update_sums(gang)

    def mark_enqueued(self, gang: Gang) -> None:
        """Record that *gang* is admitted to its queue."""
        gang.phase = PodGroupPhase.INQUEUE
        self.scheduling_queue.activate(gang)
        self.changes.mark(gang)
        self.refresh()

    # -- lookups -------------------------------------------------------------------------------

    def has_changes(self) -> bool:
        """Return whether anything has changed since the last call that needs a cycle."""
        return self.changes.need_cycle(has_changed_queues=self.queues.has_changed)

    def is_of_gang_scheduler(self, pod: Pod) -> bool:
        """Return whether this scheduler schedules *pod* with its PodGroup."""
        name = pod.spec.scheduler_name
        return name in self._gang_scheduler_names and name not in self._pod_scheduler_names

    def schedules(self, pod: Pod) -> bool:
        """Return whether *pod* names this scheduler."""
        name = pod.spec.scheduler_name
        return name in self._gang_scheduler_names or name in self._pod_scheduler_names

    def task(self, uid: str) -> Task | None:
        """Return the task of the pod with *uid*."""
        known = self._tasks.get(uid)
        return known[1] if known else None

    def refresh(self) -> None:
        """Update the queue sums and the pending gangs for gangs that changed."""
        for gang in self.changes.pop_stale():
            self.queues.update_sums(gang)
            self.run_times.observe(gang, self.cycle_time)
            if self.past_usage.is_recorded:
                self.past_usage.observe(gang)
            is_new = gang.is_pending and gang.podgroup is not None
            queue_name = self.queues.of(gang).name if is_new else None
            self.admission_rounds.observe(gang, queue_name)
            if gang.pending_tasks or gang.gated_by_queue or is_new:
                self.pending_gangs[gang.key] = gang
                if gang.unschedulable_group is None or gang.version != gang.rejected_version:
                    self.scheduling_queue.activate(gang)
            else:
                self.pending_gangs.pop(gang.key, None)
                self.scheduling_queue.discard(gang)
            if gang.podgroup is None and not gang.tasks and not self.reservations.get(gang.key):
                self.gangs.pop(gang.key, None)

    # -- private -------------------------------------------------------------------------------

    def _mark_allocation_changed(self, gang: Gang) -> None:
        self.queues.mark_changed(gang)
        self.changes.mark(gang)

    def _gang_of(self, pod: Pod) -> Gang | None:
        meta, name = pod.metadata, pod.spec.scheduler_name
        if (key := native_key(pod)) and self.schedules(pod):
            return self._get_or_create_gang(key)
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

    def _update_in_place(self, gang: Gang, task: Task, old: Pod | None, pod: Pod) -> bool:
        """Apply an update that changes neither resources nor constraints, as most updates do.

        Returns whether *pod* is such an update.
        """
        if task.node_index >= 0 and old is not None and is_status_update(old, pod):
            traits = restarted_traits(task.traits, pod)
            return self._update_on_node(gang, task, task_status(pod), traits)
        if self._gang_of(pod) is not gang:
            return False
        eq_class = self.pod_classes.get(pod, self._traits(pod, gang))
        if eq_class is not task.eq_class:
            return False
        self.pod_classes.update(pod, eq_class)
        updated = self._new_task(pod, eq_class)
        if task.node_index < 0:
            if not updated.has_same_scheduling_fields(task):
                return False
            if gang.sub_group_key(updated) != gang.sub_group_key(task):
                return False
            task.labels = updated.labels
            task.reported_condition = updated.reported_condition
            task.nominated_node = updated.nominated_node
            return True
        if task.node != updated.node or gang.sub_group_key(updated) != gang.sub_group_key(task):
            return False
        task.labels = updated.labels
        return self._update_on_node(gang, task, updated.status, updated.traits)

    def _update_on_node(
        self, gang: Gang, task: Task, status: TaskStatus, traits: VictimTraits
    ) -> bool:
        """Set status and traits of a task by its pod, if that still uses its node."""
        if not status.on_node:
            return False
        task.pod_status = status
        if task.traits != traits:
            task.traits = traits
            self.task_table.update_columns(task)
            self.scheduling_queue.publish(VICTIMS)
        status = TaskStatus.RELEASING if task.evicting else status
        if status is not task.status:
            self._update_status(gang, task, status)
            self._mark_allocation_changed(gang)
        return True

    def _update_status(self, gang: Gang, task: Task, status: TaskStatus) -> None:
        """Set the status of *task*, which stays on its node."""
        self.scheduling_queue.publish(VICTIMS)
        before = task.status is TaskStatus.RELEASING
        self.set_task_statuses(gang, (task,), status)
        after = status is TaskStatus.RELEASING
        if before is not after:
            gang.version += 1
            sign = 1 if after else -1
            self.node_matrix.add_releasing(task.eq_class, (task.node_index,), sign)

    def _add_foreign_pod(self, pod: Pod, *, arrived: bool) -> None:
        eq_class = self.pod_classes.register(pod)
        releasing = bool(pod.metadata.deletion_timestamp)
        node_index = self._add_to_node(
            pod.spec.node_name, eq_class, releasing=releasing, arrived=arrived
        )
        self._foreign_pods.by_uid[pod.metadata.uid] = ForeignPod(node_index, eq_class, releasing)

    def _traits(self, pod: Pod, gang: Gang) -> PodTraits:
        """Return what plugins see of *pod*, a member of *gang*."""
        return self._add_gang_traits(own_traits(pod, self.pod_fields), gang, task_role(pod))

    def _add_gang_traits(self, traits: PodTraits, gang: Gang, role: str) -> PodTraits:
        has_groups = traits.node_groups or traits.inherited_node_groups or traits.group_limits[0]
        if self._queue_affinities or has_groups:
            path = self.queues.with_ancestors(self.queues.of(gang).name)
            traits = self._queue_affinities.add_to(traits, path)
        return traits.with_topology(gang.podgroup, (gang.key, role))

    def _reclassify(self, gang: Gang) -> None:
        """Update the classes of the tasks of *gang* for its PodGroup and its queue."""
        for task in gang.tasks.values():
            traits = self._add_gang_traits(task.eq_class.traits, gang, task.role)
            self._set_traits(gang, task, traits)

    def _set_traits(self, gang: Gang, task: Task, traits: PodTraits) -> None:
        if traits == task.eq_class.traits:
            return
        on_node = (task.node_index,) if task.node_index >= 0 else ()
        before = task.eq_class
        task.eq_class = before.variant(traits=traits)
        self.pod_classes.recount(before, task.eq_class, on_node)
        self.node_usage.observe(before, on_node, -1)
        self.node_usage.observe(task.eq_class, on_node, 1)
        self.role_counts.observe(before, on_node, -1)
        self.role_counts.observe(task.eq_class, on_node, 1)
        self._on_class_changed(task)
        gang.version += 1
        self.changes.mark(gang)

    def _new_task(self, pod: Pod, eq_class: EquivalenceClass) -> Task:
        return Task(pod, eq_class, queue_gates=self._queue_gates)

    def _add_task(self, gang: Gang, task: Task, *, arrived: bool = False) -> None:
        # Also registers its resources before the next cycle.
        task.eq_class.request_vector(self.node_matrix.resource_index)
        if task.node and task.status.on_node:
            releasing = task.status is TaskStatus.RELEASING
            task.node_index = self._add_to_node(
                task.node, task.eq_class, releasing=releasing, arrived=arrived
            )
        gang.add_task(task)
        self.task_table.add(task, gang, self.queues.of(gang).name)
        self._tasks[task.uid] = (gang, task)
        self.changes.mark(gang)

    def _waiting_task(self, uid: str) -> Task | None:
        """Return the task that resources may be reserved for."""
        return self.task(uid) or self._nominated_pods.task(uid)

    def _classified_pod(self, uid: str) -> ClassifiedPod | None:
        return self.task(uid) or self._foreign_pods.by_uid.get(uid)

    def _on_class_changed(self, pod: ClassifiedPod) -> None:
        if not isinstance(pod, Task):
            return
        self.task_table.update_eq_class(pod)
        self.reservations.reclassify(pod)
        if pod.gang is not None and pod.status is TaskStatus.PENDING:
            pod.gang.version += 1
            self.changes.mark_stale(pod.gang)

    def _keep_node(self, gang: Gang, former: Task, conditions: Iterable[Condition]) -> None:
        """Keep the node of *former* for *gang* if its pod was deleted or has failed, and not
        because of an eviction."""
        if not former.pod_status.on_node or former.evicting or former.node_index < 0:
            return
        now = self.task(former.uid)
        if now is not None and now.status is not TaskStatus.FAILED:
            return
        is_evicted = any(
            (each.type, each.status) == (DISRUPTION_TARGET, "True") for each in conditions
        )
        if not is_evicted and self.node_matrix.alive[former.node_index]:
            queue_name = self.queues.charged_name(gang)
            self.reservations.keep(gang, former, former.node_index, queue_name=queue_name)

    def _on_reservation_end(self, reservation: Reservation) -> None:
        gang = reservation.gang
        if gang.podgroup is None:
            self.changes.mark_stale(gang)
        queue_name = reservation.queue_name or self.queues.of(gang).name
        for name in self.queues.with_ancestors(queue_name):
            self.scheduling_queue.publish(queue_gained(name))

    def _remove_pod(self, uid: str) -> None:
        self.pod_classes.unregister(uid)
        other = self._foreign_pods.by_uid.pop(uid, None)
        if other is not None:
            self._remove_from_node(other.node_index, other.eq_class, releasing=other.releasing)
        known = self._tasks.pop(uid, None)
        if known is None:
            return
        gang, task = known
        self.run_times.note_end(gang)
        self.task_table.remove(task)
        if task.node_index >= 0:
            releasing = task.status is TaskStatus.RELEASING
            self._remove_from_node(task.node_index, task.eq_class, releasing=releasing)
        gang.remove_task(task)
        self.changes.mark(gang)
        if task.pvcs:
            self._retry_pods(self.pod_classes.release_volumes(uid))
        if self.pod_classes.device_claims.is_concerned(uid):
            self._retry_pods(self.pod_classes.release_devices(uid))

    def _node_of(self, uid: str) -> str:
        """Return the name of the node on which the pod with *uid* is counted, or an empty one."""
        pod = self._classified_pod(uid)
        return self.node_matrix.names[pod.node_index] if pod and pod.node_index >= 0 else ""

    def _add_to_node(
        self, name: str, eq_class: EquivalenceClass, *, releasing: bool, arrived: bool = False
    ) -> int:
        node_index = self.node_matrix.column_for(name)
        self.node_matrix.occupy(eq_class, (node_index,))
        if eq_class.is_awaited:
            self.scheduling_queue.publish(ANY)
        if releasing:
            self.node_matrix.add_releasing(eq_class, (node_index,))
        else:
            self._check_node(node_index, eq_class, arrived=arrived)
        return node_index

    def _check_node(self, node_index: int, eq_class: EquivalenceClass, *, arrived: bool) -> None:
        """Note whether a node with a pod that has *arrived*, or has changed, is overcommitted."""
        if self.node_matrix.is_overcommitted(node_index):
            self.planned.node_filled(node_index)
            if arrived and self.changes.has_run:
                self.arrivals.observe(node_index, eq_class)

    def _remove_from_node(
        self, node_index: int, eq_class: EquivalenceClass, *, releasing: bool
    ) -> None:
        if releasing:
            self.node_matrix.add_releasing(eq_class, (node_index,), -1)
        self.node_matrix.vacate(eq_class, (node_index,))
        self.node_matrix.free_if_empty(node_index)


def _run_time(podgroup: PodGroup) -> tuple[str | None, ...]:
    """Return the annotations that state for how long a gang runs."""
    return tuple(podgroup.metadata.annotations.get(name) for name in OF_RUN_TIME)


def _work_of(podgroup: PodGroup | None) -> tuple[str | None, ...]:
    """Return the annotations that state what of the work of a gang an eviction costs."""
    found = podgroup.metadata.annotations if podgroup else {}
    return found.get(names.LAST_CHECKPOINT), *map(found.get, OF_LIMIT)
