"""The extension points of the scheduler, and their methods.

A plugin is an object that is created once from its arguments (``Plugin(arguments)``). It has any of
the methods, all of which are optional; those in :data:`TOGETHER` require each other. Each Protocol
documents how the results of several plugins are combined. Plugins do not change the scheduler
cache. A filter, limit or vote that raises leaves the gang in question unschedulable; an order or
score that raises is skipped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import BudgetUse, Diagnosis, Shortage, Stage
from ..state.gangs.gang import Gang, QueueInfo, Task
from ..state.gangs.task_table import TaskTable
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.declared_fields import PodFields
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import ClusterEvent, LimitNeed
from ..state.resources import BoolVector, IntVector, Matrix
from .placement import Placement

Scores = npt.NDArray[np.float64] | npt.NDArray[np.int64]

NOT_ENOUGH_RESOURCES = "NotEnoughResources"
"""Reason of a rejection for lack of resources."""


UNSUPPORTED_FIELD = "UnsupportedField"
"""Reason of a rejection for fields of pods that the scheduler does not implement."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a plugin rejects something; shown to users."""

    reason: str
    """For ``condition.reason``."""

    message: str
    stage: Stage = Stage.QUOTA
    shortages: tuple[Shortage, ...] = ()
    """What a limit leaves too little of."""

    budget: BudgetUse | None = None
    """The budget of the queue that is used up, if that is why."""

    wake_on: frozenset[ClusterEvent] | None = None
    """What may end it, besides changes of the gang; ``None``: any event."""

    retry_at: float | None = None
    """When it may end without an event, in Unix time."""

    shared: bool = False
    """Whether it holds for every gang with the same queue, priority and minimum."""

    limit_need: LimitNeed | None = None
    """What must be free before some of the events may end it."""

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of a gang that is rejected as a whole."""
        return Diagnosis(
            self.reason,
            self.message,
            stage=self.stage,
            shortages=self.shortages,
            budget=self.budget,
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """Tasks of one gang and one equivalence class, and the node of each."""

    gang: Gang
    queue: QueueInfo
    eq_class: EquivalenceClass
    tasks: Sequence[Task]
    node_indexes: Sequence[int]


class NodeAmounts(NamedTuple):
    """What one more pod requests, and what nodes have; the vectors have a value for each resource.

    *allocatable* and *used* have a column for each of *node_indexes*, which may have repeats;
    *used* is without the pod.
    """

    request: IntVector
    node_indexes: IntVector
    allocatable: Matrix
    used: Matrix


class RejectedNodes(NamedTuple):
    """Nodes that a filter rejects, and why."""

    mask: BoolVector
    """A value for each column of the node matrix."""

    reason: str


@dataclass(frozen=True, slots=True)
class Preemptor:
    """Pods of one equivalence class that are to get the resources of victims."""

    gang: Gang
    queue: QueueInfo
    eq_class: EquivalenceClass
    count: int
    """Number of the pods."""

    priority: int
    """The lowest priority of their tasks."""


class FieldsPlugin(Protocol):
    """A plugin that reads fields of pods which are not in their spec."""

    pod_fields: PodFields
    """What it reads, by ``self.pod_fields.of(eq_class)``."""


class SessionPlugin(Protocol):
    """A plugin that computes something before each cycle, or has sums over what is allocated.

    Tasks that wait for resources count as allocated, evicted tasks do not. A plugin that raises in
    :meth:`allocated` or :meth:`deallocated` leaves the operation undone.
    """

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Read *cache* at the start of a session."""
        ...

    def on_session_close(self) -> None:
        """End a session, after its last decision."""
        ...

    def allocated(self, change: Allocation) -> None:
        """Add *change*; called after gang and queue have counted it."""
        ...

    def deallocated(self, change: Allocation) -> None:
        """Subtract *change*; called after gang and queue have counted it, or before they undo
        it."""
        ...


class OrderPlugin(Protocol):
    """Order of queues, of the gangs of a queue, and of the tasks of a gang: smallest first, plugins
    in order.

    Without a :meth:`victim_queue_order` the queue that is last in queue order is the first to lose
    tasks.
    """

    def queue_order(self, queue: QueueInfo) -> float | tuple[float, ...]:
        """Return the sort key of *queue*; in a hierarchy a number for each level."""
        ...

    def victim_queue_order(self, queue: QueueInfo, preemptor: QueueInfo) -> float:
        """Return the sort key of *queue* among those that lose tasks to a gang of the queue
        *preemptor*."""
        ...

    def job_order(self, gang: Gang) -> float:
        """Return the sort key of *gang*."""
        ...

    def task_order(self, task: Task) -> float:
        """Return the sort key of *task*."""
        ...


class JobValidPlugin(Protocol):
    """Whether a gang can be scheduled at all; the first rejection counts, and the earliest time."""

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Return why *gang* is not to be tried, or ``None``."""
        ...

    def retry_at(self, gang: Gang) -> float | None:
        """Return when *gang*, which was rejected, is to be tried again because votes change with
        time, in Unix time."""
        ...


class JobEnqueueablePlugin(Protocol):
    """Whether a gang is admitted to its queue; any rejection counts.

    A plugin permits (``True``), rejects (a :class:`Rejection`) or abstains (``None``). If a plugin
    of a tier permits and none rejects, later tiers are not asked.
    """

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Return the vote on *gang*."""
        ...

    def job_enqueued(self, gang: Gang) -> None:
        """Count *gang*, which has been admitted."""
        ...


class JobReadyPlugin(Protocol):
    """Whether a gang is ready, may evict others, and is ready once its tasks need not wait any
    more."""

    def job_ready(self, gang: Gang) -> Rejection | None:
        """Return why *gang* does not get the nodes that have just been allocated to its tasks,
        which have its minimum, or ``None``; any rejection counts."""
        ...

    def job_pipelined(self, gang: Gang) -> bool | None:
        """Return whether *gang* is ready once the resources that its tasks wait for are free.

        A plugin permits (``True``), rejects (``False``) or abstains (``None``); any rejection
        counts. If a plugin of a tier permits and none rejects, later tiers are not asked.
        """
        ...

    def job_starving(self, gang: Gang) -> bool:
        """Return whether *gang* lacks tasks, so that it may evict others.

        All plugins of the first tier that has one must agree.
        """
        ...


class QueueLimitPlugin(Protocol):
    """Limits of a queue, by its current sums, which change during a cycle.

    The smallest count applies; one plugin suffices for a queue to be overused.
    """

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* the queue may allocate."""
        ...

    def borrowable_count(
        self, queue: QueueInfo, eq_class: EquivalenceClass, fraction: float
    ) -> int:
        """Return the same for a gang that ends soon, which may get what other queues leave idle:
        with it the queue may have *fraction* more than it deserves, a positive number or infinity.

        Without it, such a gang has no higher limit. With it, it is also tried in an overused queue.
        """
        ...

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection:
        """Return why another pod of *eq_class* is over the limit; called if it is."""
        ...

    def preemptive_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return for how many more pods of *eq_class* the queue may reclaim resources."""
        ...

    def overused(self, queue: QueueInfo) -> bool:
        """Return whether the queue gets no more in this cycle."""
        ...


class FilterPlugin(Protocol):
    """Which nodes are infeasible, apart from amounts; the first reason counts.

    :meth:`node_limit` is how many more pods a node accepts, by the pods that it has; the smallest
    count applies. A pod may change the limit of the node that it is on, and of no other.
    :meth:`pod_filters` are filters by the pods that are on any node.
    """

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Return why *node* is infeasible for pods of *eq_class*, or ``None``."""
        ...

    def node_limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Return how many more pods of *eq_class* each of *node_indexes* (``None``: every column)
        accepts, or ``None`` if there is no limit."""
        ...

    def node_limit_reason(self, eq_class: EquivalenceClass) -> str:
        """Return why a node that has reached its limit is infeasible."""
        ...

    def depends_on_pods(self, eq_class: EquivalenceClass) -> bool:
        """Return whether the filters reject nodes for pods of *eq_class* at all, now."""
        ...

    def pod_filters(self, eq_class: EquivalenceClass, nodes: NodeMatrix) -> Iterable[RejectedNodes]:
        """Return what each filter rejects for one more pod of *eq_class*; asked before each pod."""
        ...


class ScorePlugin(Protocol):
    """Score of a node for one more pod; all scores are added."""

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Return a score for each of ``amounts.node_indexes``, by node and amounts.

        A pod may change the score of the node that it is on, and of no other.
        """
        ...

    def static_score(self, eq_class: EquivalenceClass, nodes: Sequence[NodeInfo]) -> Scores | None:
        """Return a score for each of *nodes* apart from amounts, or ``None`` if all are equal.

        Classes with equal constraints (``eq_class.constraints_key``) have equal scores.
        """
        ...

    def normalized_scores(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, candidates: IntVector
    ) -> IntVector | None:
        """Return a score for each of *candidates*, over which it is normalized, or ``None`` if all
        are equal. If all nodes are equal for a class, the plugin is not asked again."""
        ...

    def prefers_by_pods(self, eq_class: EquivalenceClass) -> bool:
        """Return whether the scores for pods of *eq_class* may differ between nodes, now."""
        ...

    def pod_scores(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, candidates: IntVector
    ) -> IntVector | None:
        """Return a score for each of *candidates* by the pods that are on any node, over which it
        is normalized, or ``None`` if all are equal; asked before each pod."""
        ...


class VictimPlugin(Protocol):
    """Which tasks may be evicted for a gang of the same queue, or of another one.

    The results of the plugins of a tier are intersected; the first tier with a result decides. So
    an empty result means that there are no victims.
    """

    def preemptable(
        self, preemptor: Preemptor, candidates: Sequence[Task]
    ) -> Sequence[Task] | None:
        """Return those of *candidates*, in their order, that may all be evicted together; ``None``
        to abstain."""
        ...

    def reclaimable(
        self, preemptor: Preemptor, candidates: Sequence[Task]
    ) -> Sequence[Task] | None:
        """Return those of *candidates*, in their order, that may all be evicted together; ``None``
        to abstain."""
        ...

    def victim_mask(
        self, preemptor: Preemptor, table: TaskTable, slots: IntVector
    ) -> BoolVector | None:
        """Return for each of *slots* whether its task may be permitted; ``None`` if all may.

        It determines quickly which tasks the plugin never permits.
        """
        ...


class VictimTask(NamedTuple):
    """A running task that is to be evicted, and why."""

    task: Task
    message: str


class VictimTasksPlugin(Protocol):
    """Which tasks the action ``shuffle`` evicts, without a gang that is to get their resources.

    The tasks that several plugins name are evicted one after the other.
    """

    def victim_tasks(self) -> Sequence[VictimTask]:
        """Return the tasks that are to be evicted now; asked in each cycle."""
        ...

    def next_victims(self) -> float | None:
        """Return when there may be such tasks without an event, in Unix time."""
        ...


class DomainOrderPlugin(Protocol):
    """Order of the domains of the network (HyperNodes) of one tier: the best one is tried first."""

    def domain_scores(self, request: IntVector, allocatable: Matrix, used: Matrix) -> Scores:
        """Return a score for each domain, a column of *allocatable* and *used*; all scores are
        added. *request* is that of all pending pods of the gang together."""
        ...


class ReservePlugin(Protocol):
    """A plugin that reserves something for pods from the decision on their node until they have it.

    If a plugin raises in :meth:`reserve`, the gang gets no nodes, and :meth:`unreserve` is called
    for this plugin and those before it. It is never called for a pod that is bound: what that uses
    until its end, the plugin releases itself.
    """

    def reserve(self, placements: Sequence[Placement]) -> None:
        """Reserve what *placements* need, which are of one gang and have been decided on."""
        ...

    def unreserve(self, placements: Sequence[Placement]) -> None:
        """Release what was reserved for *placements*, whose pods do not get their node."""
        ...


PRE_BIND_TIMEOUT = 30.0
"""Seconds that a call of ``pre_bind`` may take."""

DEFAULT_BIND_TIMEOUT = 600.0
"""Seconds within which volumes have to be bound once their pod has a node, as in
kube-scheduler."""

MAX_PRE_BIND_TIMEOUT = 600.0
"""The longest time that a plugin may set: the nodes are kept so long."""


class PreBindPlugin(Protocol):
    """A plugin that does something outside before pods are bound, plugins in order.

    It runs in a separate event loop, in another thread, so it may do I/O. Until all plugins have
    returned, no pod of the placements is bound; other gangs are not affected. If a plugin raises,
    or takes longer than its attribute ``pre_bind_timeout`` (:data:`PRE_BIND_TIMEOUT` by default),
    the placements are undone after a back-off, and the gang is tried again.
    """

    async def pre_bind(self, placements: Sequence[Placement]) -> None:
        """Prepare *placements*, which are of one gang.

        They may have been prepared before, maybe for other nodes: the scheduler may have been
        killed between this call and the binding.
        """
        ...


EXTENSION_POINTS = (
    SessionPlugin, OrderPlugin, JobValidPlugin, JobEnqueueablePlugin, JobReadyPlugin,
    QueueLimitPlugin, FilterPlugin, ScorePlugin, VictimPlugin, VictimTasksPlugin, DomainOrderPlugin,
    ReservePlugin, PreBindPlugin,
)  # fmt: skip

METHODS = {
    name: function
    for point in EXTENSION_POINTS
    for name, function in vars(point).items()
    if not name.startswith("_")
}
"""The methods of all extension points, as they are declared."""

TOGETHER = (
    ("allocated", "deallocated"),
    ("job_enqueueable", "job_enqueued"),
    ("allocatable_count", "queue_rejection"),
    ("node_limit", "node_limit_reason"),
    ("depends_on_pods", "pod_filters"),
    ("prefers_by_pods", "pod_scores"),
    ("reserve", "unreserve"),
    ("victim_tasks", "next_victims"),
)
"""Methods of which a plugin has both or none."""


def has_method(plugin: object, name: str) -> bool:
    """Return whether *plugin* has the method *name* of an extension point, and has not merely
    inherited its declaration."""
    found = getattr(plugin, name, None)
    return found is not None and getattr(found, "__func__", found) is not METHODS[name]
