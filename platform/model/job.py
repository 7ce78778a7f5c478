"""Volcano's Job (``batch.volcano.sh/v1alpha1``): phases, actions, events, spec and status.

The pod template stays raw JSON until a pod is created from it.
"""

from enum import StrEnum
from typing import Any

import msgspec

from .base import ApiStruct
from .meta import ObjectMeta


class JobPhase(StrEnum):
    """``status.state.phase`` of a Job; the empty phase of a new job counts as PENDING."""

    PENDING = "Pending"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    FAILED = "Failed"


FINAL_PHASES = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED})
"""Phases that a job never leaves."""


class Action(StrEnum):
    """Action of a policy or Command."""

    ABORT_JOB = "AbortJob"
    RESTART_JOB = "RestartJob"
    RESTART_TASK = "RestartTask"
    RESTART_POD = "RestartPod"
    RESTART_PARTITION = "RestartPartition"
    TERMINATE_JOB = "TerminateJob"
    COMPLETE_JOB = "CompleteJob"
    RESUME_JOB = "ResumeJob"
    SYNC_JOB = "SyncJob"
    ENQUEUE_JOB = "EnqueueJob"
    SYNC_QUEUE = "SyncQueue"
    OPEN_QUEUE = "OpenQueue"
    CLOSE_QUEUE = "CloseQueue"


class JobEvent(StrEnum):
    """Event that triggers a policy."""

    ANY = "*"
    POD_FAILED = "PodFailed"
    POD_EVICTED = "PodEvicted"
    POD_PENDING = "PodPending"
    POD_RUNNING = "PodRunning"
    JOB_UNKNOWN = "Unknown"
    TASK_COMPLETED = "TaskCompleted"
    TASK_FAILED = "TaskFailed"
    OUT_OF_SYNC = "OutOfSync"
    COMMAND_ISSUED = "CommandIssued"
    JOB_UPDATED = "JobUpdated"


POLICY_EVENTS = (
    JobEvent.ANY,
    JobEvent.POD_FAILED,
    JobEvent.POD_EVICTED,
    JobEvent.POD_PENDING,
    JobEvent.JOB_UNKNOWN,
    JobEvent.TASK_COMPLETED,
    JobEvent.TASK_FAILED,
    JobEvent.JOB_UPDATED,
)
"""Events that a policy may name; the others are internal to the controller."""


class LifecyclePolicy(ApiStruct, frozen=True):
    """Run *action* on *event*, on any of *events*, or on *exit_code*."""

    action: str = ""
    event: str = ""
    events: tuple[str, ...] = ()
    exit_code: int | None = None
    timeout: str | None = None
    """Delay of the action, in Go's notation, e.g. ``"10m"``."""


class DependsOn(ApiStruct, frozen=True):
    """Tasks that must have started before this one; *iteration* is ``any`` or ``all``."""

    name: tuple[str, ...] = ()
    iteration: str = ""


class NetworkTopology(ApiStruct, frozen=True):
    """Constraint on the network distance between the pods."""

    mode: str = "hard"
    highest_tier_allowed: int | None = None
    highest_tier_name: str = ""


class PartitionPolicy(ApiStruct, frozen=True):
    """Division of a task into partitions of equal size."""

    total_partitions: int = 0
    partition_size: int = 0
    min_partitions: int = 0
    network_topology: NetworkTopology | None = None


class TaskSpec(ApiStruct, frozen=True):
    """One task of a Job: *replicas* pods of one template."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    policies: tuple[LifecyclePolicy, ...] = ()
    topology_policy: str = ""
    max_retry: int = 0
    depends_on: DependsOn | None = None
    partition_policy: PartitionPolicy | None = None


class VolumeSpec(ApiStruct, frozen=True):
    """A volume that every pod of the job mounts."""

    mount_path: str = ""
    volume_claim_name: str = ""
    volume_claim: dict[str, Any] | None = None
    """PVC spec of a claim to create, as received."""


class JobSpec(ApiStruct, frozen=True):
    """Desired state of a Job."""

    scheduler_name: str = ""
    min_available: int = 0
    volumes: tuple[VolumeSpec, ...] = ()
    tasks: tuple[TaskSpec, ...] = ()
    policies: tuple[LifecyclePolicy, ...] = ()
    plugins: dict[str, tuple[str, ...]] = {}
    running_estimate: str | None = None
    queue: str = ""
    max_retry: int = 0
    ttl_seconds_after_finished: int | None = None
    priority_class_name: str = ""
    min_success: int | None = None
    network_topology: NetworkTopology | None = None
    suspend: bool = False
    """Not in Volcano: a suspended job has no pods."""


class JobState(ApiStruct, frozen=True):
    """Phase of a job with its reason."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class TaskState(ApiStruct, frozen=True):
    """Number of a task's pods by pod phase."""

    phase: dict[str, int] = {}


class JobCondition(ApiStruct, frozen=True):
    """A phase that the job entered; *status* is the phase."""

    status: str = ""
    last_transition_time: str | None = None


class JobStatus(ApiStruct, frozen=True):
    """Status written by the job controller."""

    state: JobState = JobState()
    min_available: int = 0
    task_status_count: dict[str, TaskState] = {}
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    unknown: int = 0
    version: int = 0
    retry_count: int = 0
    running_duration: str | None = None
    controlled_resources: dict[str, str] = {}
    conditions: tuple[JobCondition, ...] = ()


class Job(ApiStruct, frozen=True):
    """A Volcano job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()
