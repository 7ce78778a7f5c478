"""Why a job restarts, and which of its pods, as its status says.

``status.state.reason`` names the action that brought the job into its phase, and ``message`` what
called for it. For a restart of a part of the job the message begins with its target, so that a
controller that takes over in the middle knows what its forerunner had begun.
"""

from dataclasses import dataclass

from ..model.job import Action, JobState
from .pod_tracker import LifecycleEvent, PodInfo

SUSPENDED = "Suspended"
"""Reason of a job's state as long as ``spec.suspend`` keeps it stopped."""

_TARGETED = {
    Action.RESTART_TASK: "task",
    Action.RESTART_POD: "pod",
    Action.RESTART_PARTITION: "partition",
}


@dataclass(frozen=True, slots=True)
class RestartTarget:
    """The pods that a restart lets go: all, or those of one task or partition, or one pod.

    A partition is named ``task/partition``.
    """

    kind: str = ""
    name: str = ""

    @property
    def is_whole_job(self) -> bool:
        """No part of the job, but all of it."""
        return not self.kind

    def matches(self, pod: PodInfo) -> bool:
        """Whether *pod* is to go."""
        return self.name == self._name_for(pod)

    @classmethod
    def for_event(cls, action: Action, event: LifecycleEvent) -> "RestartTarget | None":
        """What *action* aims at after *happening*; ``None`` if that names no such thing."""
        kind = _TARGETED.get(action)
        if kind is None:
            return cls()
        name = cls(kind)._name_for(event)
        return cls(kind, name) if name else None

    def _name_for(self, source: PodInfo | LifecycleEvent) -> str:
        """The name of the part of the job, of this target's kind, that *about* belongs to."""
        if self.kind == "task":
            return source.task
        if self.kind == "partition":
            return f"{source.task}/{source.partition}" if source.partition else ""
        return source.name if isinstance(source, PodInfo) else source.pod

    @classmethod
    def parse(cls, state: JobState) -> "RestartTarget":
        """The target that :meth:`fit_message` wrote into *state*."""
        if state.reason not in _TARGETED:
            return cls()
        kind, _, rest = state.message.partition(" ")
        return cls(kind, rest.partition(":")[0])

    def message(self, cause: str) -> str:
        """Text for ``state.message``."""
        return cause if self.is_whole_job else f"{self.kind} {self.name}: {cause}"


def last_action(state: JobState) -> str:
    """The action that brought the job into its phase; empty if none is known."""
    return state.reason
