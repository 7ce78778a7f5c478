"""Gangs, their tasks and their queues, with counters and sums that are kept up to date.

A *task* is a pod in the scheduler cache. A *gang* is the tasks of one PodGroup, which are scheduled
together or not at all; a pod that is scheduled one by one is a gang without a PodGroup. A task is
changed through its :class:`Gang` only, so that counters and sums are correct.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from ....model import names
from ....model.pod import is_rejection
from ....model.podgroup import PodGroup, PodGroupPhase, PodGroupSpec, PodGroupStatus
from ....model.queue import Queue as QueueObject
from ..core_types import Pod
from ..podinfo.device_claims import used_claims
from ..podinfo.equivalence import EquivalenceClass
from ..podinfo.pod_fields import reported_condition, task_index, task_priority
from ..podinfo.victim_traits import victim_traits
from ..podinfo.volumes import mounted_pvcs
from ..resources import Amounts, amounts
from ..topology.constraint import TopologyConstraint, constraint_from
from .diagnosis import Diagnosis
from .member_arrival import MemberArrival
from .native_gang import NativeSpec, podgroup_name
from .start_estimate import StartEstimate
from .sub_groups import SubGroupKey, SubGroupPolicy


class TaskStatus(IntEnum):
    """Status of a task."""

    PENDING = 0
    BINDING = 1
    """Assumed to be on its node; the binding is not confirmed yet."""
    BOUND = 2
    RUNNING = 3
    RELEASING = 4
    """Being deleted, still on its node."""
    SUCCEEDED = 5
    FAILED = 6
    UNKNOWN = 7
    ALLOCATED = 8
    """Allocated on idle resources by a statement of the current session."""
    PIPELINED = 9
    """Allocated on resources that are about to be free, by a statement of the current session."""

    @property
    def on_node(self) -> bool:
        """Whether a task with this status uses resources of its node."""
        return _ON_NODE[self]


# Members of an enumeration are looked up and hashed slowly.
(
    _PENDING,
    _BINDING,
    _BOUND,
    _RUNNING,
    _RELEASING,
    _SUCCEEDED,
    _FAILED,
    _UNKNOWN,
    _ALLOCATED,
    _PIPELINED,
) = TaskStatus
_ON_NODE = [
    status in (_BINDING, _BOUND, _RUNNING, _RELEASING, _UNKNOWN, _ALLOCATED)
    for status in TaskStatus
]
_COUNTED = [status in (_BINDING, _BOUND, _RUNNING, _ALLOCATED, _PIPELINED) for status in TaskStatus]
"""By status: whether the request counts as allocated in gang and queue."""


class TaskCounts:
    """Number of tasks per status."""

    __slots__ = ("by_status",)

    def __init__(self) -> None:
        """Start with none."""
        self.by_status = [0] * len(TaskStatus)

    def __getitem__(self, status: TaskStatus) -> int:
        return self.by_status[status]

    @property
    def allocated(self) -> int:
        """Tasks that are allocated on a node and not finished."""
        counts = self.by_status
        return counts[_BINDING] + counts[_BOUND] + counts[_RUNNING] + counts[_ALLOCATED]

    @property
    def ready(self) -> int:
        """Tasks that count for the minimum of the gang: allocated or succeeded."""
        return self.allocated + self.by_status[_SUCCEEDED]

    @property
    def waiting(self) -> int:
        """Tasks that are allocated on resources that are about to be free."""
        return self.by_status[_PIPELINED]

    @property
    def valid(self) -> int:
        """Tasks that are ready, waiting or pending."""
        return self.ready + self.waiting + self.by_status[_PENDING]

    @property
    def completed(self) -> int:
        """Tasks that succeeded or failed."""
        return self.by_status[_SUCCEEDED] + self.by_status[_FAILED]

    @property
    def bound(self) -> int:
        """Tasks whose binding is confirmed and that are not lost: bound, running or succeeded."""
        counts = self.by_status
        return counts[_BOUND] + counts[_RUNNING] + counts[_SUCCEEDED]


class Task:
    """A pod, or a member that is to become one. Changed by its gang only."""

    __slots__ = (
        "created",
        "device_claims",
        "eq_class",
        "evicting",
        "gang",
        "gated_by_queue",
        "gates",
        "index",
        "labels",
        "name",
        "namespace",
        "node",
        "node_index",
        "nominated_node",
        "planned",
        "pod_status",
        "priority",
        "pvcs",
        "rejected",
        "reported_condition",
        "role",
        "slot",
        "status",
        "sub_group",
        "table_node",
        "traits",
        "uid",
        "ungated",
        "uses_queue_gate",
    )

    def __init__(
        self,
        pod: Pod,
        eq_class: EquivalenceClass,
        *,
        queue_gates: bool = False,
        planned: bool = False,
    ) -> None:
        """Create the task of *pod*, whose equivalence class is *eq_class*.

        *queue_gates* is whether this scheduler removes queue gates. A *planned* one is a member
        whose pod does not exist yet.
        """
        meta, spec = pod.metadata, pod.spec
        self.uid = meta.uid
        self.planned = planned
        self.name = meta.name
        self.namespace = meta.namespace
        self.eq_class = eq_class
        self.role = task_role(pod)
        self.priority = task_priority(pod)
        self.created = meta.creation_timestamp or ""
        self.index = task_index(meta.name)
        self.pvcs = mounted_pvcs(pod)
        """The PVCs that it mounts."""
        self.device_claims = used_claims(pod)
        """The claims of devices that it uses."""
        self.gates = tuple(gate.name for gate in spec.scheduling_gates)
        self.uses_queue_gate = queue_gates and meta.annotations.get(names.QUEUE_GATE) == "true"
        """Whether the pod was created with a queue gate."""
        self.gated_by_queue = self.uses_queue_gate and self.gates == _QUEUE_GATE_ONLY
        """Whether the queue gate is the only gate left."""
        self.ungated = False
        """Whether the removal of its queue gate is requested."""
        self.gang: Gang | None = None
        self.labels = meta.labels
        self.sub_group: SubGroup | None = None
        """The gang inside its gang that it is in."""
        self.status = task_status(pod)
        self.pod_status = self.status
        """Status by the pod; differs while a placement or eviction is assumed."""
        self.rejected = is_rejection(pod.status.phase, pod.status.reason)
        """Whether the kubelet has rejected it, so that it never ran and is created again."""
        self.evicting = False
        """Whether its eviction is requested: it is releasing even if the pod is running."""
        self.node = spec.node_name
        self.node_index = -1
        """Index of the node on which it is allocated."""
        self.slot = -1
        """Row of the task table."""
        self.table_node = -1
        """Node for which the task table lists it."""
        self.nominated_node = pod.status.nominated_node_name
        """The node on which resources are held for it by its status; empty for none."""
        self.traits = victim_traits(pod)
        self.reported_condition = reported_condition(pod)
        """Reason and message of the pod's PodScheduled=False condition, if it has one."""

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"

    def has_same_scheduling_fields(self, other: "Task") -> bool:
        """Return whether two versions of a pod are equal in all fields that scheduling uses."""
        if self.device_claims != other.device_claims:
            return False
        return (self.status, self.gates, self.role, self.priority, self.node) == (
            other.status,
            other.gates,
            other.role,
            other.priority,
            other.node,
        )

    def unsupported_message(self) -> str:
        """Return which fields leave the pod unschedulable and why; empty if none does."""
        return "; ".join(map(str, self.eq_class.unsupported_fields))

    def sort_key(self) -> tuple[float, str, str]:
        """Return the order of tasks that plugins rank equal: index in the name, then age."""
        return (self.index, self.created, self.uid)


class SubGroup:
    """Pods that are allocated together, within their gang."""

    __slots__ = ("counts", "policy", "tasks", "values")

    def __init__(self, policy: SubGroupPolicy, values: tuple[str, ...]) -> None:
        """Start without tasks."""
        self.policy = policy
        self.values = values
        self.counts = TaskCounts()
        self.tasks: dict[str, Task] = {}

    @property
    def name(self) -> str:
        """The name of the policy, and the values of its labels."""
        return "-".join((self.policy.name, *self.values))

    @property
    def missing(self) -> int:
        """How many pods it lacks to be whole."""
        return max(self.policy.size - self.counts.ready, 0)

    @property
    def order(self) -> tuple[object, ...]:
        """The order of sub-groups: one that has lost pods first, then the highest priority, then
        the first value as a number."""
        priority = max((task.priority for task in self.tasks.values()), default=0)
        first = self.values[0]
        index = int(first) if first.isascii() and first.isdecimal() else 0
        has_lost = 0 < self.counts.ready < self.policy.size
        return (not has_lost, -priority, self.policy.position, index, self.values)


class SubGroups:
    """The sub-groups of a gang."""

    def __init__(self, spec: PodGroupSpec) -> None:
        """Compile the policies of *spec*; there are no sub-groups yet."""
        self.policies = [
            SubGroupPolicy(position, each) for position, each in enumerate(spec.sub_group_policy)
        ]
        self._by_key: dict[SubGroupKey, SubGroup] = {}

    def __iter__(self) -> Iterator[SubGroup]:
        return iter(self._by_key.values())

    def key_of(self, labels: Mapping[str, str]) -> SubGroupKey | None:
        """Return the key of the sub-group of a pod with *labels*; ``None`` if it is in none."""
        for policy in self.policies:
            values = policy.values(labels)
            if values is not None:
                return policy.position, values
        return None

    def add(self, task: Task) -> None:
        """Add *task* to its sub-group."""
        key = self.key_of(task.labels)
        if key is None:
            return
        known = self._by_key.get(key)
        if known is None:
            policy = self.policies[key[0]]
            known = self._by_key[key] = SubGroup(policy, key[1])
        task.sub_group = known
        known.tasks[task.uid] = task
        known.counts.by_status[task.status] += 1

    def remove(self, task: Task) -> None:
        """Remove *task* from its sub-group."""
        known, task.sub_group = task.sub_group, None
        if known is None:
            return
        del known.tasks[task.uid]
        known.counts.by_status[task.status] -= 1
        if not known.tasks:
            del self._by_key[known.policy.position, known.values]

    def short(self, is_whole: Callable[[SubGroup], bool]) -> dict[int, int]:
        """Return how many more sub-groups are needed for which *is_whole*, by the position of the
        policy, where some are."""
        needed = {each.position: each.minimum for each in self.policies if each.minimum}
        for each in self._by_key.values() if needed else ():
            position = each.policy.position
            if position in needed and is_whole(each):
                needed[position] -= 1
        return {position: count for position, count in needed.items() if count > 0}

    def is_ready(self) -> bool:
        """Return whether as many sub-groups as needed are whole."""
        return not self.short(lambda each: each.counts.ready >= each.policy.size)


class QueueInfo:
    """A queue, and sums over its gangs."""

    def __init__(self, name: str) -> None:
        """Create a queue that is not known yet, so that no gang is admitted to it."""
        self.name = name
        self.object: QueueObject | None = None
        self.gangs: set[str] = set()
        self.allocated: Amounts = {}
        """Requests of its allocated tasks, and what is kept for the next pods of its gangs."""
        self.kept: Amounts = {}
        """What is kept, as far as it counts as allocated."""
        self.requested: Amounts = {}
        """Requests of its allocated and pending tasks."""
        self.reserved: Amounts = {}
        """What its admitted gangs still need for their minimum."""
        self.elastic: Amounts = {}
        """What is allocated to its gangs beyond their minimum."""
        self.ungated: Amounts = {}
        """Requests of tasks without their queue gate that are not allocated yet."""

    @property
    def state(self) -> str:
        """State of the queue; empty if it is not known."""
        return self.object.status.state if self.object else ""


class Gang:
    """Tasks that are scheduled together."""

    unschedulable_group: Any = None
    """The group in the scheduling queue that it is in, if it was rejected."""
    group_order: tuple[object, ...] = ()
    """Its order in the group."""
    estimated_start: StartEstimate | None = None
    """When it starts, if it waits and that is planned."""
    estimated_seconds: float | None = None
    """For how long it is expected to run, as of :attr:`estimated_version`."""
    estimated_version = (-1, -1)
    """The versions of the gang and of the queues."""
    predicted_pattern: tuple[str, str, str] | None = None
    """Queue, user and name pattern, if former gangs decide for how long it is expected to run."""
    is_predicted = False
    """Whether that is a prediction, also of a gang that runs."""
    borrowable = 0.0
    """By how much its queue may exceed what it deserves with it, as a fraction of that, as of its
    last attempt."""
    topology: TopologyConstraint | None = None
    """What it requires of the network between its pods."""
    native: NativeSpec | None = None
    """What its PodGroup requires, if that is one of Kubernetes itself."""
    planned_domain = ""
    """The domain of the network in which its start is planned."""
    rejected_version = -1
    """Version of this gang when it was rejected."""
    evicted_at = -math.inf
    """When pods of it were last evicted for another gang, as Unix time."""
    keep_seconds = 0.0
    """For how long the nodes of its deleted and failed pods are kept for it, by its PodGroup; still
    after that was deleted, as a restart of the job does."""

    def __init__(self, key: str, *, single: bool = False) -> None:
        """Create a gang without tasks; a *single* one is a pod without a PodGroup."""
        self.key = key
        self.single = single
        self.namespace, _, name = key.rpartition("/")
        self.name = podgroup_name(name)
        self.podgroup: PodGroup | None = None
        self.min_member = 1 if single else 0
        """Number of tasks that must be scheduled together."""
        self.role_minima: dict[str, int] = {}
        """Number of tasks of each role that must be scheduled together.

        Minima that sum to more than that of the gang are ignored: the job controller writes them
        for elastic jobs.
        """
        self.sub_groups: SubGroups | None = None
        """The gangs inside it, if its PodGroup has policies for them."""
        self.phase = ""
        self.last_status = PodGroupStatus()
        """The PodGroup status that was last reported."""
        self.priority = 0
        self.tasks: dict[str, Task] = {}
        self.counts = TaskCounts()
        self.counts_by_role: dict[str, TaskCounts] = {}
        self.pending_tasks: dict[str, Task] = {}
        """Pending tasks without gates."""
        self.best_effort_count = 0
        """How many of those are best-effort."""
        self.gated_request: Amounts = {}
        """Requests of tasks with gates other than the queue gate."""
        self.gated_tasks: dict[str, Task] = {}
        """Those tasks, and with queue gates disabled all gated tasks."""
        self.gated_by_queue: dict[str, Task] = {}
        """Tasks with a queue gate only."""
        self.ungated_request: Amounts = {}
        """Requests of ungated tasks that are not allocated yet."""
        self.diagnosis: Diagnosis | None = None
        """Why it is unschedulable, if it was rejected."""
        self.allocated: Amounts = {}
        self.requested: Amounts = {}
        self.min_resources: Amounts = {}
        self.min_request: Amounts = {}
        """The minimum without gated tasks, which ``enqueue`` compares."""
        self.rejected = 0
        """Number of tasks that the kubelet has rejected; they are failed, too."""
        self.releasing = 0
        """Number of tasks that are being deleted and still on their node."""
        self.member_arrival = MemberArrival()
        """When its members arrived while others were missing."""
        self.conditions_updated_at = -math.inf
        """When conditions of its pods were last reported, by the same clock."""
        self.version = 0
        """Grows with every event that may change the result of an attempt."""
        self.planned_uid = ""
        """Uid of the PodGroup whose members were planned, or could not be."""

    # -- requirements --------------------------------------------------------------------------

    @property
    def queue_name(self) -> str:
        """Queue of the PodGroup; empty for a single pod."""
        return self.podgroup.spec.queue if self.podgroup else ""

    @property
    def created(self) -> str:
        """Creation timestamp, as sortable text."""
        if self.podgroup:
            return self.podgroup.metadata.creation_timestamp or ""
        return min((task.created for task in self.tasks.values()), default="")

    @property
    def is_pending(self) -> bool:
        """Whether it is not admitted to its queue yet."""
        return self.phase in _NOT_ADMITTED and not self.single

    @property
    def is_evicted_whole(self) -> bool:
        """Whether all its tasks are to be evicted if one is."""
        return self.native is not None and self.native.is_evicted_whole

    def is_ready(self) -> bool:
        """Return whether enough tasks are ready, in total and of each role."""
        counts = self.counts.by_status  # not the property: this is asked most often of all
        started = counts[_BINDING] + counts[_BOUND] + counts[_RUNNING] + counts[_ALLOCATED]
        if started + counts[_SUCCEEDED] < self.min_member:
            return False
        for role, minimum in self.role_minima.items():
            if self.role_counts(role).ready < minimum:
                return False
        return self.sub_groups is None or self.sub_groups.is_ready()

    def is_pipelined(self) -> bool:
        """Return whether it is ready once the resources that its tasks wait for are free.

        Pending best-effort tasks need none.
        """
        idle = self._best_effort_by_role()
        is_missing_role = any(
            self.role_counts(role).ready + self.role_counts(role).waiting + idle[role] < minimum
            for role, minimum in self.role_minima.items()
        )
        allocated = self.counts.ready + self.counts.waiting
        if is_missing_role or allocated + self.best_effort_count < self.min_member:
            return False
        return self.sub_groups is None or not self.sub_groups.short(_is_pipelined)

    def is_starving(self) -> bool:
        """Return whether it has less than its minimum, waiting tasks included."""
        return self.counts.ready + self.counts.waiting < self.min_member

    def _best_effort_by_role(self) -> Counter[str]:
        if not self.best_effort_count:
            return Counter()
        tasks = self.pending_tasks.values()
        return Counter(task.role for task in tasks if task.eq_class.best_effort)

    def is_terminating(self) -> bool:
        """Return whether all missing members are being deleted, or rejected by the kubelet, and no
        task is pending."""
        accounted = self.counts.allocated + self.counts.completed + self.releasing
        has_pending = self.counts[_PENDING] > 0
        is_losing = self.releasing + self.rejected > 0
        return is_losing and not has_pending and accounted >= self.min_member

    def role_counts(self, role: str) -> TaskCounts:
        """Return the counts of one role."""
        return self.counts_by_role.get(role) or _NO_TASKS

    def awaits_ungating(self) -> bool:
        """Return whether tasks that it needs to be ready still have their queue gate."""
        if not self.gated_by_queue or self.is_ready():
            return False
        if self.counts.ready + len(self.pending_tasks) < self.min_member:
            return True
        if self.sub_groups is not None and self.sub_groups.short(_is_whole_without_gates):
            return True
        available = Counter(task.role for task in self.pending_tasks.values())
        return any(
            self.role_counts(role).ready + available[role] < minimum
            for role, minimum in self.role_minima.items()
        )

    def sub_group_key(self, task: Task) -> SubGroupKey | None:
        """Return which sub-group the labels of *task* put it in; ``None`` for none."""
        return None if self.sub_groups is None else self.sub_groups.key_of(task.labels)

    def has_requesting_tasks(self) -> bool:
        """Return whether a pending task without gates has a request."""
        return len(self.pending_tasks) > self.best_effort_count

    def has_best_effort_tasks(self) -> bool:
        """Return whether a pending task without gates is best-effort."""
        return self.best_effort_count > 0

    # -- changes -------------------------------------------------------------------------------

    def add_task(self, task: Task) -> None:
        """Add *task*."""
        self.tasks[task.uid] = task
        task.gang = self
        self._add_to_counts(task, 1)
        if self.sub_groups is not None:
            self.sub_groups.add(task)
        self.rejected += task.rejected
        self.version += task.status is _PENDING

    def remove_task(self, task: Task) -> None:
        """Remove *task*."""
        del self.tasks[task.uid]
        self._add_to_counts(task, -1)
        if self.sub_groups is not None:
            self.sub_groups.remove(task)
        self.rejected -= task.rejected
        task.gang = None
        self.version += 1

    def replace_task(self, old: Task, new: Task) -> None:
        """Replace *old*, a member, by its pod *new*, which has the same class, role and node."""
        del self.tasks[old.uid]
        self.tasks[new.uid] = new
        if self.sub_groups is not None:
            self.sub_groups.remove(old)
            self.sub_groups.add(new)
        new.gang, old.gang = self, None
        for counts in (self.counts.by_status, self.counts_by_role[new.role].by_status):
            counts[old.status] -= 1
            counts[new.status] += 1
        self.version += 1

    def update_task_statuses(self, tasks: Sequence[Task], status: TaskStatus) -> Amounts:
        """Set the status of *tasks*, which have one status and one equivalence class.

        Returns by how much that changes :attr:`allocated`.
        """
        if not tasks:
            return {}
        before, eq_class = tasks[0].status, tasks[0].eq_class
        counts, count = self.counts.by_status, len(tasks)
        counts[before] -= count
        counts[status] += count
        for task in tasks:
            task.status = status
            by_status = self.counts_by_role[task.role].by_status
            by_status[before] -= 1
            by_status[status] += 1
            if task.sub_group is not None:
                by_status = task.sub_group.counts.by_status
                by_status[before] -= 1
                by_status[status] += 1
        self._update_releasing(tasks, (status is _RELEASING) - (before is _RELEASING))
        if _PENDING in (before, status) and before is not status:
            for task in tasks:
                self._add_pending_to_counts(task, 1 if status is _PENDING else -1)
        is_counted, was_counted = _COUNTED[status], _COUNTED[before]
        sign = (is_counted or status is _PENDING) - (was_counted or before is _PENDING)
        if sign:
            add_amounts(self.requested, eq_class.request, sign * count)
        if is_counted == was_counted:
            return {}
        factor = count if is_counted else -count
        add_amounts(self.allocated, eq_class.request, factor)
        return {name: units * factor for name, units in eq_class.request.items()}

    def _update_releasing(self, tasks: Sequence[Task], sign: int) -> None:
        if sign:
            self.releasing += sign * sum(bool(task.node) for task in tasks)

    def mark_ungated(self, task: Task) -> None:
        """Record that the removal of the queue gate of *task* is requested."""
        self._add_to_counts(task, -1)
        task.ungated = True
        self._add_to_counts(task, 1)

    def set_podgroup(self, podgroup: PodGroup | None) -> bool:
        """Set the PodGroup; returns whether its spec differs from the previous one.

        The phase of a known PodGroup is not read: the scheduler writes it.
        """
        before = self.podgroup
        known = before and podgroup and before.metadata.uid == podgroup.metadata.uid
        if not known:
            self.phase = podgroup.status.phase if podgroup else ""
            self.last_status = podgroup.status if podgroup else PodGroupStatus()
            self.diagnosis = None
        self.podgroup = podgroup
        changed = not known or (
            before is not None and podgroup is not None and before.spec != podgroup.spec
        )
        if changed:
            self._set_requirements(podgroup.spec if podgroup else PodGroupSpec())
            self.version += 1
        return changed and before is not None

    def _set_requirements(self, spec: PodGroupSpec) -> None:
        self.min_resources = amounts(spec.min_resources)
        if not self.single:
            self.min_member = spec.min_member
        self.topology = constraint_from(spec.network_topology)
        self.native = spec if isinstance(spec, NativeSpec) else None
        if self.native is not None and self.native.topology_key:
            self.topology = TopologyConstraint(is_hard=True, label=self.native.topology_key)
        minima = spec.min_task_member
        self.role_minima = minima if self.min_member >= sum(minima.values()) else {}
        for task in self.tasks.values():
            task.sub_group = None
        self.sub_groups = None
        if spec.sub_group_policy:
            self.sub_groups = SubGroups(spec)
            for task in self.tasks.values():
                self.sub_groups.add(task)

    def _add_to_counts(self, task: Task, sign: int) -> None:
        status, request = task.status, task.eq_class.request
        self.counts.by_status[status] += sign
        role = self.counts_by_role.get(task.role)
        if role is None:
            role = self.counts_by_role[task.role] = TaskCounts()
        role.by_status[status] += sign
        if status is _RELEASING and task.node:
            self.releasing += sign
        if _COUNTED[status]:
            add_amounts(self.allocated, request, sign)
            add_amounts(self.requested, request, sign)
        elif status is _PENDING:
            add_amounts(self.requested, request, sign)
            self._add_pending_to_counts(task, sign)

    def _add_pending_to_counts(self, task: Task, sign: int) -> None:
        request = task.eq_class.request
        if task.ungated or (task.uses_queue_gate and not task.gates):
            add_amounts(self.ungated_request, request, sign)
        if task.gates and task.gates != _QUEUE_GATE_ONLY:
            add_amounts(self.gated_request, request, sign)
        if not task.gates:
            self.best_effort_count += sign if task.eq_class.best_effort else 0
            tasks = self.pending_tasks
        else:
            tasks = self.gated_by_queue if task.gated_by_queue else self.gated_tasks
        if sign > 0:
            tasks[task.uid] = task
        else:
            tasks.pop(task.uid, None)


def _is_pipelined(sub_group: SubGroup) -> bool:
    """Return whether *sub_group* is whole once the resources that its tasks wait for are free."""
    counts, tasks = sub_group.counts, sub_group.tasks.values()
    idle = sum(
        task.eq_class.best_effort and not task.gates for task in tasks if task.status is _PENDING
    )
    return counts.ready + counts.waiting + idle >= sub_group.policy.size


def _is_whole_without_gates(sub_group: SubGroup) -> bool:
    """Return whether *sub_group* has enough tasks without gates."""
    tasks = sub_group.tasks.values()
    pending = sum(task.status is _PENDING and not task.gates for task in tasks)
    return sub_group.counts.ready + pending >= sub_group.policy.size


_NO_TASKS = TaskCounts()
_NOT_ADMITTED = frozenset(("", PodGroupPhase.PENDING))
_QUEUE_GATE_ONLY = (names.QUEUE_GATE,)


def sorted_tasks(
    tasks: Iterable[Task], task_order: Callable[[Task], tuple[float, ...]]
) -> list[Task]:
    """Return *tasks* by *task_order*, then by index and age; best-effort tasks are last."""
    return sorted(
        tasks, key=lambda task: (task.eq_class.best_effort, task_order(task), task.sort_key())
    )


def add_amounts(target: Amounts, delta: Amounts, factor: int = 1) -> None:
    """Add *delta* times *factor* to *target*; entries that become zero are removed."""
    for name, units in delta.items():
        total = target.get(name, 0) + units * factor
        if total:
            target[name] = total
        elif name in target:
            del target[name]


def positive_difference(left: Amounts, right: Amounts) -> Amounts:
    """Return by how much *left* exceeds *right*, where it does."""
    return {
        name: units - right.get(name, 0)
        for name, units in left.items()
        if units > right.get(name, 0)
    }


def sum_amounts(items: Iterable[Amounts]) -> Amounts:
    """Return the sum of *items*."""
    result: Amounts = {}
    for item in items:
        add_amounts(result, item)
    return result


def task_role(pod: Pod) -> str:
    """Return which task of its job *pod* belongs to; empty if it has none."""
    meta = pod.metadata
    return meta.annotations.get(names.TASK_SPEC) or meta.labels.get(names.TASK_SPEC, "")


def task_status(pod: Pod) -> TaskStatus:
    """Return the status of a task whose pod is *pod*."""
    phase = pod.status.phase
    if phase in _FINISHED_STATUSES:
        return _FINISHED_STATUSES[phase]
    if pod.metadata.deletion_timestamp:
        return _RELEASING
    if phase == "Running":
        return _RUNNING
    if phase in ("Pending", ""):
        return _BOUND if pod.spec.node_name else _PENDING
    return _UNKNOWN


_FINISHED_STATUSES = {"Succeeded": _SUCCEEDED, "Failed": _FAILED}
