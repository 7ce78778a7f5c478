"""Gangs, their tasks, and the queues that they wait in, with counters instead of walks.

A *task* is a pod as the scheduler sees it. A *gang* is the tasks of one PodGroup, which start
together or not at all; a pod that is scheduled by itself is a gang of one without a PodGroup.
Every change of a task goes through :class:`Gang`, so that its counters and sums always hold.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ...model import names
from ...model.podgroup import PodGroup, PodGroupPhase, PodGroupStatus
from ...model.queue import Queue as QueueObject
from .core_types import Pod
from .equivalence import EquivalenceClass
from .resources import Amounts, amounts


class TaskStatus(IntEnum):
    """How far a task is."""

    PENDING = 0
    BINDING = 1
    """Placed by us; the cluster has not confirmed it yet."""
    BOUND = 2
    RUNNING = 3
    RELEASING = 4
    """Being deleted, still on its node."""
    SUCCEEDED = 5
    FAILED = 6
    UNKNOWN = 7

    @property
    def on_node(self) -> bool:
        """Whether such a task takes up room."""
        return self in _ON_NODE_STATUSES


_ON_NODE_STATUSES = frozenset(
    {
        TaskStatus.BINDING,
        TaskStatus.BOUND,
        TaskStatus.RUNNING,
        TaskStatus.RELEASING,
        TaskStatus.UNKNOWN,
    }
)
_ALLOCATED_STATUSES = (TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING)
_STARTING_STATUSES = (TaskStatus.BINDING, TaskStatus.BOUND)


class TaskCounts:
    """How many tasks there are of each status."""

    __slots__ = ("by_status",)

    def __init__(self) -> None:
        """Start with none."""
        self.by_status = [0] * len(TaskStatus)

    def __getitem__(self, status: TaskStatus) -> int:
        return self.by_status[status]

    @property
    def allocated(self) -> int:
        """Tasks that have their place and use it or are about to."""
        return sum(self.by_status[status] for status in _ALLOCATED_STATUSES)

    @property
    def ready(self) -> int:
        """Tasks that count for the gang's minimum: placed ones and those that did their work."""
        return self.allocated + self.by_status[TaskStatus.SUCCEEDED]

    @property
    def valid(self) -> int:
        """Tasks that count or may come to count."""
        return self.ready + self.by_status[TaskStatus.PENDING]

    @property
    def completed(self) -> int:
        """Tasks that are over."""
        return self.by_status[TaskStatus.SUCCEEDED] + self.by_status[TaskStatus.FAILED]

    @property
    def starting(self) -> int:
        """Tasks placed that do not run yet."""
        return sum(self.by_status[status] for status in _STARTING_STATUSES)


class Task:
    """A pod to place, or placed. Made by :func:`task_of`; only its gang changes it."""

    __slots__ = (
        "created",
        "eq_class",
        "gated_by_queue",
        "gates",
        "index",
        "name",
        "namespace",
        "node",
        "node_index",
        "priority",
        "pvcs",
        "reported_condition",
        "role",
        "status",
        "uid",
        "ungated",
        "uses_queue_gate",
    )

    def __init__(self, pod: Pod, eq_class: EquivalenceClass, *, queue_gates: bool = False) -> None:
        """Read *pod*; its request has been read into *shape*.

        *lift* says that the gate of queues is ours to lift.
        """
        meta, spec = pod.metadata, pod.spec
        self.uid = meta.uid
        self.name = meta.name
        self.namespace = meta.namespace
        self.eq_class = eq_class
        self.role = meta.annotations.get(names.TASK_SPEC) or meta.labels.get(names.TASK_SPEC, "")
        self.priority = _task_priority(pod)
        self.created = meta.creation_timestamp or ""
        self.index = _task_index(meta.name)
        self.pvcs = tuple(_pod_pvcs(pod))
        """The claims that it mounts by name, and whether each is to be its own."""
        self.gates = tuple(gate.name for gate in spec.scheduling_gates)
        self.uses_queue_gate = queue_gates and meta.annotations.get(names.QUEUE_GATE) == "true"
        """Whether the pod was to be let in by its queue."""
        self.gated_by_queue = self.uses_queue_gate and self.gates == _QUEUE_GATE_ONLY
        """Whether nothing but that keeps it from being placed."""
        self.ungated = False
        """Whether it has been let in, and its gate is on its way out."""
        self.status = task_status(pod)
        self.node = spec.node_name
        self.node_index = -1
        """The column of the node that the task is charged to."""
        self.reported_condition = _reported_condition(pod)
        """Reason and message of the pod's PodScheduled=False condition, if it has one."""

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"

    def has_same_scheduling_fields(self, other: "Task") -> bool:
        """Whether two readings of a pod differ in nothing that placing it depends on."""
        return (self.status, self.gates, self.role, self.priority, self.node) == (
            other.status,
            other.gates,
            other.role,
            other.priority,
            other.node,
        )

    def sort_key(self) -> tuple[float, str, str]:
        """The order of tasks that rank the same: by index in the name, then older first."""
        return (self.index, self.created, self.uid)


@dataclass(frozen=True, slots=True)
class MemberArrival:
    """How the members of a gang came in, by a steady clock, while it was short of some."""

    next_count: int = 0
    """How many there were when one more was last found, plus one; 0: it was not short."""
    last_arrival: float = 0.0
    """When that was."""
    missing_since: float = 0.0
    """When it was first found short."""


@dataclass(frozen=True, slots=True)
class FitError:
    """The first task of its role that found no place."""

    task_name: str
    """Name of its pod."""

    uid: str
    message: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a gang waits, as far as the last try could tell."""

    reason: str
    """One word, for ``condition.reason``."""

    message: str = ""
    """What refused the gang as a whole, if something did."""

    fit_errors: Mapping[str, FitError] = field(default_factory=dict)
    """By role, who found no place."""

    fitting_uids: frozenset[str] = frozenset()
    """Uids of tasks that had found a place before the try was given up."""


class QueueInfo:
    """A queue and the sums over its gangs."""

    def __init__(self, name: str) -> None:
        """A queue that is not known yet: nothing may enter it."""
        self.name = name
        self.object: QueueObject | None = None
        self.gangs: set[str] = set()
        self.allocated: Amounts = {}
        """What its tasks take now."""
        self.requested: Amounts = {}
        """That, and what its pending tasks ask for."""
        self.reserved: Amounts = {}
        """What its admitted gangs will still need to start."""
        self.elastic: Amounts = {}
        """What its gangs take beyond their minimum."""

    @property
    def state(self) -> str:
        """``Open`` or whatever keeps gangs out; empty if the queue is not known."""
        return self.object.status.state if self.object else ""


class Gang:
    """Tasks that start together."""

    def __init__(self, key: str, *, single: bool = False) -> None:
        """A gang of whom nothing but the name is known; *single* ones have no PodGroup."""
        self.key = key
        self.single = single
        self.namespace, _, self.name = key.rpartition("/")
        self.podgroup: PodGroup | None = None
        self.phase = ""
        self.last_status = PodGroupStatus()
        """What was last said of the group's status."""
        self.priority = 0
        self.tasks: dict[str, Task] = {}
        self.counts = TaskCounts()
        self.counts_by_role: dict[str, TaskCounts] = {}
        self.pending_tasks: dict[str, Task] = {}
        """Tasks that may be placed."""
        self.best_effort_count = 0
        """How many of those ask for nothing but a node."""
        self.gated_request: Amounts = {}
        """What tasks ask for that others hold back."""
        self.gated_tasks: dict[str, Task] = {}
        """Those tasks."""
        self.gated_by_queue: dict[str, Task] = {}
        """Tasks that are to be let in by the queue."""
        self.ungated_request: Amounts = {}
        """What those ask for that have been let in and are not placed yet."""
        self.diagnosis: Diagnosis | None = None
        """Why it waits, if it was tried and refused."""
        self.allocated: Amounts = {}
        self.requested: Amounts = {}
        self.min_resources: Amounts = {}
        self.min_request: Amounts = {}
        """What admission counts: the minimum, gated tasks taken off."""
        self.releasing = 0
        """Tasks that are being deleted and still on their node."""
        self.member_arrival = MemberArrival()
        """How its members came in while it was short of them."""
        self.conditions_updated_at = -math.inf
        """When its pods were last told why they wait, by the same steady clock."""
        self.version = 0
        """Grows with every change from outside that a try may end differently for."""
        self.last_attempt = (-1, -1)
        """Versions of the cluster's openings and of this gang when it was last refused."""

    # -- what it needs -------------------------------------------------------------------------

    @property
    def queue_name(self) -> str:
        """The queue that it names; empty for a single pod."""
        return self.podgroup.spec.queue if self.podgroup else ""

    @property
    def min_member(self) -> int:
        """How many tasks must be placed at once."""
        if self.single:
            return 1
        return self.podgroup.spec.min_member if self.podgroup else 0

    @property
    def role_minima(self) -> dict[str, int]:
        """How many tasks of each role must be placed at once.

        Minima that add up to more than the whole gang's are not meant: the job controller writes
        them for elastic jobs.
        """
        minima = self.podgroup.spec.min_task_member if self.podgroup else {}
        return minima if self.min_member >= sum(minima.values()) else {}

    @property
    def created(self) -> str:
        """When it was made; text that sorts."""
        if self.podgroup:
            return self.podgroup.metadata.creation_timestamp or ""
        return min((task.created for task in self.tasks.values()), default="")

    @property
    def is_pending(self) -> bool:
        """Whether it has yet to be admitted to its queue."""
        return not self.single and self.phase in ("", PodGroupPhase.PENDING)

    def is_ready(self) -> bool:
        """Whether its minima are met by tasks placed or done."""
        short = any(
            self.role_counts(role).ready < minimum for role, minimum in self.role_minima.items()
        )
        return self.counts.ready >= self.min_member and not short

    def is_terminating(self) -> bool:
        """Whether it is short only of pods that are being deleted, and none waits for a node."""
        accounted = self.counts.allocated + self.counts.completed + self.releasing
        has_pending = self.counts[TaskStatus.PENDING] > 0
        return self.releasing > 0 and not has_pending and accounted >= self.min_member

    def role_counts(self, role: str) -> TaskCounts:
        """The counts of one role."""
        return self.counts_by_role.get(role) or _NO_TASKS

    def awaits_ungating(self) -> bool:
        """Whether tasks that it needs to start show the gate of their queue still."""
        if not self.gated_by_queue or self.is_ready():
            return False
        if self.counts.ready + len(self.pending_tasks) < self.min_member:
            return True
        available = Counter(task.role for task in self.pending_tasks.values())
        return any(
            self.role_counts(role).ready + available[role] < minimum
            for role, minimum in self.role_minima.items()
        )

    def has_requesting_tasks(self) -> bool:
        """Whether a task that may be placed asks for an amount of anything."""
        return len(self.pending_tasks) > self.best_effort_count

    def has_best_effort_tasks(self) -> bool:
        """Whether a task that may be placed asks for nothing but a node."""
        return self.best_effort_count > 0

    # -- changes -------------------------------------------------------------------------------

    def add_task(self, task: Task) -> None:
        """Take in *task* as it is."""
        self.tasks[task.uid] = task
        self._add_to_counts(task, 1)
        self.version += task.status is TaskStatus.PENDING

    def remove_task(self, task: Task) -> None:
        """Forget *task*."""
        del self.tasks[task.uid]
        self._add_to_counts(task, -1)
        self.version += 1

    def update_task_status(self, task: Task, status: TaskStatus) -> None:
        """Note that *task* is *status* now."""
        self._add_to_counts(task, -1)
        task.status = status
        self._add_to_counts(task, 1)

    def mark_ungated(self, task: Task) -> None:
        """Note that *task* has been let in by the queue."""
        self._add_to_counts(task, -1)
        task.ungated = True
        self._add_to_counts(task, 1)

    def set_podgroup(self, podgroup: PodGroup | None) -> bool:
        """Take in the PodGroup, and say whether it asks for something else than before.

        The phase of one that is known already is ours, not its own.
        """
        before = self.podgroup
        known = before and podgroup and before.metadata.uid == podgroup.metadata.uid
        if not known:
            self.phase = podgroup.status.phase if podgroup else ""
            self.last_status = podgroup.status if podgroup else PodGroupStatus()
            self.diagnosis = None
        self.podgroup = podgroup
        self.min_resources = amounts(podgroup.spec.min_resources) if podgroup else {}
        changed = not known or (
            before is not None and podgroup is not None and before.spec != podgroup.spec
        )
        self.version += changed
        return changed and before is not None

    def _add_to_counts(self, task: Task, sign: int) -> None:
        status, request = task.status, task.eq_class.request
        self.counts.by_status[status] += sign
        role = self.counts_by_role.get(task.role)
        if role is None:
            role = self.counts_by_role[task.role] = TaskCounts()
        role.by_status[status] += sign
        if status is TaskStatus.RELEASING and task.node:
            self.releasing += sign
        if status in _ALLOCATED_STATUSES:
            add_amounts(self.allocated, request, sign)
            add_amounts(self.requested, request, sign)
        elif status is TaskStatus.PENDING:
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


_NO_TASKS = TaskCounts()
_QUEUE_GATE_ONLY = (names.QUEUE_GATE,)
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}", re.ASCII)


def sorted_tasks(
    tasks: Iterable[Task], task_order: Callable[[Task], tuple[float, ...]]
) -> list[Task]:
    """*tasks* in order of *rank*, then age; askers of nothing come last."""
    return sorted(
        tasks, key=lambda task: (task.eq_class.best_effort, task_order(task), task.sort_key())
    )


def add_amounts(target: Amounts, delta: Amounts, factor: int = 1) -> None:
    """Add *what*, *times* over, to *into*; entries that come to nothing vanish."""
    for name, units in delta.items():
        total = target.get(name, 0) + units * factor
        if total:
            target[name] = total
        else:
            target.pop(name, None)


def positive_difference(left: Amounts, right: Amounts) -> Amounts:
    """What *left* has more than *right*."""
    return {
        name: units - right.get(name, 0)
        for name, units in left.items()
        if units > right.get(name, 0)
    }


def sum_amounts(items: Iterable[Amounts]) -> Amounts:
    """The sum of *parts*."""
    result: Amounts = {}
    for part in items:
        add_amounts(result, part)
    return result


def task_status(pod: Pod) -> TaskStatus:
    """Where *pod* stands, from the pod alone."""
    phase = pod.status.phase
    if phase in _FINISHED_STATUSES:
        return _FINISHED_STATUSES[phase]
    if pod.metadata.deletion_timestamp:
        return TaskStatus.RELEASING
    if phase == "Running":
        return TaskStatus.RUNNING
    if phase in ("Pending", ""):
        return TaskStatus.BOUND if pod.spec.node_name else TaskStatus.PENDING
    return TaskStatus.UNKNOWN


_FINISHED_STATUSES = {"Succeeded": TaskStatus.SUCCEEDED, "Failed": TaskStatus.FAILED}


def _pod_pvcs(pod: Pod) -> Iterator[tuple[str, bool]]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def _task_priority(pod: Pod) -> int:
    given = pod.metadata.annotations.get("volcano.sh/task-priority", "")
    if _WHOLE_NUMBER.fullmatch(given) and abs(int(given)) < 2**31:
        return int(given)
    return 1 if pod.spec.priority is None else pod.spec.priority


def _task_index(name: str) -> float:
    """The number at the end of a task's pod name; names without one come last."""
    head, _, tail = name.rpartition("-")
    return float(tail) if "-" in head and _WHOLE_NUMBER.fullmatch(tail) else math.inf


def _reported_condition(pod: Pod) -> tuple[str, str] | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason, condition.message
    return None
