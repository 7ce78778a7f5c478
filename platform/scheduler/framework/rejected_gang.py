"""What a session records of a gang that it has rejected."""

from dataclasses import dataclass, field

from ..state.gangs.gang import Gang
from ..state.queue.scheduling_queue import QueueingHints
from .unfit_tasks import UnfitTasks


@dataclass(slots=True)
class RejectedGang:
    """A gang that was rejected in a session."""

    gang: Gang
    version: int
    hints: list[QueueingHints] = field(default_factory=list)
    unfit: UnfitTasks | None = None
    retry_at: float | None = None
    is_rejected: bool = False
    """Whether no other action of the session tries it."""

    is_alone: bool = False
    """Whether gangs with equal demand need not be rejected, too."""

    scheduled: int = 0
    """How many statements were committed before."""

    def add(self, hints: QueueingHints | UnfitTasks) -> None:
        """Add what it also waits for, or which of its tasks did not fit."""
        if isinstance(hints, QueueingHints):
            self.hints.append(hints)
        elif self.unfit is None:
            self.unfit = hints
        else:
            self.unfit.update(hints)
