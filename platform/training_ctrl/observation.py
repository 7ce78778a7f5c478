"""What the rules of a framework decide about: the counts and pods of a job. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from ..model.training.types import S, TrainingJob
from .core_types import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounts:
    """Pods of one replica type."""

    replicas: int
    active: int = 0
    """Running pods."""
    succeeded: int = 0
    failed: int = 0
    """Failed pods, and running ones that are terminating."""

    @property
    def expected(self) -> int:
        """Number of replicas that have not succeeded."""
        return self.replicas - self.succeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Generic[S]):
    """A job, with defaults, and its pods."""

    job: TrainingJob[S]
    counts: Mapping[str, ReplicaCounts]
    """By replica type, in the order in which they are evaluated."""
    pods: Mapping[str, Mapping[int, Pod]]
    """By replica type and index."""
    restarting: bool = False
    """Whether the condition Restarting is True, or pods are restarted now."""


@dataclass(frozen=True, slots=True)
class Running:
    """The job is running."""

    message: str


@dataclass(frozen=True, slots=True)
class Restarting:
    """Pods are created again."""

    message: str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The job has succeeded."""

    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The job has failed."""

    message: str
    reason: str = ""
    """Suffix of the condition's reason, if it is not ``Failed``."""


Evaluation = Running | Restarting | Succeeded | Failed
