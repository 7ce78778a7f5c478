"""Jobs of all kinds: summaries, pods, events, timeline, and why a job waits."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from ..model import job
from .base import CountedPage, Items, Page, Record, Sends, SentTime
from .waits import Competition


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


PhaseText = Annotated[str, Sends(Phase)]
FINAL_PHASES = frozenset(Phase(each.value) for each in job.FINAL_PHASES)
"""Phases that a job never leaves."""


class JobKindName(StrEnum):
    """Kind of a job, as in paths: the plural of its resource."""

    JOBS = "jobs"
    BATCHJOBS = "batchjobs"
    PYTORCHJOBS = "pytorchjobs"
    TFJOBS = "tfjobs"
    MPIJOBS = "mpijobs"
    XGBOOSTJOBS = "xgboostjobs"
    PADDLEJOBS = "paddlejobs"
    JAXJOBS = "jaxjobs"


KINDS = {
    ("batch.volcano.sh/v1alpha1", "Job"): JobKindName.JOBS,
    ("batch/v1", "Job"): JobKindName.BATCHJOBS,
    ("kubeflow.org/v1", "PyTorchJob"): JobKindName.PYTORCHJOBS,
    ("kubeflow.org/v1", "TFJob"): JobKindName.TFJOBS,
    ("kubeflow.org/v1", "MPIJob"): JobKindName.MPIJOBS,
    ("kubeflow.org/v1", "XGBoostJob"): JobKindName.XGBOOSTJOBS,
    ("kubeflow.org/v1", "PaddleJob"): JobKindName.PADDLEJOBS,
    ("kubeflow.org/v1", "JAXJob"): JobKindName.JAXJOBS,
}
"""Kinds of jobs in paths, by ``apiVersion`` and ``kind`` of their manifests."""


class TaskSummary(Record, frozen=True):
    """One task of a job: a task of Volcano, a replica type of a training job, all pods else."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None
    phases: dict[str, int] = {}
    """Number of pods by phase."""


class JobSummary(Record, frozen=True):
    """Summary of a job."""

    namespace: str
    name: str
    uid: str = ""
    kind: Annotated[str, Sends(JobKindName)] = "jobs"
    resource_version: str = ""
    """For ``If-Match``."""
    queue: str = ""
    """Empty if the pods are not scheduled by queue."""
    phase: PhaseText = ""
    reason: str = ""
    message: str = ""
    priority_class_name: str = ""
    suspend: bool = False
    """Whether the spec asks for no pods."""
    user: str = ""
    """Who created the job through the REST API; empty if unknown."""
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
    """Whether the job is being deleted."""

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


class JobPage(CountedPage[JobSummary], frozen=True):
    """One page of jobs."""


PodPhaseName = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


class ContainerRun(Record, frozen=True):
    """One run of a container, from its start to its end."""

    container: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    """Null while it runs."""
    exit_code: int | None = None
    """Null while it runs."""


class PodSummary(Record, frozen=True):
    """A pod of a job."""

    name: str
    uid: str = ""
    task: str = ""
    index: int | None = None
    """Index in the task, if the pod has one."""
    phase: Annotated[str, Sends(PodPhaseName)] = ""
    ready: bool = False
    restarts: int = 0
    """Sum of the restarts of all containers."""
    node: str = ""
    """Empty while the pod is not scheduled."""
    ip: str = ""
    reason: str = ""
    """Why the pod waits or has failed, as far as it is known."""
    message: str = ""
    created_at: datetime | None = None
    scheduled_at: datetime | None = None
    """When the pod got its node; null before, and if its status does not have it."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    runs: list[ContainerRun] = []
    """Runs of the containers, except init containers, by their start: of each the current or last
    one, and the one before a restart. Kubernetes keeps no earlier ones."""
    exit_code: int | None = None
    """Exit code of the first container that failed, or 0 once all have succeeded."""
    containers: list[str] = []
    init_containers: list[str] = []
    deleting: bool = False
    """Whether the pod is being terminated."""


class PodPage(Page[PodSummary], frozen=True):
    """One page of the pods of a job, by name."""


class EventObject(Record, frozen=True):
    """The object that an event regards."""

    kind: str = ""
    name: str = ""


class Event(Record, frozen=True):
    """An event of a job, of its PodGroup or of one of its pods."""

    type: str = ""
    """``Normal`` or ``Warning``."""
    reason: str = ""
    message: str = ""
    count: int = 0
    first_at: SentTime = None
    last_at: SentTime = None
    object: EventObject = EventObject()
    source: str = ""
    """Component that recorded the event."""


class EventList(Items[Event], frozen=True):
    """Events of a job, the newest last."""

    total: int = 0
    """Number of events; the oldest are omitted beyond ``limit``."""


class TimelinePhase(Record, frozen=True):
    """A phase that the job has, or had."""

    phase: PhaseText = ""
    entered_at: datetime | None = None
    """Null if it is not known."""
    left_at: datetime | None = None
    """Null in the current phase, and if it is not known: a job keeps only the last time of each
    phase."""
    reason: str = ""
    message: str = ""


class Timeline(Record, frozen=True):
    """The phases of a job, the current one last."""

    phases: list[TimelinePhase] = []
    pods: dict[str, int] = {}
    """Number of pods by phase."""
    recorded: bool = False
    """Whether the phases are those of the history, which has each entry."""
    incomplete_reason: str = ""
    """What the history has missed; empty if nothing, or if it is not used."""


class PodGroupCondition(Record, frozen=True):
    """A condition of a PodGroup."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    at: datetime | None = None
    """When it was set last."""


class QueuePosition(Record, frozen=True):
    """Where the job waits."""

    name: str = ""
    position: int | None = None
    """Rank among the jobs that wait in the queue, from 1."""
    waiting: int | None = None
    """Number of jobs that wait there."""


class GangCounts(Record, frozen=True):
    """Pods of the job."""

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
    queue: str = ""
    """The queue above that of the job that has the limit; empty if it is not such a one."""
    resource_quota: str = ""
    """The ResourceQuota in the namespace of the job that has the limit; empty if it is none."""


class Lack(Record, frozen=True):
    """A resource of which a node has too little."""

    requested: str = ""
    free: str = ""


class NearestNode(Record, frozen=True):
    """The node with the smallest shortage."""

    name: str = ""
    lacks: dict[str, Lack] = {}
    reason: str = ""
    """Why the node is excluded although it has enough."""


class NodeExplanation(Record, frozen=True):
    """Why no node fits the pod."""

    total: int = 0
    excluded: dict[str, int] = {}
    """Number of nodes by reason."""
    nearest: NearestNode | None = None


class PlannedStart(Record, frozen=True):
    """When a job that waits is expected to start, if its start is planned."""

    earliest: datetime | None = None
    expected: datetime | None = None
    """When it probably starts; null if that is not known."""
    latest: datetime | None = None
    """Null if it is not known."""
    basis: str = ""
    """``limits``, ``predictions`` or ``unknown``: what the ends of other jobs are known from."""

    @property
    def is_known(self) -> bool:
        """Whether the start depends only on jobs whose end is known.

        Otherwise ``earliest`` is the time of the estimate, which is soon over.
        """
        return self.basis != "unknown"


class ExhaustedBudget(Record, frozen=True):
    """The budget of a queue that is used up; amounts are quantities of the resource for an hour."""

    queue: str = ""
    """The queue of the job, or one above it."""

    resource: str = ""
    used: str = ""
    limit: str = ""
    until: str = ""
    """When it may use more."""


class Explanation(Record, frozen=True):
    """The scheduler's last attempt to start the job."""

    stage: str = ""
    """``queue``, ``quota``, ``gang``, ``pod``, ``nodes`` or ``scheduler``: what it failed at."""
    reason: str = ""
    message: str = ""
    queue: QueuePosition = QueuePosition()
    pods: GangCounts = GangCounts()
    limits: dict[str, Limit] = {}
    """By resource."""
    pod: str = ""
    """The pod that does not fit; empty if the reason is another one."""
    nodes: NodeExplanation | None = None
    start: PlannedStart | None = None
    budget: ExhaustedBudget | None = None
    """If the job waits for that."""


class WaitReason(StrEnum):
    """What a job waits for, or why it does not wait."""

    NOT_WAITING = "NotWaiting"
    """Its pods run or have run."""

    FINISHED = "Finished"
    DELETING = "Deleting"
    STOPPING = "Stopping"
    """It is aborted, completed or terminated, and its pods are being deleted."""

    SUSPENDED = "Suspended"
    ABORTED = "Aborted"
    RESTARTING = "Restarting"
    QUEUE_NOT_FOUND = "QueueNotFound"
    QUEUE_NOT_OPEN = "QueueNotOpen"
    BLOCKED = "Blocked"
    """The job controller cannot create what the job needs."""

    NO_PODGROUP = "NoPodGroup"
    """The job controller has not created its PodGroup."""

    NO_GANG = "NoGang"
    """Its pods are scheduled one by one, so that only they know."""

    NOT_REPORTED = "NotReported"
    """No scheduler has reported on its PodGroup."""

    UNSCHEDULABLE = "Unschedulable"
    STARTING = "Starting"
    """It is admitted; its pods are being created or started."""


class Why(Record, frozen=True):
    """Whether and why a job waits."""

    waiting: bool = False
    reason: Annotated[str, Sends(WaitReason)] = ""
    summary: str = ""
    """For people."""
    cause: str = ""
    """The dominant reason why it waits, is slow to start or has failed, in one sentence."""
    next_step: str = ""
    """What to do next; empty if there is nothing to be done."""
    failed_pod: str = ""
    """The pod that failed first, of a failed job whose pods exist and may be read."""
    last_lines: list[str] = []
    """The last lines of its log, if that may be read."""
    conditions: list[PodGroupCondition] = []
    """Those of the job's PodGroup, or that of its pod."""
    explanation: Explanation | None = None
    """Null unless Batholith's scheduler has written one."""
    competition: Competition | None = None
    """Null unless it waits for that scheduler, which responds."""
    competition_error: str = ""
    """Why it does not, if the job waits for it."""

    def __str__(self) -> str:
        return self.summary
