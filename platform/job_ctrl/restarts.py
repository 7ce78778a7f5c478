"""Why a job restarts, and which of its pods, as its status says.

``status.state.reason`` names the action that brought the job into its phase, and ``message`` what
called for it. For a restart of a single task or pod the message begins with its target, so that a
controller that takes over in the middle knows what its forerunner had begun.
"""

from dataclasses import dataclass

from ..model.job import Action, JobState
from .ledger import Entry, Happening

_TARGETED = {Action.RESTART_TASK: "task", Action.RESTART_POD: "pod"}


@dataclass(frozen=True, slots=True)
class Target:
    """The pods that a restart lets go: all of them, or those of one task, or one pod."""

    kind: str = ""
    name: str = ""

    @property
    def everything(self) -> bool:
        """No single task or pod, but the whole job."""
        return not self.kind

    def hits(self, pod: Entry) -> bool:
        """Whether *pod* is to go."""
        return self.name == (pod.task if self.kind == "task" else pod.name)

    @classmethod
    def of(cls, action: Action, happening: Happening) -> "Target | None":
        """What *action* aims at after *happening*; ``None`` if that names no such thing."""
        kind = _TARGETED.get(action)
        if kind is None:
            return cls()
        name = happening.task if kind == "task" else happening.pod
        return cls(kind, name) if name else None

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
