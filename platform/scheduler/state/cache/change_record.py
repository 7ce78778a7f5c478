"""What of the scheduler cache has changed since the last cycle."""

from collections.abc import Collection

from ..gangs.gang import Gang
from ..nodes.node_matrix import NodeMatrix
from ..queue.admission_rounds import AdmissionRounds
from ..queue.waiting import ANY, WaitingGangs, Wake


class ChangeRecord:
    """The changes that the next cycle has to see, and the gangs that wait for one."""

    def __init__(self) -> None:
        """Start without nodes, gangs and changes."""
        self.node_matrix = NodeMatrix()
        self.waiting = WaitingGangs()
        self.admission_rounds = AdmissionRounds()
        self._changed_gangs: dict[str, Gang] = {}
        self._dirty_gangs: dict[str, Gang] = {}
        """Gangs whose sums are to be updated."""
        self._changed_queues: set[str] = set()
        self._unfinished = False
        self._capacity_generation = 0
        self._seen_positions = (-1, -1)
        """Ends of the change logs of the node matrix after the last cycle."""

    def mark_changed(self, gang: Gang) -> None:
        """Record that *gang* has changed."""
        self._changed_gangs[gang.key] = gang
        self._dirty_gangs[gang.key] = gang

    def mark_phase_changed(self, gang: Gang) -> None:
        """Record that the report on *gang* has set its phase: another one is not needed."""
        self._dirty_gangs[gang.key] = gang

    def has_changes(self) -> bool:
        """Return whether anything has changed since the last call that needs a cycle."""
        positions = self._positions()
        changes = bool(
            self._changed_gangs
            or self._changed_queues
            or self._dirty_gangs
            or self._unfinished
            or self.waiting.has_work()
            or positions != self._seen_positions
        )
        self._seen_positions = positions
        return changes

    @property
    def is_unfinished(self) -> bool:
        """Whether the last cycle has left gangs to the next."""
        return self._unfinished

    def mark_cycle_end(self, *, unfinished: bool) -> None:
        """Record that a cycle has seen all changes of nodes, its own included; an *unfinished* one
        has left gangs to the next."""
        self._seen_positions = self._positions()
        self._unfinished = unfinished

    @property
    def _has_run(self) -> bool:
        """Whether there was a cycle."""
        return self._seen_positions[0] >= 0

    def _positions(self) -> tuple[int, int]:
        matrix = self.node_matrix
        return matrix.usage_changes.position, matrix.node_changes.position

    @property
    def capacity_generation(self) -> int:
        """Grows when every rejected gang is to be tried again."""
        return self._capacity_generation

    @capacity_generation.setter
    def capacity_generation(self, value: int) -> None:
        if value != self._capacity_generation:
            self._capacity_generation = value
            self.waiting.publish(ANY)

    def wake(self, event: Wake) -> None:
        """Publish *event*, so that gangs that wait for it are tried again."""
        self.waiting.publish(event)

    def try_all(self) -> None:
        """Let the next cycle try every rejected gang on its own."""
        self.waiting.activate_all()
        self._unfinished = True

    def changed_gangs(self) -> Collection[Gang]:
        """Return the gangs that have changed since :meth:`pop_changed_gangs`."""
        return self._changed_gangs.values()

    def pop_changed_gangs(self) -> list[Gang]:
        """Return the gangs that have changed since the last call."""
        changed = list(self._changed_gangs.values())
        self._changed_gangs.clear()
        return changed
