"""Sums of what the gangs of each queue have and ask for."""

from collections.abc import Collection

from ....model import names
from ..gangs.gang import Gang, QueueInfo, add_amounts, positive_difference
from ..gangs.priority_classes import PriorityClasses
from ..gangs.task_table import TaskTable
from ..gangs.victim_columns import add_victim_columns
from ..nodes.node_matrix import ChangeLog
from ..queue.waiting import RESERVED, VICTIMS, queue_gained
from ..resources import Amounts
from .change_record import ChangeRecord
from .queue_shares import QueueShare


class QueueSums(ChangeRecord):
    """Queues and their sums, updated by the contribution of one gang at a time."""

    def __init__(self, *, default_queue: str) -> None:
        """Start without queues; gangs that name none are in *default_queue*."""
        super().__init__()
        self.task_table = TaskTable(self.node_matrix.resource_index)
        add_victim_columns(self.task_table)
        self.queues: dict[str, QueueInfo] = {}
        self.queue_changes: ChangeLog[str] = ChangeLog()
        """Names of queues whose object or sums changed."""
        self.queue_version = 0
        """Grows when the object of a queue is added, changed or deleted."""
        self.reserved: Amounts = {}
        """What admitted gangs of all queues still need for their minimum."""
        self._default_queue = default_queue
        self._priority_classes = PriorityClasses()
        self._queue_shares: dict[str, QueueShare] = {}

    def queue_named(self, name: str) -> QueueInfo:
        """Return queue *name*; one that is not known yet has no ``object``."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = QueueInfo(name)
        return queue

    def queue_of(self, gang: Gang) -> QueueInfo:
        """Return the queue of *gang*."""
        return self.queue_named("" if gang.single else gang.queue_name or self._default_queue)

    def pop_changed_queues(self) -> set[str]:
        """Return queues whose allocation may have changed since the last call, with ancestors."""
        changed = {each for name in self._changed_queues for each in self.with_ancestors(name)}
        self._changed_queues.clear()
        return changed

    def subtrees_allocated(self, names: Collection[str]) -> dict[str, Amounts]:
        """Return what is allocated in each of the queues *names* and in all queues below it."""
        sums: dict[str, Amounts] = {name: {} for name in names}
        for queue in self.queues.values():
            if queue.allocated:
                for name in sums.keys() & self.with_ancestors(queue.name):
                    add_amounts(sums[name], queue.allocated)
        return sums

    def with_ancestors(self, name: str) -> list[str]:
        """Return *name* and its ancestors, each once even if they form a loop."""
        path: list[str] = []
        while name and name not in path:
            path.append(name)
            queue = self.queues.get(name)
            parent = queue.object.spec.parent if queue and queue.object else ""
            name = parent or (names.ROOT_QUEUE if name != names.ROOT_QUEUE else "")
        return path

    def _mark_allocation_changed(self, gang: Gang) -> None:
        self._changed_queues.update({self.queue_of(gang).name} - {""})
        self.mark_changed(gang)

    def _update_queue_sums(self, gang: Gang) -> None:
        """Replace the contribution of *gang* to the sums of its queue."""
        before, after = self._queue_shares.get(gang.key), None
        if gang.podgroup is not None or gang.tasks:
            priority, gang.priority = gang.priority, self._priority_classes.priority_of(gang)
            queue = self.queue_of(gang)
            after = QueueShare.of(gang, queue.name)
            if after == before and gang.priority == priority:
                return
            self.task_table.update_gang(gang, queue.name)
            self.waiting.publish(VICTIMS)
        if before is not None:
            former = self.queue_named(before.queue_name)
            before.add_to(former, -1)
            if after is None or after.queue_name != before.queue_name:
                former.gangs.discard(gang.key)
        if after is None:
            self._queue_shares.pop(gang.key, None)
        else:
            self._queue_shares[gang.key] = after
            after.add_to(queue)
            queue.gangs.add(gang.key)
        self._record_changes(before or QueueShare(""), after or QueueShare(""))

    def _record_changes(self, before: QueueShare, after: QueueShare) -> None:
        """Record and publish how the sums of queues have changed."""
        names_of_queues = {before.queue_name, after.queue_name} - {""}
        for name in names_of_queues:
            self.queue_changes.add(name)
        if (before.queue_name, before.settled) != (after.queue_name, after.settled):
            self._changed_queues.update(names_of_queues)
        if before.reserved != after.reserved:
            add_amounts(self.reserved, before.reserved, -1)
            add_amounts(self.reserved, after.reserved)
        if before.demand() == after.demand() and before.queue_name == after.queue_name:
            return
        if positive_difference(before.admitted(), after.admitted()):
            self.waiting.publish(RESERVED)
        if before.queue_name and before.is_reduced_to(after):
            for name in self.with_ancestors(before.queue_name):
                self.waiting.publish(queue_gained(name))
