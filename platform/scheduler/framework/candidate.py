"""A gang that an action is to try."""

from dataclasses import dataclass

from ..state.gangs.gang import Gang
from ..state.queue.waiting import WaitGroup


@dataclass(frozen=True, slots=True)
class Candidate:
    """A gang to be tried."""

    gang: Gang
    group: WaitGroup | None = None
    """The gangs with equal demand of which it is the first."""
