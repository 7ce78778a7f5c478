"""The extension points: one Protocol for each method of a plugin.

A plugin is an object that is created once from its arguments (``Plugin(arguments)``). Its methods
show which extension points it has; each Protocol documents how the results of several plugins
are combined. Plugins do not change the scheduler cache. A filter, limit or vote that raises leaves
the gang in question unschedulable; an order or score that raises is skipped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Diagnosis, Shortage, Stage
from ..state.gangs.gang import Gang, QueueInfo, Task
from ..state.gangs.task_table import TaskTable
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import ClusterEvent, LimitNeed
from ..state.resources import BoolVector, IntVector, Matrix

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
        return Diagnosis(self.reason, self.message, stage=self.stage, shortages=self.shortages)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Tasks of one gang and one equivalence class, and the node of each."""

    gang: Gang
    queue: QueueInfo
    eq_class: EquivalenceClass
    tasks: Sequence[Task]
    node_indexes: Sequence[int]


@runtime_checkable
class AllocationListener(Protocol):
    """A plugin with sums over what is allocated in a session.

    Tasks that wait for resources count as allocated, evicted tasks do not. A plugin that raises in
    :meth:`allocated` or :meth:`deallocated` leaves the operation undone.
    """

    def allocated(self, change: Allocation) -> None:
        """Add *change*; called after gang and queue have counted it."""
        ...

    def deallocated(self, change: Allocation) -> None:
        """Subtract *change*; called after gang and queue have counted it, or before they undo
        it."""
        ...


@runtime_checkable
class SessionOpenPlugin(Protocol):
    """A plugin that computes something before each cycle."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Read *cache* at the start of a session."""
        ...


@runtime_checkable
class QueueOrderPlugin(Protocol):
    """Order of queues: smallest first, plugins in order."""

    def queue_order(self, queue: QueueInfo) -> float | tuple[float, ...]:
        """Return the sort key of *queue*; in a hierarchy a number for each level."""
        ...


@runtime_checkable
class JobOrderPlugin(Protocol):
    """Order of the gangs of a queue: smallest first, plugins in order."""

    def job_order(self, gang: Gang) -> float:
        """Return the sort key of *gang*."""
        ...


@runtime_checkable
class TaskOrderPlugin(Protocol):
    """Order of the tasks of a gang: smallest first, plugins in order."""

    def task_order(self, task: Task) -> float:
        """Return the sort key of *task*."""
        ...


@runtime_checkable
class JobValidPlugin(Protocol):
    """Whether a gang can be scheduled at all; the first rejection counts."""

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Return why *gang* is not to be tried, or ``None``."""
        ...


@runtime_checkable
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


@runtime_checkable
class JobPipelinedPlugin(Protocol):
    """Whether a gang is ready once the resources that its tasks wait for are free.

    A plugin permits (``True``), rejects (``False``) or abstains (``None``); any rejection counts.
    If a plugin of a tier permits and none rejects, later tiers are not asked.
    """

    def job_pipelined(self, gang: Gang) -> bool | None:
        """Return the vote on *gang*."""
        ...


@runtime_checkable
class JobStarvingPlugin(Protocol):
    """Whether a gang may evict others; all plugins of the first tier that has one must agree."""

    def job_starving(self, gang: Gang) -> bool:
        """Return whether *gang* lacks tasks."""
        ...


@runtime_checkable
class AllocatablePlugin(Protocol):
    """Limits of a queue; the smallest count applies.

    The methods use the current sums of the queue, which change during a cycle.
    """

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* the queue may allocate."""
        ...

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection:
        """Return why another pod of *eq_class* is over the limit; called if it is."""
        ...


@runtime_checkable
class FilterPlugin(Protocol):
    """Which nodes are infeasible, apart from amounts; the first reason counts."""

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Return why *node* is infeasible for pods of *eq_class*, or ``None``."""
        ...


@runtime_checkable
class NodeLimitPlugin(Protocol):
    """How many more pods a node accepts, by the pods that it has; the smallest count applies.

    A pod may change the limit of the node that it is on, and of no other.
    """

    def node_limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Return how many more pods of *eq_class* each of *node_indexes* (``None``: every column)
        accepts, or ``None`` if there is no limit."""
        ...

    def node_limit_reason(self, eq_class: EquivalenceClass) -> str:
        """Return why a node that has reached its limit is infeasible."""
        ...


class RejectedNodes(NamedTuple):
    """Nodes that a filter rejects, and why."""

    mask: BoolVector
    """A value for each column of the node matrix."""

    reason: str


@runtime_checkable
class NormalizedScorePlugin(Protocol):
    """Score of a node relative to the other candidates, apart from amounts; scores are added."""

    def normalized_scores(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, candidates: IntVector
    ) -> IntVector | None:
        """Return a score for each of *candidates*, over which it is normalized, or ``None`` if all
        are equal. If all nodes are equal for a class, the plugin is not asked again."""
        ...


@runtime_checkable
class PodFilterPlugin(Protocol):
    """Which nodes are infeasible by the pods that are on any node; the first reason counts."""

    def depends_on_pods(self, eq_class: EquivalenceClass) -> bool:
        """Return whether the filters reject nodes for pods of *eq_class* at all, now."""
        ...

    def pod_filters(self, eq_class: EquivalenceClass, nodes: NodeMatrix) -> Iterable[RejectedNodes]:
        """Return what each filter rejects for one more pod of *eq_class*; asked before each pod."""
        ...


@runtime_checkable
class PodScorePlugin(Protocol):
    """Score of a node by the pods that are on any node; scores are added."""

    def prefers_by_pods(self, eq_class: EquivalenceClass) -> bool:
        """Return whether the scores for pods of *eq_class* may differ between nodes, now."""
        ...

    def pod_scores(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, candidates: IntVector
    ) -> IntVector | None:
        """Return a score for each of *candidates*, over which it is normalized, or ``None`` if all
        are equal; asked before each pod."""
        ...


@runtime_checkable
class NodeScorePlugin(Protocol):
    """Score of a node for one more pod, by node and amounts; scores are added.

    A pod may change the score of the node that it is on, and of no other.
    """

    def node_score(
        self, eq_class: EquivalenceClass, node_indexes: IntVector, used: Matrix
    ) -> Scores:
        """Return a score for each of *node_indexes*, which may have repeats; *used* has a column
        for each, without the pod."""
        ...


@runtime_checkable
class OverusedPlugin(Protocol):
    """Whether a queue gets no more; one plugin suffices."""

    def overused(self, queue: QueueInfo) -> bool:
        """Return whether the queue gets no more in this cycle."""
        ...


@runtime_checkable
class RetryTimePlugin(Protocol):
    """A plugin whose votes on a gang change with time; the earliest time counts."""

    def retry_at(self, gang: Gang) -> float | None:
        """Return when *gang*, which was rejected, is to be tried again, in Unix time."""
        ...


@runtime_checkable
class ScorePlugin(Protocol):
    """Score of a node for one more pod, by amounts; scores are added."""

    def score(self, request: IntVector, allocatable: Matrix, used: Matrix) -> Scores:
        """Return a score per column; *used* is without the pod.

        *allocatable* may be a single column.
        """
        ...


@runtime_checkable
class StaticScorePlugin(Protocol):
    """Score of a node for an equivalence class, apart from amounts; scores are added.

    Classes with equal constraints (``eq_class.constraints_key``) have equal scores.
    """

    def static_score(self, eq_class: EquivalenceClass, nodes: Sequence[NodeInfo]) -> Scores | None:
        """Return a score for each of *nodes*, or ``None`` if all are equal."""
        ...


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


@runtime_checkable
class PreemptablePlugin(Protocol):
    """Which tasks may be evicted for a gang of the same queue.

    The results of the plugins of a tier are intersected; the first tier with a result decides. So
    an empty result means that there are no victims.
    """

    def preemptable(
        self, preemptor: Preemptor, candidates: Sequence[Task]
    ) -> Sequence[Task] | None:
        """Return those of *candidates*, in their order, that may all be evicted together; ``None``
        to abstain."""
        ...


@runtime_checkable
class ReclaimablePlugin(Protocol):
    """Which tasks may be evicted for a gang of another queue; combined as for preemption."""

    def reclaimable(
        self, preemptor: Preemptor, candidates: Sequence[Task]
    ) -> Sequence[Task] | None:
        """Return those of *candidates*, in their order, that may all be evicted together; ``None``
        to abstain."""
        ...


@runtime_checkable
class PreemptivePlugin(Protocol):
    """Limits of a queue that takes resources from others; the smallest count applies."""

    def preemptive_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return for how many more pods of *eq_class* the queue may reclaim resources."""
        ...


@runtime_checkable
class VictimMaskPlugin(Protocol):
    """A plugin that votes on victims and determines quickly which of them it never permits."""

    def victim_mask(
        self, preemptor: Preemptor, table: TaskTable, slots: IntVector
    ) -> BoolVector | None:
        """Return for each of *slots* whether its task may be permitted; ``None`` if all may."""
        ...


@runtime_checkable
class VictimQueueOrderPlugin(Protocol):
    """Order of the queues that lose tasks to another one: smallest first, plugins in order.

    Without such a plugin the queue that is last in queue order is first.
    """

    def victim_queue_order(self, queue: QueueInfo, preemptor: QueueInfo) -> float:
        """Return the sort key of *queue* for a gang of the queue *preemptor*."""
        ...
