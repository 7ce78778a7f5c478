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
from .equivalence import Shape
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
        return self in _ON_NODE


_ON_NODE = frozenset(
    {
        TaskStatus.BINDING,
        TaskStatus.BOUND,
        TaskStatus.RUNNING,
        TaskStatus.RELEASING,
        TaskStatus.UNKNOWN,
    }
)
_ALLOCATED = (TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING)
_STARTED = (TaskStatus.BINDING, TaskStatus.BOUND)


class Tally:
    """How many tasks there are of each status."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        """Start with none."""
        self.counts = [0] * len(TaskStatus)

    def __getitem__(self, status: TaskStatus) -> int:
        return self.counts[status]

    @property
    def allocated(self) -> int:
        """Tasks that have their place and use it or are about to."""
        return sum(self.counts[status] for status in _ALLOCATED)

    @property
    def ready(self) -> int:
        """Tasks that count for the gang's minimum: placed ones and those that did their work."""
        return self.allocated + self.counts[TaskStatus.SUCCEEDED]

    @property
    def valid(self) -> int:
        """Tasks that count or may come to count."""
        return self.ready + self.counts[TaskStatus.PENDING]

    @property
    def completed(self) -> int:
        """Tasks that are over."""
        return self.counts[TaskStatus.SUCCEEDED] + self.counts[TaskStatus.FAILED]

    @property
    def starting(self) -> int:
        """Tasks placed that do not run yet."""
        return sum(self.counts[status] for status in _STARTED)


class Task:
    """A pod to place, or placed. Made by :func:`task_of`; only its gang changes it."""

    __slots__ = (
        "at_queue",
        "claims",
        "created",
        "gates",
        "index",
        "lifted",
        "name",
        "namespace",
        "node",
        "priority",
        "role",
        "shape",
        "slot",
        "status",
        "told",
        "uid",
        "vetted",
    )

    def __init__(self, pod: Pod, shape: Shape, *, lift: bool = False) -> None:
        """Read *pod*; its request has been read into *shape*.

        *lift* says that the gate of queues is ours to lift.
        """
        meta, spec = pod.metadata, pod.spec
        self.uid = meta.uid
        self.name = meta.name
        self.namespace = meta.namespace
        self.shape = shape
        self.role = meta.annotations.get(names.TASK_SPEC) or meta.labels.get(names.TASK_SPEC, "")
        self.priority = _task_priority(pod)
        self.created = meta.creation_timestamp or ""
        self.index = _index(meta.name)
        self.claims = tuple(_claims(pod))
        """The claims that it mounts by name, and whether each is to be its own."""
        self.gates = tuple(gate.name for gate in spec.scheduling_gates)
        self.vetted = lift and meta.annotations.get(names.QUEUE_GATE) == "true"
        """Whether the pod was to be let in by its queue."""
        self.at_queue = self.vetted and self.gates == _QUEUE_GATE_ALONE
        """Whether nothing but that keeps it from being placed."""
        self.lifted = False
        """Whether it has been let in, and its gate is on its way out."""
        self.status = status_of(pod)
        self.node = spec.node_name
        self.slot = -1
        """The column of the node that the task is charged to."""
        self.told = _told(pod)
        """Reason and message of the pod's PodScheduled=False condition, if it has one."""

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"

    def asks_the_same(self, other: "Task") -> bool:
        """Whether two readings of a pod differ in nothing that placing it depends on."""
        return (self.status, self.gates, self.role, self.priority, self.node) == (
            other.status,
            other.gates,
            other.role,
            other.priority,
            other.node,
        )

    def age(self) -> tuple[float, str, str]:
        """The order of tasks that rank the same: by index in the name, then older first."""
        return (self.index, self.created, self.uid)


@dataclass(frozen=True, slots=True)
class Lacking:
    """How the members of a gang came in, by a steady clock, while it was short of some."""

    seen: int = 0
    """How many there were when one more was last found, plus one; 0: it was not short."""
    last: float = 0.0
    """When that was."""
    since: float = 0.0
    """When it was first found short."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """The first task of its role that found no place."""

    task: str
    """Name of its pod."""

    uid: str
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a gang waits, as far as the last try could tell."""

    reason: str
    """One word, for ``condition.reason``."""

    message: str = ""
    """What refused the gang as a whole, if something did."""

    misfits: Mapping[str, Misfit] = field(default_factory=dict)
    """By role, who found no place."""

    fitting: frozenset[str] = frozenset()
    """Uids of tasks that had found a place before the try was given up."""


class Queue:
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
        self.group: PodGroup | None = None
        self.phase = ""
        self.said = PodGroupStatus()
        """What was last said of the group's status."""
        self.priority = 0
        self.tasks: dict[str, Task] = {}
        self.tally = Tally()
        self.roles: dict[str, Tally] = {}
        self.waiting: dict[str, Task] = {}
        """Tasks that may be placed."""
        self.best_effort = 0
        """How many of those ask for nothing but a node."""
        self.gated: Amounts = {}
        """What tasks ask for that others hold back."""
        self.held: dict[str, Task] = {}
        """Those tasks."""
        self.at_queue: dict[str, Task] = {}
        """Tasks that are to be let in by the queue."""
        self.promised: Amounts = {}
        """What those ask for that have been let in and are not placed yet."""
        self.finding: Finding | None = None
        """Why it waits, if it was tried and refused."""
        self.allocated: Amounts = {}
        self.requested: Amounts = {}
        self.min_resources: Amounts = {}
        self.min_request: Amounts = {}
        """What admission counts: the minimum, gated tasks taken off."""
        self.leaving = 0
        """Tasks that are being deleted and still on their node."""
        self.lacking = Lacking()
        """How its members came in while it was short of them."""
        self.noted_at = -math.inf
        """When its pods were last told why they wait, by the same steady clock."""
        self.version = 0
        """Grows with every change from outside that a try may end differently for."""
        self.tried = (-1, -1)
        """Versions of the cluster's openings and of this gang when it was last refused."""

    # -- what it needs -------------------------------------------------------------------------

    @property
    def queue_name(self) -> str:
        """The queue that it names; empty for a single pod."""
        return self.group.spec.queue if self.group else ""

    @property
    def min_member(self) -> int:
        """How many tasks must be placed at once."""
        if self.single:
            return 1
        return self.group.spec.min_member if self.group else 0

    @property
    def role_minima(self) -> dict[str, int]:
        """How many tasks of each role must be placed at once.

        Minima that add up to more than the whole gang's are not meant: the job controller writes
        them for elastic jobs.
        """
        minima = self.group.spec.min_task_member if self.group else {}
        return minima if self.min_member >= sum(minima.values()) else {}

    @property
    def created(self) -> str:
        """When it was made; text that sorts."""
        if self.group:
            return self.group.metadata.creation_timestamp or ""
        return min((task.created for task in self.tasks.values()), default="")

    @property
    def is_pending(self) -> bool:
        """Whether it has yet to be admitted to its queue."""
        return not self.single and self.phase in ("", PodGroupPhase.PENDING)

    def is_ready(self) -> bool:
        """Whether its minima are met by tasks placed or done."""
        short = any(
            self.role_tally(role).ready < minimum for role, minimum in self.role_minima.items()
        )
        return self.tally.ready >= self.min_member and not short

    def is_terminating(self) -> bool:
        """Whether it is short only of pods that are being deleted, and none waits for a node."""
        standing = self.tally.allocated + self.tally.completed + self.leaving
        waits = self.tally[TaskStatus.PENDING] > 0
        return self.leaving > 0 and not waits and standing >= self.min_member

    def role_tally(self, role: str) -> Tally:
        """The counts of one role."""
        return self.roles.get(role) or _NOBODY

    def is_entering(self) -> bool:
        """Whether tasks that it needs to start show the gate of their queue still."""
        if not self.at_queue or self.is_ready():
            return False
        if self.tally.ready + len(self.waiting) < self.min_member:
            return True
        there = Counter(task.role for task in self.waiting.values())
        return any(
            self.role_tally(role).ready + there[role] < minimum
            for role, minimum in self.role_minima.items()
        )

    def wants_room(self) -> bool:
        """Whether a task that may be placed asks for an amount of anything."""
        return len(self.waiting) > self.best_effort

    def wants_nodes(self) -> bool:
        """Whether a task that may be placed asks for nothing but a node."""
        return self.best_effort > 0

    # -- changes -------------------------------------------------------------------------------

    def add(self, task: Task) -> None:
        """Take in *task* as it is."""
        self.tasks[task.uid] = task
        self._count(task, 1)
        self.version += task.status is TaskStatus.PENDING

    def remove(self, task: Task) -> None:
        """Forget *task*."""
        del self.tasks[task.uid]
        self._count(task, -1)
        self.version += 1

    def move(self, task: Task, status: TaskStatus) -> None:
        """Note that *task* is *status* now."""
        self._count(task, -1)
        task.status = status
        self._count(task, 1)

    def lift(self, task: Task) -> None:
        """Note that *task* has been let in by the queue."""
        self._count(task, -1)
        task.lifted = True
        self._count(task, 1)

    def set_group(self, group: PodGroup | None) -> bool:
        """Take in the PodGroup, and say whether it asks for something else than before.

        The phase of one that is known already is ours, not its own.
        """
        before = self.group
        known = before and group and before.metadata.uid == group.metadata.uid
        if not known:
            self.phase = group.status.phase if group else ""
            self.said = group.status if group else PodGroupStatus()
            self.finding = None
        self.group = group
        self.min_resources = amounts(group.spec.min_resources) if group else {}
        changed = not known or (
            before is not None and group is not None and before.spec != group.spec
        )
        self.version += changed
        return changed and before is not None

    def _count(self, task: Task, sign: int) -> None:
        status, request = task.status, task.shape.request
        self.tally.counts[status] += sign
        role = self.roles.get(task.role)
        if role is None:
            role = self.roles[task.role] = Tally()
        role.counts[status] += sign
        if status is TaskStatus.RELEASING and task.node:
            self.leaving += sign
        if status in _ALLOCATED:
            add(self.allocated, request, sign)
            add(self.requested, request, sign)
        elif status is TaskStatus.PENDING:
            add(self.requested, request, sign)
            self._count_pending(task, sign)

    def _count_pending(self, task: Task, sign: int) -> None:
        request = task.shape.request
        if task.lifted or (task.vetted and not task.gates):
            add(self.promised, request, sign)
        if task.gates and task.gates != _QUEUE_GATE_ALONE:
            add(self.gated, request, sign)
        if not task.gates:
            self.best_effort += sign if task.shape.best_effort else 0
            among = self.waiting
        else:
            among = self.at_queue if task.at_queue else self.held
        if sign > 0:
            among[task.uid] = task
        else:
            among.pop(task.uid, None)


_NOBODY = Tally()
_QUEUE_GATE_ALONE = (names.QUEUE_GATE,)
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}", re.ASCII)


def in_order(tasks: Iterable[Task], rank: Callable[[Task], tuple[float, ...]]) -> list[Task]:
    """*tasks* in order of *rank*, then age; askers of nothing come last."""
    return sorted(tasks, key=lambda task: (task.shape.best_effort, rank(task), task.age()))


def add(into: Amounts, what: Amounts, times: int = 1) -> None:
    """Add *what*, *times* over, to *into*; entries that come to nothing vanish."""
    for name, units in what.items():
        total = into.get(name, 0) + units * times
        if total:
            into[name] = total
        else:
            into.pop(name, None)


def beyond(left: Amounts, right: Amounts) -> Amounts:
    """What *left* has more than *right*."""
    return {
        name: units - right.get(name, 0)
        for name, units in left.items()
        if units > right.get(name, 0)
    }


def total(parts: Iterable[Amounts]) -> Amounts:
    """The sum of *parts*."""
    result: Amounts = {}
    for part in parts:
        add(result, part)
    return result


def status_of(pod: Pod) -> TaskStatus:
    """Where *pod* stands, from the pod alone."""
    phase = pod.status.phase
    if phase in _ENDED:
        return _ENDED[phase]
    if pod.metadata.deletion_timestamp:
        return TaskStatus.RELEASING
    if phase == "Running":
        return TaskStatus.RUNNING
    if phase in ("Pending", ""):
        return TaskStatus.BOUND if pod.spec.node_name else TaskStatus.PENDING
    return TaskStatus.UNKNOWN


_ENDED = {"Succeeded": TaskStatus.SUCCEEDED, "Failed": TaskStatus.FAILED}


def _claims(pod: Pod) -> Iterator[tuple[str, bool]]:
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


def _index(name: str) -> float:
    """The number at the end of a task's pod name; names without one come last."""
    head, _, tail = name.rpartition("-")
    return float(tail) if "-" in head and _WHOLE_NUMBER.fullmatch(tail) else math.inf


def _told(pod: Pod) -> tuple[str, str] | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason, condition.message
    return None
