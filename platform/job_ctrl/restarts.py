"""Why a job restarts, and which of its pods, as its status says.

``status.state.reason`` names the action that brought the job into its phase, and ``message`` what
called for it. For a restart of a part of the job the message begins with its target, so that a
controller that takes over in the middle knows what its forerunner had begun.
"""

from dataclasses import dataclass

from ..model.job import Action, JobState
from .pod_tracker import Entry, Happening

SUSPENDED = "Suspended"
"""Reason of a job's state as long as ``spec.suspend`` keeps it stopped."""

_TARGETED = {
    Action.RESTART_TASK: "task",
    Action.RESTART_POD: "pod",
    Action.RESTART_PARTITION: "partition",
}


@dataclass(frozen=True, slots=True)
class Target:
    """The pods that a restart lets go: all, or those of one task or partition, or one pod.

    A partition is named ``task/partition``.
    """

    kind: str = ""
    name: str = ""

    @property
    def everything(self) -> bool:
        """No part of the job, but all of it."""
        return not self.kind

    def hits(self, pod: Entry) -> bool:
        """Whether *pod* is to go."""
        return self.name == self._part(pod)

    @classmethod
    def of(cls, action: Action, happening: Happening) -> "Target | None":
        """What *action* aims at after *happening*; ``None`` if that names no such thing."""
        kind = _TARGETED.get(action)
        if kind is None:
            return cls()
        name = cls(kind)._part(happening)
        return cls(kind, name) if name else None

    def _part(self, about: Entry | Happening) -> str:
        """The name of the part of the job, of this target's kind, that *about* belongs to."""
        if self.kind == "task":
            return about.task
        if self.kind == "partition":
            return f"{about.task}/{about.partition}" if about.partition else ""
        return about.name if isinstance(about, Entry) else about.pod

    @classmethod
    def read(cls, state: JobState) -> "Target":
        """The target that :meth:`message` wrote into *state*."""
        if state.reason not in _TARGETED:
            return cls()
        kind, _, rest = state.message.partition(" ")
        return cls(kind, rest.partition(":")[0])

    def message(self, why: str) -> str:
        """Text for ``state.message``."""
        return why if self.everything else f"{self.kind} {self.name}: {why}"


def cause(state: JobState) -> str:
    """The action that brought the job into its phase; empty if none is known."""
    return state.reason
