"""What a decision asks to be done: *effects*, carried out in order by the executor.

(The word "command" is taken: a Command is the user's order to a job.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..model.job import JobStatus
from ..model.meta import ObjectMeta
from ..model.podgroup import PodGroupSpec
from .pod_tracker import LifecycleEvent, PodInfo


class Reason(StrEnum):
    """Reasons of the events on a Job, where people and tools look for them."""

    EXECUTE_ACTION = "ExecuteAction"
    COMMAND_ISSUED = "CommandIssued"
    INVALID_TARGET = "InvalidTarget"
    STATUS_ERROR = "JobStatusError"
    PLUGIN_ERROR = "PluginError"
    PVC_ERROR = "PVCError"
    PODGROUP_PENDING = "PodGroupPending"
    PODGROUP_ERROR = "PodGroupError"
    GANG_UNSATISFIABLE = "NotEnoughPods"
    POLICY_NEVER_FIRES = "PolicyCannotFire"
    FAILED_CREATE = "FailedCreate"
    FAILED_DELETE = "FailedDelete"


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write the job's status."""

    status: JobStatus
    immediate: bool
    """Write at once; otherwise it is only about numbers, and several may become one write."""


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Make the job's PodGroup."""

    spec: PodGroupSpec


@dataclass(frozen=True, slots=True)
class UpdatePodGroup:
    """Change fields of the PodGroup's spec, by a merge patch."""

    spec: Mapping[str, object]
    observed: ObjectMeta
    """The PodGroup as it was seen; one that has changed since is looked at anew."""


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Remove the PodGroup of this uid."""

    uid: str


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Make the pods of these indices, by task in the order of the spec."""

    indices: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Remove these pods."""

    pods: tuple[PodInfo, ...]


@dataclass(frozen=True, slots=True)
class EnsureVolumeClaims:
    """See to it that the claims of the job's volumes are there."""


@dataclass(frozen=True, slots=True)
class EnsurePluginObjects:
    """Make, or bring up to date, what the job's plugins need beside the pods."""


@dataclass(frozen=True, slots=True)
class DeletePluginObjects:
    """Remove what the job's plugins brought."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Remove the job itself, whose time to live has run out."""


@dataclass(frozen=True, slots=True)
class DeleteCommand:
    """Remove the Command that has just been obeyed (or never can be) and its mail."""


@dataclass(frozen=True, slots=True)
class DropLifecycleEvents:
    """These happenings are judged."""

    events: tuple[LifecycleEvent, ...]


@dataclass(frozen=True, slots=True)
class DeferLifecycleEvents:
    """These happenings are answered later."""

    due_at: Mapping[LifecycleEvent, float]
    """Until when, on the monotonic clock."""
    inputs: object
    """What that was judged by, beside the pods."""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Tell the user, by an Event on the job."""

    reason: Reason
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Nothing to do now, but after so many seconds there is."""

    seconds: float


Effect = (
    SetStatus
    | CreatePodGroup
    | UpdatePodGroup
    | DeletePodGroup
    | CreatePods
    | DeletePods
    | EnsureVolumeClaims
    | EnsurePluginObjects
    | DeletePluginObjects
    | DeleteJob
    | DeleteCommand
    | DropLifecycleEvents
    | DeferLifecycleEvents
    | RecordEvent
    | RequeueAfter
)
