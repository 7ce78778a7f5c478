"""Effects and plans: what the executor is to do. Immutable data."""

from dataclasses import dataclass
from typing import Any, Literal

from ..model.meta import ObjectMeta
from ..model.training.types import JobStatus
from .core_types import DependentObject, Pod, Service
from .dependents import DesiredObject
from .restarts import RestartRecord

Counted = Literal["created", "successful", "failed", "restarted"]
"""What happened to a job, for its metrics."""


class Reason:
    """Reasons of events; those with a kind are prefixed with it."""

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
    POD_GROUP_DELETED = "SuccessfulDeletePodGroup"
    POD_GROUP_NOT_DELETED = "FailedDeletePodGroup"
    POD_GROUP_NOT_CREATED = "FailedCreatePodGroup"
    JOB_DELETED = "SuccessfulDeleteJob"
    JOB_NOT_DELETED = "FailedDeleteJob"
    POD_NOT_CREATED = "FailedCreatePod"
    RESOURCE_EXISTS = "ErrResourceExists"
    RESOURCE_NOT_SERVED = "ErrResourceDoesNotExist"
    STATUS_REJECTED = "FailedUpdateStatus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """An event on the job, and what it counts as."""

    reason: str
    message: str = ""
    warning: bool = False
    counted: Counted | None = None


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete pods of the job."""

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

    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UpdatePodGroup:
    """Change fields of the spec of the PodGroup."""

    observed: ObjectMeta
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Delete the PodGroup; the job has ended or is suspended."""

    observed: ObjectMeta


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Create an object of the framework."""

    desired: DesiredObject


@dataclass(frozen=True, slots=True)
class UpdateObject:
    """Change fields of an object of the framework."""

    desired: DesiredObject
    observed: DependentObject
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete an object of the framework."""

    desired: DesiredObject
    observed: ObjectMeta


@dataclass(frozen=True, slots=True)
class ReportConflict:
    """An object that is not the job's has a name that the job needs; the rest must wait."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Record a warning, once per generation of the job."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job, whose time to live has passed."""


Effect = (
    DeletePods
    | DeleteServices
    | CreatePods
    | CreateServices
    | CreatePodGroup
    | UpdatePodGroup
    | DeletePodGroup
    | CreateObject
    | UpdateObject
    | DeleteObject
    | ReportConflict
    | Warn
    | DeleteJob
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job needs now: write the record, then execute the effects, then write the status."""

    record: RestartRecord | None = None
    """The restart record to write, if it changes."""
    restarts: tuple[Announcement, ...] = ()
    """Announced when the record is written."""
    effects: tuple[Effect, ...] = ()
    status: JobStatus
    status_needs_effects: bool = False
    """Whether the status must not be written if an effect fails."""
    transitions: tuple[Announcement, ...] = ()
    """Announced when the status is written."""
    requeue_after: float | None = None
    """Seconds until the next plan, if nothing changes before."""
