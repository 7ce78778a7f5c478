"""What a restart replaces, as a mark in the job's status.

``status.state.reason`` is the action that caused the phase. A restart of a task, pod or partition
also sets the mark ``RESTART_TARGET``, from which a new leader continues the restart.
"""

from dataclasses import dataclass

from ..model.controlled_resources import RESTART_TARGET
from ..model.job import JobStatus
from .actions import ACTIONS, Target
from .pod_info import LifecycleEvent, PodInfo

SUSPENDED = "Suspended"
"""``state.reason`` of a job that ``spec.suspend`` has stopped."""

_PARTS = frozenset(Target) - {Target.JOB}


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


def target_from_status(status: JobStatus) -> RestartTarget:
    """Return what the last restart replaces, according to *status*.

    Earlier versions wrote no mark; they began ``state.message`` with the target instead. They also
    left the mark of an earlier restart unchanged, so a restart of the whole job overrules it.
    """
    action = ACTIONS.get(status.state.reason)
    if action is not None and action.target is Target.JOB:
        return RestartTarget()
    mark = status.controlled_resources.get(RESTART_TARGET)
    if mark is None:
        return _parse_legacy_message(status.state.message) if action else RestartTarget()
    kind, _, name = mark.partition("/")
    return RestartTarget(Target(kind) if kind in _PARTS else Target.POD, name)


def _parse_legacy_message(message: str) -> RestartTarget:
    kind, _, rest = message.partition(" ")
    if not kind:
        return RestartTarget()
    # An unknown text matches no pod.
    return RestartTarget(Target(kind) if kind in _PARTS else Target.POD, rest.partition(":")[0])


def _target_name(kind: Target, source: PodInfo | LifecycleEvent) -> str:
    """Return the name of the target of this *kind* that *source* belongs to."""
    if kind is Target.TASK:
        return source.task
    if kind is Target.PARTITION:
        return f"{source.task}/{source.partition}" if source.partition else ""
    return source.name if isinstance(source, PodInfo) else source.pod
