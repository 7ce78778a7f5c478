"""The extension points: one small Protocol for each thing that a plugin can do.

A plugin is an object made once from its arguments (``Plugin(arguments)``). What it can do is found
by its methods; how several answers make one is said at each Protocol. All of them only look: the
cycle alone changes anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..state.equivalence import Shape
from ..state.gangs import Gang, Queue, Task
from ..state.node_matrix import NodeFacts
from ..state.resources import IntVector, Matrix

if TYPE_CHECKING:
    from ..state.cache import Cluster

Scores = npt.NDArray[np.float64] | npt.NDArray[np.int64]

NOT_ENOUGH_RESOURCES = "NotEnoughResources"
"""The reason of a refusal that more room would lift."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not allowed now, as users will read it."""

    reason: str
    """One word, for ``condition.reason``."""

    message: str


@runtime_checkable
class OpensCycle(Protocol):
    """A plugin that adds something up before each cycle."""

    def open(self, cluster: "Cluster") -> None:
        """Look at the cluster as the cycle begins."""
        ...


@runtime_checkable
class RanksQueues(Protocol):
    """Whose turn it is among queues: smallest first, plugins in order."""

    def rank_queue(self, queue: Queue) -> float:
        """The place of *queue*."""
        ...


@runtime_checkable
class RanksGangs(Protocol):
    """Whose turn it is among the gangs of a queue: smallest first, plugins in order."""

    def rank(self, gang: Gang) -> float:
        """The place of *gang*."""
        ...


@runtime_checkable
class RanksTasks(Protocol):
    """Whose turn it is within a gang: smallest first, plugins in order."""

    def rank_task(self, task: Task) -> float:
        """The place of *task*."""
        ...


@runtime_checkable
class JudgesGangs(Protocol):
    """Whether it makes sense to place a gang at all; the first refusal counts."""

    def flaw(self, gang: Gang) -> Refusal | None:
        """What keeps *gang* from being tried."""
        ...


@runtime_checkable
class AdmitsGangs(Protocol):
    """Whether a gang may enter its queue; all plugins that have a say must agree.

    A plugin votes yes (``True``), no (a :class:`Refusal`) or nothing (``None``). A tier with a
    yes and no refusal decides: later tiers are not asked.
    """

    def admits(self, gang: Gang) -> Refusal | bool | None:
        """The vote on *gang*."""
        ...

    def admitted(self, gang: Gang) -> None:
        """*gang* has entered; keep count for the next."""
        ...


@runtime_checkable
class LimitsQueues(Protocol):
    """How much a queue may still take; the smallest answer counts.

    All three look at the queue's sums as they are at that moment of the cycle.
    """

    def room(self, queue: Queue, shape: Shape) -> int:
        """How many more pods of *shape* the queue may hold."""
        ...

    def limit(self, queue: Queue, shape: Shape) -> Refusal:
        """Why there is no room for another pod of *shape*; asked when there is none."""
        ...

    def overused(self, queue: Queue) -> bool:
        """Whether the queue has had its part and gets no more in this cycle."""
        ...


@runtime_checkable
class FiltersNodes(Protocol):
    """Which nodes are out of the question, amounts aside; the first refusal counts."""

    def refuses(self, shape: Shape, node: NodeFacts) -> str | None:
        """Why pods of *shape* must not run on *node*, in few words."""
        ...


@runtime_checkable
class ScoresNodes(Protocol):
    """How good a node is for one more pod, by amounts; scores add up."""

    def score(self, request: IntVector, allocatable: Matrix, used: Matrix) -> Scores:
        """Score each column; *used* is without the pod, *allocatable* may be a single column."""
        ...


@runtime_checkable
class PrefersNodes(Protocol):
    """How good a node is for a shape, whatever its amounts; scores add up."""

    def prefer(self, shape: Shape, nodes: Sequence[NodeFacts]) -> Scores | None:
        """Score each of *nodes*, or ``None`` if all are the same."""
        ...
