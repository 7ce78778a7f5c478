"""What a restart replaces, as a mark in the job's status.

``status.state.reason`` is the action that caused the phase. A restart of a task, pod or partition
also sets the mark ``RESTART_TARGET``, from which a new leader continues the restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...model.command import Command
from ...model.controlled_resources import RESTART_TARGET
from ...model.job import JobStatus
from ...model.job_actions import ACTIONS, Target
from ...model.names import PARTITION, POD, TASK
from ..tracker.pod_info import LifecycleEvent, PodInfo
from ..tracker.pod_tracker import PodTracker

SUSPENDED = "Suspended"
"""``state.reason`` of a job that ``spec.suspend`` has stopped."""

_TARGETS_IN_JOB = frozenset(Target) - {Target.JOB}

_ANNOTATIONS: Mapping[Target, frozenset[Target]] = {
    Target.JOB: frozenset(),
    Target.TASK: frozenset({Target.TASK}),
    Target.POD: frozenset({Target.POD}),
    Target.PARTITION: frozenset({Target.TASK, Target.PARTITION}),
}
"""What a Command must name for an action with this target; it may name nothing else."""
_ANNOTATION = {Target.TASK: TASK, Target.POD: POD, Target.PARTITION: PARTITION}


@dataclass(frozen=True, slots=True)
class RestartTarget:
    """The pods that a restart replaces: of the job, a task or a partition, or one pod.

    The name of a partition is ``task/partition``.
    """

    kind: Target = Target.JOB
    name: str = ""

    @property
    def is_whole_job(self) -> bool:
        """Whether the restart replaces all pods."""
        return self.kind is Target.JOB

    def matches(self, pod: PodInfo) -> bool:
        """Whether the restart replaces *pod*."""
        return self.name == _target_name(self.kind, pod)

    @property
    def mark(self) -> str:
        """The value of the mark."""
        return f"{self.kind}/{self.name}"

    def message(self, cause: str) -> str:
        """Return the text for ``state.message``."""
        return cause if self.is_whole_job else f"{self.kind} {self.name}: {cause}"


def target_for_event(action: str, event: LifecycleEvent) -> RestartTarget | None:
    """Return what *action* replaces after *event*; ``None`` if the event names no such target."""
    kind = ACTIONS[action].target
    if kind is Target.JOB:
        return RestartTarget()
    name = _target_name(kind, event)
    return RestartTarget(kind, name) if name else None


@dataclass(frozen=True, slots=True)
class InvalidTarget:
    """Why a Command concerns no pods."""

    reason: str


def target_for_command(
    command: Command, pods: PodTracker, *, version: int
) -> RestartTarget | InvalidTarget:
    """Return what *command*, whose action is one of jobs, concerns; *version* is the job's."""
    kind = ACTIONS[command.action].target
    annotations = command.metadata.annotations
    given = {each: annotations.get(name, "") for each, name in _ANNOTATION.items()}
    needed = _ANNOTATIONS[kind]
    for each, value in given.items():
        if bool(value) != (each in needed):
            names = "names no" if each in needed else "must not name a"
            return InvalidTarget(f"it {names} {each} (annotation {_ANNOTATION[each]})")
    if kind is Target.JOB:
        return RestartTarget()
    is_partition = kind is Target.PARTITION
    task, partition = given[Target.TASK], given[Target.PARTITION]
    name = f"{task}/{partition}" if is_partition else given[kind]
    target = RestartTarget(kind, name)
    known = [*pods.active(), *pods.finished()]
    if any(pod.version == version and target.matches(pod) for pod in known):
        return target
    if any(target.matches(pod) for pod in (*known, *pods.terminating(), *pods.excess())):
        return InvalidTarget(f"the pods of {kind} {name} are being deleted or have finished before")
    return InvalidTarget(f"the job has no pods of {kind} {name}")


def target_from_status(status: JobStatus) -> RestartTarget:
    """Return what the last restart replaces, according to *status*."""
    mark = status.controlled_resources.get(RESTART_TARGET)
    if mark is None:
        return RestartTarget()
    kind, _, name = mark.partition("/")
    return RestartTarget(Target(kind) if kind in _TARGETS_IN_JOB else Target.POD, name)


def _target_name(kind: Target, source: PodInfo | LifecycleEvent) -> str:
    """Return the name of the target of this *kind* that *source* belongs to."""
    if kind is Target.TASK:
        return source.task
    if kind is Target.PARTITION:
        return f"{source.task}/{source.partition}" if source.partition else ""
    return source.name if isinstance(source, PodInfo) else source.pod
