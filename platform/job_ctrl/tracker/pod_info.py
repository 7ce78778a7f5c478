"""A job's pods as decisions see them: one pod, what happened to it, counts. Immutable."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ...model import names
from ...model.job import JobEvent
from ...model.lost_pods import lost_at
from ...model.pod import PodPhase, is_rejection
from ...model.pod_failure import pod_failure
from .core_types import ContainerStatus, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInfo:
    """One pod of a job."""

    uid: str
    name: str
    owner: str
    """Uid of the job that controls the pod."""
    task: str
    index: int
    version: int
    """Version of the job when the pod was created."""
    retries: int = 0
    """Retry count of the job when the pod was created."""
    partition: str = ""
    """Partition of the task, if the task has partitions."""
    phase: PodPhase = PodPhase.PENDING
    terminating: bool = False
    """The pod has a deletion timestamp."""
    lost_at: datetime | None = None
    """When a terminating pod counts as lost with its node, if it is deleted because of that."""
    ready: bool = False
    """The pod runs and all its containers are ready."""
    exit_code: int = 0
    """Exit code of the first failed container; 0 if none has failed."""
    failure: str = ""
    """Why the pod has failed, as a text; empty if it has not, or its status has no reason."""
    restarts: int = 0
    """Sum of the restart counts of all containers."""
    rejection: str = ""
    """Reason why the kubelet rejected the pod before a container started, if it did."""
    replaced: bool = False
    """The scheduler evicts the pod so that it is created again."""
    description: str = ""
    """The PodGroup that the pod describes instead of having one; empty for none."""
    reported: bool = False
    """Whether a scheduler has bound that pod, or reported why it does not."""
    unschedulable: str = ""
    """Why the scheduler does not bind that pod; empty if it has not reported that."""
    grace_period: int = 30
    """Seconds between SIGTERM and SIGKILL."""
    resource_version: str = field(default="", compare=False)
    """``resourceVersion`` of the pod that this was parsed from."""
    event_time: str | None = field(default=None, compare=False)
    """Time of the last change that policies react to, from the pod's status."""

    @property
    def is_new(self) -> bool:
        """Whether nothing has happened to the pod since its creation."""
        is_pending = self.phase is PodPhase.PENDING and not self.terminating
        return is_pending and not (self.restarts or self.unschedulable)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleEvent:
    """Something that a policy may react to."""

    event_type: JobEvent
    task: str = ""
    partition: str = ""
    pod: str = ""
    uid: str = ""
    """Uid of the pod; empty if the pod was never observed."""
    owner: str = ""
    version: int | None = None
    """Version of the job that the event concerns; ``None`` for the current one."""
    exit_code: int = 0
    failure: str = ""
    """Why the pod has failed, as a text."""
    occurred_at: float = 0.0
    """Time of the event on the monotonic clock."""

    @classmethod
    def from_pod(
        cls, event_type: JobEvent, pod: PodInfo, *, occurred_at: float
    ) -> "LifecycleEvent":
        """Return an event of *pod*."""
        return cls(
            event_type=event_type,
            task=pod.task,
            partition=pod.partition,
            pod=pod.name,
            uid=pod.uid,
            owner=pod.owner,
            version=pod.version,
            exit_code=pod.exit_code if event_type is JobEvent.POD_FAILED else 0,
            failure=pod.failure if event_type is JobEvent.POD_FAILED else "",
            occurred_at=occurred_at,
        )

    @property
    def key(self) -> tuple[str, JobEvent]:
        """Of two events with the same key only one is kept: a task is completed by its last pod."""
        return (
            self.task if self.event_type is JobEvent.TASK_COMPLETED else self.pod,
            self.event_type,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCounts:
    """Pods of a job by task and phase; tasks and phases without pods have no entry."""

    tasks: Mapping[str, Mapping[str, int]]
    ready: Mapping[str, int]
    """Running pods with all containers ready, by task."""
    restarts: Mapping[str, int]
    """Restarts of the containers of active pods, by task."""
    terminating: int = 0
    """Pods that are being deleted or that a sync will delete."""

    def with_terminating(self, pods: Iterable[PodInfo]) -> "PodCounts":
        """Return the counts with *pods*, which are counted by phase, as terminating."""
        pods = tuple(pods)
        if not pods:
            return self
        tasks = {task: dict(phases) for task, phases in self.tasks.items()}
        terminating = self.terminating
        for pod in pods:
            tasks[pod.task][pod.phase] -= 1
            if not tasks[pod.task][pod.phase]:
                del tasks[pod.task][pod.phase]
            terminating += 1
        return replace(self, tasks=tasks, terminating=terminating)

    def in_phase(self, phase: PodPhase) -> int:
        """Return the number of pods in *phase*."""
        return sum([phases.get(phase, 0) for phases in self.tasks.values()])

    @property
    def finished(self) -> int:
        """Number of pods that succeeded or failed."""
        return self.in_phase(PodPhase.SUCCEEDED) + self.in_phase(PodPhase.FAILED)

    @property
    def unfinished(self) -> int:
        """Number of pods that have not finished, or are not deleted yet."""
        counted = sum(sum(phases.values()) for phases in self.tasks.values())
        return counted - self.finished + self.terminating


_PHASES = {"": PodPhase.PENDING} | {phase.value: phase for phase in PodPhase}


def all_container_statuses(pod: Pod) -> tuple[ContainerStatus, ...]:
    """Return the status of all containers, main containers first."""
    return (*pod.status.container_statuses, *pod.status.init_container_statuses)


def parse_pod(pod: Pod) -> PodInfo | None:
    """Parse *pod*; return ``None`` if no Volcano job controls it."""
    owner = pod.metadata.controller
    annotations = pod.metadata.annotations
    if owner is None or owner.kind != names.JOBS.kind:
        return None
    if owner.api_version != names.JOBS.api_version or annotations.get(names.JOB_NAME) != owner.name:
        return None
    task, version = annotations.get(names.TASK_SPEC, ""), annotations.get(names.JOB_VERSION, "")
    stem, _, index = pod.metadata.name.rpartition("-")
    if stem != f"{owner.name}-{task}" or not index.isdecimal() or not version.isdecimal():
        return None
    retries = annotations.get(names.JOB_RETRY_COUNT, "")
    phase = _PHASES.get(pod.status.phase, PodPhase.UNKNOWN)
    containers, statuses = pod.status.container_statuses, all_container_statuses(pod)
    ended = [
        state.terminated
        for one in statuses
        for state in (one.state, one.last_state)
        if state.terminated is not None
    ]
    is_rejected = not ended and is_rejection(phase, pod.status.reason)
    codes = [one.state.terminated.exit_code for one in containers if one.state.terminated]
    description = annotations.get(names.PODGROUP, "")
    reported, unschedulable = _scheduling(pod) if description else (False, "")
    return PodInfo(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        owner=owner.uid,
        task=task,
        index=int(index),
        version=int(version),
        retries=int(retries) if retries.isdecimal() else 0,
        partition=pod.metadata.labels.get(names.PARTITION_ID, ""),
        phase=phase,
        terminating=pod.metadata.deletion_timestamp is not None,
        lost_at=lost_at(pod.metadata.deletion_timestamp, pod.status.conditions),
        ready=phase is PodPhase.RUNNING and all(one.ready for one in containers),
        exit_code=next(filter(None, codes), 0),
        failure=_failure(pod) if phase is PodPhase.FAILED else "",
        rejection=pod.status.reason if is_rejected else "",
        replaced=any(
            one.type == names.REPLACED_BY_SCHEDULER and one.status == "True"
            for one in pod.status.conditions
        ),
        description=description,
        reported=reported,
        grace_period=pod.spec.termination_grace_period_seconds,
        unschedulable=unschedulable,
        restarts=sum([one.restart_count for one in statuses]),
        resource_version=pod.metadata.resource_version,
        # Of a pending pod its creation, else the end of the last container.
        event_time=pod.metadata.creation_timestamp
        if phase is PodPhase.PENDING
        else max([one.finished_at for one in ended if one.finished_at], default=None),
    )


def _failure(pod: Pod) -> str:
    status = pod.status
    containers = (*status.init_container_statuses, *status.container_statuses)
    ended = [(each.name, each.state.terminated) for each in containers]
    return pod_failure(status.reason, status.message, ended)


def _scheduling(pod: Pod) -> tuple[bool, str]:
    """Return whether a scheduler has reported on *pod*, and why it is not scheduled."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled":
            return True, condition.message if condition.status == "False" else ""
    return False, ""


def has_same_job(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod belong to the same job, or are equally none of a job."""
    before, after = one.metadata, other.metadata
    return (before.owner_references, before.annotations) == (
        after.owner_references,
        after.annotations,
    )
