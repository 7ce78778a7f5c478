"""The immutable result of a scheduling cycle: all that writers and metrics get.

A cycle may run in a thread concurrently with the event loop. A decision has no reference to the
scheduler cache, so the loop can read it while the next cycle changes the cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ...model.queue import Queue
from ..plugins.placement import GangRef, Placement
from ..state.gangs.diagnosis import BudgetUse
from ..state.past_usage.decayed_sums import Snapshot
from ..state.run_times.predictions import PredictedRun
from .backfilling.start_plan import Cause
from .plugin_calls import PluginFailure
from .podgroup_status import PodGroupReport

PREEMPTION_BY_SCHEDULER = "PreemptionByScheduler"
"""Reason of the DisruptionTarget condition of victims, as kube-scheduler writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A pod that is to be evicted."""

    namespace: str
    name: str
    uid: str
    message: str
    """Why, for the condition and the event."""

    reason: str = PREEMPTION_BY_SCHEDULER
    """Reason of the condition."""

    gang: GangRef | None = None
    """The gang of the pod, if that has a PodGroup."""

    replaced: bool = False
    """Whether its controller is to create it again as if it had not existed."""

    grace: int | None = None
    """Grace period in seconds; ``None`` for that of the pod."""

    timeout: float | None = None
    """Seconds for which a rejected eviction is retried; ``None`` for ever."""

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class IncompleteEviction:
    """A gang that was never complete, and whose members are evicted."""

    gang: GangRef
    message: str


@dataclass(frozen=True, slots=True)
class StartDelay:
    """A gang whose planned start is later than was reported before; both in Unix time."""

    gang: GangRef
    cause: Cause
    earlier: float
    later: float
    """Infinite if it is not known any more."""


@dataclass(frozen=True, slots=True)
class Nomination:
    """A pending pod, and the node on which resources are held for it; empty for none."""

    namespace: str
    name: str
    uid: str
    node: str

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class UngatedPod:
    """A pod whose queue gate is to be removed."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"


class QueueAllocation(NamedTuple):
    """What is allocated in a queue and in the queues below it."""

    queue: Queue
    allocated: Mapping[str, int]


class QueueStats(NamedTuple):
    """The sums over the gangs of one queue."""

    name: str
    weight: int
    allocated: Mapping[str, int]
    requested: Mapping[str, int]
    inqueue: Mapping[str, int]
    """What its admitted gangs still need to start."""
    capability: Mapping[str, int] = MappingProxyType({})
    """Its limits, as configured."""


class GangStats(NamedTuple):
    """A gang that was rejected, and how many of its pods are pending."""

    name: str
    pending: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler cache at the end of a cycle, in numbers."""

    queues: tuple[QueueStats, ...] = ()
    unschedulable: tuple[GangStats, ...] = ()
    stranded: int = 0
    """Gangs that were never complete and of which members are bound."""

    past_usage: Snapshot | None = None
    """What queues and users have used, if that is recorded."""

    budgets: tuple[BudgetUse, ...] = ()
    """What queues have used of their budgets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a cycle has decided."""

    placements: tuple[Placement, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    nominations: tuple[Nomination, ...] = ()
    enqueued: tuple[GangRef, ...] = ()
    """Gangs that were admitted to their queue."""

    ungated: tuple[UngatedPod, ...] = ()
    reports: tuple[PodGroupReport, ...] = ()
    """Desired status of gangs that changed."""

    queue_allocations: tuple[QueueAllocation, ...] = ()
    """For queues where it may have changed."""

    scheduled: int = 0
    """Statements that were committed."""

    rejected: int = 0
    """Rejections of a gang, or of the pods that it has left."""

    retries: tuple[tuple[str, int], ...] = ()
    """How often rejected gangs, or groups of them, were woken, by reason."""

    predicted_runs: tuple[PredictedRun, ...] = ()
    """Gangs that have ended and whose run time had been predicted."""

    plugin_failures: tuple[PluginFailure, ...] = ()
    incomplete: tuple[IncompleteEviction, ...] = ()
    """Stranded gangs whose members are evicted."""

    delays: tuple[StartDelay, ...] = ()
    """Planned starts that have become later."""

    rechecks: Mapping[str, float] = field(default_factory=dict)
    """Seconds after which gangs are due for another cycle, by key."""

    stats: SchedulerStats = SchedulerStats()
