"""Effects: the writes that a decision requires, as immutable data."""

from dataclasses import dataclass
from typing import Any, Literal

from ..machinery.reconcile.controller import RequeueAfter
from ..machinery.reconcile.events import Event
from ..model.meta import ObjectMeta
from ..model.names import Resource
from ..model.training.types import JobStatus
from .core_types import Pod, Service
from .dependents import DesiredObject
from .restarts import RestartRecord

Counted = Literal["created", "successful", "failed", "restarted"]
"""What happened to a job, for its metrics."""


class Reason:
    """Reasons of events. The first six follow the kind of the job, as in ``TFJobSucceeded``."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    FAILED_VALIDATION = "FailedValidation"

    EXITED_WITH_CODE = "ExitedWithCode"
    SET_RESTART_POLICY = "SetPodTemplateRestartPolicy"
    SET_SCHEDULER_NAME = "SetPodTemplateSchedulerName"
    INVALID_INDEX = "InvalidReplicaIndex"
    JOB_TERMINATED = "JobTerminated"
    POD_GROUP_NOT_CREATED = "FailedCreatePodGroup"
    POD_NOT_CREATED = "FailedCreatePod"
    RESOURCE_EXISTS = "ErrResourceExists"
    RESOURCE_NOT_SERVED = "ErrResourceDoesNotExist"
    STATUS_REJECTED = "FailedUpdateStatus"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What happened to the job: an event, if users are to see it, and what metrics count."""

    event: Event | None = None
    counted: Counted | None = None


# Writes of objects.


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete pods of the job."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class RemoveLostPods:
    """Remove terminating pods of the job that their kubelets do not end."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class DeleteServices:
    """Delete Services of the job."""

    services: tuple[Service, ...]


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Create the pods of a replica type."""

    replica_type: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CreateServices:
    """Create the Services of a replica type."""

    replica_type: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create the PodGroup of the job."""

    resource: Resource
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Delete the PodGroup; the job has ended or is suspended."""

    resource: Resource
    observed: ObjectMeta


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Create an object of the framework."""

    desired: DesiredObject


@dataclass(frozen=True, slots=True)
class UpdateObject:
    """Patch the PodGroup or an object of the framework."""

    resource: Resource
    observed: ObjectMeta
    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete an object of the framework."""

    resource: Resource
    observed: ObjectMeta


@dataclass(frozen=True, slots=True)
class ReportConflict:
    """Report that another object has a name which the job needs; it gets no pods until then."""

    message: str
    reason: str = ""
    """Reason of the event; without one, none is recorded."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job, whose time to live has passed."""


Write = (
    DeletePods
    | RemoveLostPods
    | DeleteServices
    | CreatePods
    | CreateServices
    | CreatePodGroup
    | DeletePodGroup
    | CreateObject
    | UpdateObject
    | DeleteObject
    | ReportConflict
    | DeleteJob
    | Event
)
"""An event is a warning on a lasting condition, recorded once for each generation of the job."""


# Effects, in the order of their execution.


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write the restart record and decide again: the pods that it counts are deleted after that."""

    record: RestartRecord
    announcements: tuple[Announcement, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteObjects:
    """Execute *writes* in order. An error does not prevent the others, unless they depend on it."""

    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status, unless the job was deleted."""

    status: JobStatus
    announcements: tuple[Announcement, ...] = ()
    needs_writes: bool = False
    """Whether it must not be written if one of the writes before it failed."""


@dataclass(frozen=True, slots=True)
class ReportErrors:
    """Retry the job after all else, because pods or Services could not be adopted or released."""

    errors: tuple[Exception, ...]


Effect = RequeueAfter | WriteRecord | WriteObjects | WriteStatus | ReportErrors
