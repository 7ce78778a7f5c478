"""What a Job and its pods need, as data: from :mod:`.decide`, executed by :mod:`.executor`."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from ..machinery.reconcile.controller import RequeueAfter
from ..machinery.reconcile.events import Event
from .backoff import BackoffRecord
from .batch_pod import BatchPod
from .conditions import Outcome
from .core_types import JobStatus, Pod, PolicyAction
from .indexes import IndexSet


class SyncAction(StrEnum):
    """What a sync did with pods; a label of metrics."""

    RECONCILING = "reconciling"
    TRACKING = "tracking"
    PODS_CREATED = "pods_created"
    PODS_DELETED = "pods_deleted"


class CreationReason(StrEnum):
    """Why pods are created; a label of metrics."""

    NEW = "new"
    RECREATE_FAILED = "recreate_failed"
    RECREATE_TERMINATING_OR_FAILED = "recreate_terminating_or_failed"


@dataclass(frozen=True, slots=True)
class Creation:
    """A pod to create."""

    index: int | None = None
    failures: int | None = None
    """Counted failures of the index, with a limit per index."""
    ignored_failures: int = 0


@dataclass(frozen=True, slots=True)
class ClaimPods:
    """Adopt those of *pods* that have no controller, with *finalizer*; release the others."""

    pods: tuple[Pod, ...]
    finalizer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagePods:
    """Delete or create pods; never both in one sync."""

    action: SyncAction = SyncAction.TRACKING
    delete: tuple[BatchPod, ...] = ()
    counts_deleted: bool = False
    """Deleted pods keep the finalizer until they are counted."""
    create: tuple[Creation, ...] = ()
    reason: CreationReason = CreationReason.NEW
    requeue_after: float | None = None
    """Seconds until more pods are to be created or deleted."""
    managed: bool = False
    """The number of pods was decided on, so that the Suspended condition may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPods:
    """Write a status that includes ended pods, so that they may lose their finalizer."""

    status: JobStatus
    completed: IndexSet
    """Its completed indexes."""
    failed_indexes: IndexSet | None
    """Its failed indexes; ``None`` without a limit per index."""
    backoff: BackoffRecord
    """Failures since the last success, with these pods."""
    policy_actions: Counter[PolicyAction] = field(default_factory=Counter)
    """Actions of the pod failure policy, for metrics."""


@dataclass(frozen=True, slots=True)
class ReleasePods:
    """Remove the finalizer of pods that the status includes."""

    pods: tuple[BatchPod, ...]


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write a status."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class Finished:
    """The Job has ended: its status has the terminal condition."""

    outcome: Outcome


Effect = (
    ClaimPods | ManagePods | CountPods | ReleasePods | SetStatus | Finished | RequeueAfter | Event
)
