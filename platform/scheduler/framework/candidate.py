"""A gang that an action is to try."""

from dataclasses import dataclass

from ..state.gangs.gang import Gang
from ..state.queue.scheduling_queue import UnschedulableGroup


@dataclass(frozen=True, slots=True)
class Candidate:
    """A gang to be tried."""

    gang: Gang
    group: UnschedulableGroup | None = None
    """The gangs with equal demand of which it is the first."""
