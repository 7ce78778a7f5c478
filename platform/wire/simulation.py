"""What would become of a job that does not exist."""

from datetime import datetime

from .base import Record
from .jobs import Explanation


class NodePods(Record, frozen=True):
    """How many pods a node would get."""

    node: str = ""
    pods: int = 0


class SimulatedChange(Record, frozen=True):
    """A change of the job that was tried."""

    change: str = ""
    """``pods``, ``queue`` or ``requests``."""
    starts_now: bool = False
    summary: str = ""
    """For people."""
    pods: int | None = None
    """Pods of the gang, where that is the change."""
    queue: str | None = None
    requests: dict[str, str] = {}
    """Request of each pod by resource, where that is the change."""


class Simulation(Record, frozen=True):
    """What the scheduler would do with a job now; nothing was created."""

    starts_now: bool = False
    summary: str = ""
    """One sentence: where it would start, or the reason why it would wait."""
    next_step: str = ""
    """What to do so that it starts."""
    nodes: list[NodePods] = []
    """The nodes of its pods, if it would start."""
    evictions: int = 0
    """Pods that would be evicted for it."""
    assumed: list[str] = []
    """Conditions of the job before its scheduling that count as met, such as
    ``afterok:train-481516234``."""
    explanation: Explanation | None = None
    """Why it would wait."""
    impossible: bool = False
    """Whether it could not start even if nothing else ran."""
    expected_start: datetime | None = None
    """When it would start, if it would wait and that is known."""
    start_basis: str = ""
    """What that follows from: ``limit`` if all that has to end before has a time limit, else
    ``estimate``; ``unknown`` if it waits for jobs whose end is not known."""
    not_before: datetime | None = None
    """Until when it would not start, if there was no time to look further ahead."""
    changes: list[SimulatedChange] = []
    """Changes that were tried because it would wait."""
    all_changes_tried: bool = True
    """Whether there was time to try every change."""

    def __str__(self) -> str:
        return self.summary
