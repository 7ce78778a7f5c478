"""What of the scheduler cache has changed since the last cycle."""

from collections.abc import Collection, Iterator

from ..gangs.gang import Gang
from ..nodes.node_matrix import NodeMatrix
from ..queue.scheduling_queue import SchedulingQueue


class ChangeRecord:
    """The changes that the next cycle has to see."""

    def __init__(self, node_matrix: NodeMatrix, scheduling_queue: SchedulingQueue) -> None:
        """Start without changes."""
        self._node_matrix = node_matrix
        self._scheduling_queue = scheduling_queue
        self._gangs: dict[str, Gang] = {}
        self._stale: dict[str, Gang] = {}
        """Gangs whose sums are to be updated."""
        self._unfinished = False
        self._seen_positions = (-1, -1)
        """Ends of the change logs of the node matrix after the last cycle."""

    def mark(self, gang: Gang) -> None:
        """Record that *gang* has changed."""
        self._gangs[gang.key] = gang
        self._stale[gang.key] = gang

    def mark_stale(self, gang: Gang) -> None:
        """Record that the sums of *gang* are to be updated, but that no report on it is needed."""
        self._stale[gang.key] = gang

    def need_cycle(self, *, has_changed_queues: bool) -> bool:
        """Return whether anything has changed since the last call that needs a cycle."""
        positions = self._positions()
        is_needed = bool(
            self._gangs
            or has_changed_queues
            or self._stale
            or self._unfinished
            or self._scheduling_queue.has_work()
            or positions != self._seen_positions
        )
        self._seen_positions = positions
        return is_needed

    @property
    def is_unfinished(self) -> bool:
        """Whether the last cycle has left gangs to the next."""
        return self._unfinished

    @property
    def has_run(self) -> bool:
        """Whether there was a cycle."""
        return self._seen_positions[0] >= 0

    def mark_cycle_end(self, *, unfinished: bool) -> None:
        """Record that a cycle has seen all changes of nodes, its own included; an *unfinished* one
        has left gangs to the next."""
        self._seen_positions = self._positions()
        self._unfinished = unfinished

    def try_all(self) -> None:
        """Let the next cycle try every rejected gang on its own."""
        self._scheduling_queue.activate_all()
        self._unfinished = True

    def gangs(self) -> Collection[Gang]:
        """Return the gangs that have changed since :meth:`pop_gangs`."""
        return self._gangs.values()

    def pop_gangs(self) -> list[Gang]:
        """Return the gangs that have changed since the last call."""
        changed = list(self._gangs.values())
        self._gangs.clear()
        return changed

    def pop_stale(self) -> Iterator[Gang]:
        """Yield the gangs whose sums are to be updated, also those that are marked during that."""
        while self._stale:
            yield self._stale.popitem()[1]

    def _positions(self) -> tuple[int, int]:
        matrix = self._node_matrix
        return matrix.usage_changes.position, matrix.node_changes.position
