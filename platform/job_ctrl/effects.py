"""Effects: the writes that a decision returns, for the executor to execute in order.

They are not called commands, because a Command is the API object that requests an action.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..machinery.reconcile.controller import RequeueAfter
from ..machinery.reconcile.events import Event
from ..model.job import JobStatus
from ..model.meta import ObjectMeta
from ..model.podgroup import PodGroupSpec
from .tracker.pod_info import LifecycleEvent, PodInfo


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write the job's status."""

    status: JobStatus
    immediate: bool
    """Write without delay; otherwise only counts have changed, and several writes may be merged."""


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create the job's PodGroup."""

    spec: PodGroupSpec


@dataclass(frozen=True, slots=True)
class UpdatePodGroup:
    """Patch the PodGroup's spec with a merge patch."""

    spec: Mapping[str, object]
    observed: ObjectMeta
    """Metadata of the PodGroup that the patch is based on; a precondition of the write."""


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Delete the PodGroup with this uid."""

    uid: str


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Create the pods of these indices, by task in the order of the spec."""

    indices: Mapping[str, tuple[int, ...]]
    description: str = ""
    """The PodGroup that they describe instead of having one; empty for none."""


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete these pods."""

    pods: tuple[PodInfo, ...]
    extra_grace: int = 0
    """Seconds that they get in addition to their grace period."""


@dataclass(frozen=True, slots=True)
class RemoveLostPods:
    """Remove terminating pods that their kubelets do not end."""

    pods: tuple[PodInfo, ...]


@dataclass(frozen=True, slots=True)
class EnsureVolumeClaims:
    """Create the missing PersistentVolumeClaims of the job's volumes."""


@dataclass(frozen=True, slots=True)
class EnsurePluginObjects:
    """Create or update the objects that the job's plugins provide."""


@dataclass(frozen=True, slots=True)
class DeletePluginObjects:
    """Delete the objects that the job's plugins provide."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job, whose ``ttlSecondsAfterFinished`` has expired."""


@dataclass(frozen=True, slots=True)
class DeleteCommand:
    """Delete the Command that was executed or ignored, and its pending item."""


@dataclass(frozen=True, slots=True)
class DropLifecycleEvents:
    """Remove handled lifecycle events."""

    events: tuple[LifecycleEvent, ...]


@dataclass(frozen=True, slots=True)
class DeferLifecycleEvents:
    """Defer lifecycle events whose policies have a timeout."""

    due_at: Mapping[LifecycleEvent, float]
    """Times on the monotonic clock."""
    inputs: object
    """What the decision was based on, besides the pods."""


Effect = (
    SetStatus
    | CreatePodGroup
    | UpdatePodGroup
    | DeletePodGroup
    | CreatePods
    | DeletePods
    | RemoveLostPods
    | EnsureVolumeClaims
    | EnsurePluginObjects
    | DeletePluginObjects
    | DeleteJob
    | DeleteCommand
    | DropLifecycleEvents
    | DeferLifecycleEvents
    | Event
    | RequeueAfter
)
