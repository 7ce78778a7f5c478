"""Jobs of all kinds: summaries, pods, events, timeline, and why a job waits."""

from datetime import datetime
from enum import StrEnum

from .base import Page, Record


class Phase(StrEnum):
    """Phase of a job of any kind."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


FINAL_PHASES = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.TERMINATED})
"""Phases that a job never leaves."""


class TaskSummary(Record, frozen=True):
    """One task of a job: a task of Volcano, a replica type of a training job, all pods else."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None
    phases: dict[str, int] = {}
    """Number of pods by phase."""


class JobSummary(Record, frozen=True):
    """State of a job; fields that were not requested have their defaults."""

    namespace: str
    name: str
    uid: str = ""
    kind: str = "jobs"
    resource_version: str = ""
    """Its ETag, for ``if_match``."""
    queue: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    priority_class_name: str = ""
    suspend: bool = False
    user: str = ""
    """The user that created it through the REST API; empty if unknown."""
    labels: dict[str, str] = {}
    min_available: int = 0
    replicas: int = 0
    completions: int | None = None
    """Of batch/v1: pods that must succeed."""
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    unknown: int = 0
    retry_count: int = 0
    version: int = 0
    tasks: list[TaskSummary] = []
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    running_duration: str | None = None
    deleting: bool = False
    """Whether it is being deleted, and finalizers hold it."""

    @property
    def is_finished(self) -> bool:
        """Whether the phase is final."""
        return self.phase in FINAL_PHASES

    @property
    def succeeded_finally(self) -> bool:
        """Whether the job is completed."""
        return self.phase == Phase.COMPLETED

    def __str__(self) -> str:
        key = f"{self.namespace}/{self.name}"
        return f"{key}: {self.phase}, {self.running} of {self.replicas} pods running"


class JobPage(Page[JobSummary], frozen=True):
    """One page of jobs."""

    items: list[JobSummary] = []


class PodSummary(Record, frozen=True):
    """A pod of a job."""

    name: str
    uid: str = ""
    task: str = ""
    index: int | None = None
    phase: str = ""
    ready: bool = False
    restarts: int = 0
    node: str = ""
    """Empty while the pod is not scheduled."""
    ip: str = ""
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None
    """Of the first container that failed, or 0 once all have succeeded."""
    containers: list[str] = []
    init_containers: list[str] = []
    deleting: bool = False


class PodPage(Page[PodSummary], frozen=True):
    """One page of pods."""

    items: list[PodSummary] = []


class EventObject(Record, frozen=True):
    """The object that an event regards."""

    kind: str = ""
    name: str = ""


class Event(Record, frozen=True):
    """An event of a job, of its PodGroup or of one of its pods."""

    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    object: EventObject = EventObject()
    source: str = ""


class EventPage(Page[Event], frozen=True):
    """The events of a job, newest last; of more than were asked for, the newest."""

    items: list[Event] = []


class TimelinePhase(Record, frozen=True):
    """A phase that a job was in."""

    phase: str = ""
    entered_at: datetime | None = None
    left_at: datetime | None = None
    """``None`` for the current phase."""
    reason: str = ""
    message: str = ""


class Timeline(Record, frozen=True):
    """The phases of a job with their times, oldest first."""

    phases: list[TimelinePhase] = []
    pods: dict[str, int] = {}
    """Number of pods by phase, now or at the end."""
    recorded: bool = False
    """Whether it is from the history; else from the status of the job."""
    incomplete_reason: str = ""
    """Why the history is incomplete; empty if it is not."""


class PodGroupCondition(Record, frozen=True):
    """A condition of a PodGroup."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    at: datetime | None = None


class QueuePosition(Record, frozen=True):
    """Where a job waits."""

    name: str = ""
    position: int | None = None
    """Rank among the jobs that wait in the queue, from 1."""
    waiting: int | None = None


class GangCounts(Record, frozen=True):
    """Pods of a job that waits."""

    needed: int = 0
    existing: int = 0
    ready: int = 0
    fitting: int = 0


class Limit(Record, frozen=True):
    """A limit that leaves too little of a resource."""

    requested: str = ""
    limit: str = ""
    used: str = ""
    overcommit_factor: float | None = None


class Lack(Record, frozen=True):
    """A resource of which a node has too little."""

    requested: str = ""
    free: str = ""


class NearestNode(Record, frozen=True):
    """The node with the smallest shortage."""

    name: str = ""
    lacks: dict[str, Lack] = {}
    reason: str = ""


class NodeExplanation(Record, frozen=True):
    """Why no node fits a pod."""

    total: int = 0
    excluded: dict[str, int] = {}
    """Number of nodes by reason."""
    nearest: NearestNode | None = None


class Explanation(Record, frozen=True):
    """The scheduler's last attempt to start a job."""

    stage: str = ""
    """``queue``, ``quota``, ``gang``, ``pod``, ``nodes`` or ``scheduler``: what it failed at."""
    reason: str = ""
    message: str = ""
    queue: QueuePosition = QueuePosition()
    pods: GangCounts = GangCounts()
    limits: dict[str, Limit] = {}
    pod: str = ""
    nodes: NodeExplanation | None = None


class Why(Record, frozen=True):
    """Whether and why a job waits."""

    waiting: bool = False
    reason: str = ""
    summary: str = ""
    conditions: list[PodGroupCondition] = []
    explanation: Explanation | None = None
    """``None`` unless Batholith's scheduler has written one."""

    def __str__(self) -> str:
        return self.summary
