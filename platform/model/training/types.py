"""Types of training jobs that all kinds share.

Each kind has its own subclass of :class:`TrainingSpec`. Pod templates stay raw JSON until a pod is
created from them.
"""

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from ..base import ApiStruct
from ..meta import ObjectMeta


class RestartPolicy(StrEnum):
    """``restartPolicy`` of a replica type."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"
    """Restart the pods whose main container ends with an exit code of 128 or more."""


class CleanPodPolicy(StrEnum):
    """Which pods and services to delete when the job has finished."""

    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class ConditionType(StrEnum):
    """Type of a condition of a training job."""

    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


Quantities = dict[str, str | int | float]


class SchedulingPolicy(ApiStruct, frozen=True):
    """Settings of the job's gang."""

    min_available: int | None = None
    queue: str = ""
    min_resources: Quantities | None = None
    priority_class: str = ""
    schedule_timeout_seconds: int | None = None


class RunPolicy(ApiStruct, frozen=True):
    """Settings of the job's run that do not depend on the framework."""

    clean_pod_policy: str | None = None
    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    scheduling_policy: SchedulingPolicy | None = None
    suspend: bool = False
    managed_by: str | None = None


class ReplicaSpec(ApiStruct, frozen=True):
    """The pods of one replica type."""

    replicas: int | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    restart_policy: str = ""


class TrainingSpec(ApiStruct, frozen=True):
    """Desired state of a training job; each kind renames the field of the replica types."""

    run_policy: RunPolicy = RunPolicy()
    replica_specs: dict[str, ReplicaSpec] = {}


class JobCondition(ApiStruct, frozen=True):
    """One entry of ``status.conditions``; the last one is the job's state."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class ReplicaStatus(ApiStruct, frozen=True):
    """Number of a replica type's pods, and their label selector for ``/scale``."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    selector: str = ""


class JobStatus(ApiStruct, frozen=True):
    """Status written by the training controller."""

    conditions: tuple[JobCondition, ...] = ()
    replica_statuses: dict[str, ReplicaStatus] = {}
    start_time: str | None = None
    completion_time: str | None = None
    last_reconcile_time: str | None = None


S = TypeVar("S", bound=TrainingSpec)


class TrainingJob(ApiStruct, Generic[S], frozen=True):
    """A training job of the kind whose spec is *S*, e.g. ``TrainingJob[PyTorchSpec]``."""

    spec: S
    metadata: ObjectMeta = ObjectMeta()
    status: JobStatus = JobStatus()
