"""What is known of a Job when a sync of it begins: the input of all decisions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..model import times
from .backoff import BackoffRecord
from .batch_pod import BatchPod, JobTraits
from .core_types import Job, Pod
from .indexes import IndexSet
from .pod_tracker import BatchPodTracker
from .state import BatchJobState, Unconfirmed

HasFinalizer = Callable[[str], bool]
"""Whether the pod with this uid exists with the tracking finalizer."""

DeletionOrder = Callable[[Iterable[BatchPod]], Sequence[BatchPod]]
"""Sorts pods in the order of deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJobView:
    """A Job, its pods, and what is remembered of it.

    The pods and the unconfirmed ones are not copies: a later decision of the same sync sees what
    its effects so far have written.
    """

    job: Job
    """The Job as it was when the sync began."""
    state: BatchJobState
    now: datetime
    monotonic: float
    """The same time on the monotonic clock."""
    orphans: tuple[Pod, ...] = ()
    """Pods without controller that the Job may adopt."""
    mismatched: tuple[Pod, ...] = ()
    """Pods of the Job that its selector does not match any more."""
    is_orphan: HasFinalizer
    """Whether the pod with this uid has the finalizer, and lost the Job as its owner, which adopts
    it again."""
    deletion_order: DeletionOrder

    @property
    def traits(self) -> JobTraits:
        """What the Job's spec means for its pods."""
        return self.state.traits

    @property
    def pods(self) -> BatchPodTracker:
        """Pods that the Job controls."""
        return self.state.pods

    @property
    def unconfirmed(self) -> Mapping[str, Unconfirmed]:
        """Pods that may exist, by name."""
        return self.state.unconfirmed

    @property
    def completed(self) -> IndexSet:
        """``status.completedIndexes``."""
        return self.state.completed

    @property
    def failed_indexes(self) -> IndexSet:
        """``status.failedIndexes``."""
        return self.state.failed_indexes

    @property
    def backoff(self) -> BackoffRecord:
        """Failures since the last success."""
        return self.state.backoff

    def has_finalizer(self, uid: str) -> bool:
        """Whether the pod with this uid exists with the finalizer, or may be the Job's again."""
        return self.pods.has_finalizer(uid) or self.is_orphan(uid)

    @property
    def timestamp(self) -> str:
        """The time as conditions have it."""
        return times.format(self.now)
