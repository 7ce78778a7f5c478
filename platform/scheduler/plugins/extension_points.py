"""The extension points: one small Protocol for each thing that a plugin can do.

A plugin is an object made once from its arguments (``Plugin(arguments)``). What it can do is found
by its methods; how several answers make one is said at each Protocol. All of them only look: the
cycle alone changes anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..state.cache import SchedulerCache
from ..state.equivalence import EquivalenceClass
from ..state.gangs import Gang, QueueInfo, Task
from ..state.node_matrix import NodeInfo
from ..state.resources import IntVector, Matrix

Scores = npt.NDArray[np.float64] | npt.NDArray[np.int64]

NOT_ENOUGH_RESOURCES = "NotEnoughResources"
"""The reason of a refusal that more room would lift."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why something is not allowed now, as users will read it."""

    reason: str
    """One word, for ``condition.reason``."""

    message: str


@runtime_checkable
class SessionOpenPlugin(Protocol):
    """A plugin that adds something up before each cycle."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Look at the cluster as the cycle begins."""
        ...


@runtime_checkable
class QueueOrderPlugin(Protocol):
    """Whose turn it is among queues: smallest first, plugins in order."""

    def queue_order(self, queue: QueueInfo) -> float:
        """The place of *queue*."""
        ...


@runtime_checkable
class JobOrderPlugin(Protocol):
    """Whose turn it is among the gangs of a queue: smallest first, plugins in order."""

    def job_order(self, gang: Gang) -> float:
        """The place of *gang*."""
        ...


@runtime_checkable
class TaskOrderPlugin(Protocol):
    """Whose turn it is within a gang: smallest first, plugins in order."""

    def task_order(self, task: Task) -> float:
        """The place of *task*."""
        ...


@runtime_checkable
class JobValidPlugin(Protocol):
    """Whether it makes sense to place a gang at all; the first refusal counts."""

    def job_valid(self, gang: Gang) -> Rejection | None:
        """What keeps *gang* from being tried."""
        ...


@runtime_checkable
class JobEnqueueablePlugin(Protocol):
    """Whether a gang may enter its queue; all plugins that have a say must agree.

    A plugin votes yes (``True``), no (a :class:`Rejection`) or nothing (``None``). A tier with a
    yes and no refusal decides: later tiers are not asked.
    """

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """The vote on *gang*."""
        ...

    def job_enqueued(self, gang: Gang) -> None:
        """*gang* has entered; keep count for the next."""
        ...


@runtime_checkable
class AllocatablePlugin(Protocol):
    """How much a queue may still take; the smallest answer counts.

    All three look at the queue's sums as they are at that moment of the cycle.
    """

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """How many more pods of *shape* the queue may hold."""
        ...

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection:
        """Why there is no room for another pod of *shape*; asked when there is none."""
        ...

    def overused(self, queue: QueueInfo) -> bool:
        """Whether the queue has had its part and gets no more in this cycle."""
        ...


@runtime_checkable
class FilterPlugin(Protocol):
    """Which nodes are out of the question, amounts aside; the first refusal counts."""

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Why pods of *shape* must not run on *node*, in few words."""
        ...


@runtime_checkable
class ScorePlugin(Protocol):
    """How good a node is for one more pod, by amounts; scores add up."""

    def score(self, request: IntVector, allocatable: Matrix, used: Matrix) -> Scores:
        """Score each column; *used* is without the pod, *allocatable* may be a single column."""
        ...


@runtime_checkable
class StaticScorePlugin(Protocol):
    """How good a node is for a shape, whatever its amounts; scores add up."""

    def static_score(self, eq_class: EquivalenceClass, nodes: Sequence[NodeInfo]) -> Scores | None:
        """Score each of *nodes*, or ``None`` if all are the same."""
        ...
