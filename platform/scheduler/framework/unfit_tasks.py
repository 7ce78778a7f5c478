"""What an attempt to schedule a gang has learned about the tasks that did not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..state.gangs.diagnosis import FitError
from ..state.gangs.gang import SubGroup
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import ClusterEvent

FailureKey = str | EquivalenceClass | SubGroup
"""A sub-group, a role, or a class of pods that have neither."""


@dataclass(frozen=True, slots=True)
class ClassCapacity:
    """How many pods of a class the nodes take."""

    count: int
    is_exact: bool
    """Whether it grows only if amounts on nodes that are feasible for the class grow."""

    sees_pods: bool = False
    """Whether it also depends on pods on other nodes."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Which tasks did not fit, at some point of an attempt."""

    fit_errors: Mapping[str, FitError]
    roles: frozenset[FailureKey]
    classes: frozenset[EquivalenceClass]
    fitting_uids: Sequence[str]


@dataclass(slots=True)
class UnfitTasks:
    """What a statement has learned about the tasks that it tried."""

    capacities: dict[EquivalenceClass, ClassCapacity] = field(default_factory=dict)
    """By class that was tried when the statement had no effect yet."""

    failed: set[EquivalenceClass] = field(default_factory=set)
    """Classes of which a task did not fit."""

    limits: dict[EquivalenceClass, frozenset[ClusterEvent]] = field(default_factory=dict)
    """What may raise the limit of the queue, for classes that it excludes."""

    blocked: set[str] = field(default_factory=set)
    """Uids of tasks that only their own changes can help."""

    in_domains: bool = False
    """Whether no domain of the network had the capacity; all nodes together may have it."""

    def update(self, other: "UnfitTasks") -> None:
        """Add what a later statement for the same gang has learned."""
        self.capacities |= other.capacities
        self.failed |= other.failed
        self.limits |= other.limits
        self.blocked |= other.blocked
        self.in_domains |= other.in_domains
