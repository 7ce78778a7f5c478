"""PodGroup counts of each queue by phase, updated in O(1) per event.

Counts are kept by queue name, so that a re-created queue has the counts of its PodGroups.
"""

from collections import Counter
from dataclasses import dataclass

from ..model.names import DEFAULT_QUEUE
from ..model.podgroup import PodGroup, PodGroupPhase
from ..model.queue import QueueStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroupCounts:
    """PodGroup counts of one queue."""

    pending: int = 0
    inqueue: int = 0
    running: int = 0
    unknown: int = 0
    completed: int = 0
    total: int = 0
    """Includes those without a phase; not in a queue's status."""

    @property
    def status_counts(self) -> tuple[int, int, int, int, int]:
        """The counts in a queue's status."""
        return (self.pending, self.inqueue, self.running, self.unknown, self.completed)

    @staticmethod
    def from_status(status: QueueStatus) -> tuple[int, int, int, int, int]:
        """Return the counts in *status*, in the same order."""
        return (status.pending, status.inqueue, status.running, status.unknown, status.completed)


class QueueCounts:
    """PodGroup counts of all queues."""

    def __init__(self) -> None:
        self._by_queue: dict[str, Counter[str]] = {}

    def observe(self, old: PodGroup | None, new: PodGroup | None) -> set[str]:
        """Apply a change of a PodGroup; return the queues whose counts changed."""
        before = _bucket(old)
        after = _bucket(new)
        if before == after:
            return set()
        changed = set()
        if before is not None:
            self._count(before, -1)
            changed.add(before[0])
        if after is not None:
            self._count(after, 1)
            changed.add(after[0])
        return changed

    def get(self, queue: str) -> PodGroupCounts:
        """Return the counts of one queue."""
        counts = self._by_queue.get(queue)
        if not counts:
            return PodGroupCounts()
        return PodGroupCounts(
            pending=counts[PodGroupPhase.PENDING],
            inqueue=counts[PodGroupPhase.INQUEUE],
            running=counts[PodGroupPhase.RUNNING],
            unknown=counts[PodGroupPhase.UNKNOWN],
            completed=counts[PodGroupPhase.COMPLETED],
            total=counts.total(),
        )

    def __len__(self) -> int:
        """Number of queues with PodGroups."""
        return len(self._by_queue)

    def _count(self, bucket: tuple[str, str], delta: int) -> None:
        queue, phase = bucket
        counts = self._by_queue.setdefault(queue, Counter())
        counts[phase] += delta
        if not counts[phase]:
            del counts[phase]
        if not counts:
            del self._by_queue[queue]


def queue_of(podgroup: PodGroup) -> str:
    """Return the name of the queue that counts *podgroup*."""
    return podgroup.spec.queue or DEFAULT_QUEUE


def _bucket(group: PodGroup | None) -> tuple[str, str] | None:
    """Return queue and phase."""
    return (queue_of(group), group.status.phase) if group is not None else None
