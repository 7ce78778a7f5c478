"""What one gang adds to the sums of its queue."""

from dataclasses import dataclass, field

from ....model.podgroup import PodGroupPhase
from ..gangs.gang import Gang, QueueInfo, add_amounts, positive_difference, sum_amounts
from ..resources import Amounts

# Module names are looked up faster than those of an enumeration: this is used for each change.
_INQUEUE, _RUNNING = PodGroupPhase.INQUEUE.value, PodGroupPhase.RUNNING.value


@dataclass(slots=True)
class QueueShare:
    """What the sums of a queue contain of one gang."""

    queue_name: str
    allocated: Amounts = field(default_factory=dict)
    requested: Amounts = field(default_factory=dict)
    reserved: Amounts = field(default_factory=dict)
    elastic: Amounts = field(default_factory=dict)
    ungated: Amounts = field(default_factory=dict)
    settled: Amounts = field(default_factory=dict)
    """What was allocated at the last refresh: *allocated* itself while nothing was since."""

    def demand(self) -> tuple[Amounts, ...]:
        """Return all that counts against a limit of the queue."""
        return self.settled, self.reserved, self.elastic, self.ungated

    def admitted(self) -> Amounts:
        """Return what is allocated or still needed."""
        return sum_amounts((self.settled, self.reserved))

    def charged(self) -> Amounts:
        """Return what is allocated, or will be to tasks without their gate."""
        return sum_amounts((self.settled, self.ungated))

    def inqueue(self) -> Amounts:
        """Return what admission compares with the limit of the queue."""
        inqueue = self.admitted()
        add_amounts(inqueue, self.elastic, -1)
        return inqueue

    @classmethod
    def of(cls, gang: Gang, queue_name: str) -> "QueueShare":
        """Return what the queue with *queue_name* contains of *gang* now."""
        allocated = gang.allocated.copy()
        reserved, elastic = _reserved_and_elastic(gang)
        ungated = gang.ungated_request.copy() if gang.ungated_request else {}
        requested = gang.requested.copy()
        return cls(queue_name, allocated, requested, reserved, elastic, ungated, allocated)

    def add_to(self, queue: QueueInfo, sign: int = 1) -> None:
        """Add this to the sums of *queue*, or subtract it with *sign* -1."""
        if self.allocated:
            add_amounts(queue.allocated, self.allocated, sign)
        if self.requested:
            add_amounts(queue.requested, self.requested, sign)
        if self.reserved:
            add_amounts(queue.reserved, self.reserved, sign)
        if self.elastic:
            add_amounts(queue.elastic, self.elastic, sign)
        if self.ungated:
            add_amounts(queue.ungated, self.ungated, sign)

    def is_reduced_to(self, after: "QueueShare") -> bool:
        """Return whether the queue has more capacity once *after* replaces this."""
        return self.queue_name != after.queue_name or bool(
            positive_difference(self.settled, after.settled)
            or positive_difference(self.inqueue(), after.inqueue())
            or positive_difference(self.charged(), after.charged())
        )


def _reserved_and_elastic(gang: Gang) -> tuple[Amounts, Amounts]:
    """Return what an admitted *gang* still needs for its minimum, and has beyond it.

    A gang that is too large for the nodes does not keep anything from others.
    """
    least = gang.min_resources
    gang.min_request = (
        positive_difference(least, gang.gated_request) if gang.gated_request else least
    )
    if not least:
        return {}, {}
    phase = gang.phase
    is_reserving = phase == _INQUEUE or (
        phase == _RUNNING and gang.counts.allocated >= gang.min_member
    )
    if gang.diagnosis is not None and gang.diagnosis.exceeds_nodes:
        is_reserving = False
    reserved = positive_difference(gang.min_request, gang.allocated) if is_reserving else {}
    return reserved, positive_difference(gang.allocated, least)
