"""The tasks as columns: a row (*slot*) per task, so that all of them are compared at once.

Queues, gangs and equivalence classes are numbers there. A slot, and the number of a gang or class,
is reused after its owner is deleted. The table repeats what tasks know of themselves; only the
cache changes it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..podinfo.equivalence import EquivalenceClass
from ..resources import IntVector, Matrix, ResourceIndex
from .gang import Gang, Task

Column = npt.NDArray[np.int32]
StatusColumn = npt.NDArray[np.int8]

FREE = -1
"""Status of a free slot."""

_INITIAL_SLOTS = 64
_MIN_BATCH = 16
"""Number of tasks from which assigning lists to arrays is faster than assigning one by one."""

_NO_TASKS: dict[str, Task] = {}


class _Numbers:
    """Numbers of hashable owners; a number without users is reused."""

    def __init__(self) -> None:
        """Start without numbers."""
        self.owners: list[object | None] = []
        self._by_owner: dict[object, int] = {}
        self._users: list[int] = []
        self._free: list[int] = []

    def get(self, owner: object) -> int:
        """Return the number of *owner*, or -1."""
        return self._by_owner.get(owner, -1)

    def acquire(self, owner: object) -> int:
        """Return the number of *owner*, and count a user of it."""
        number = self._by_owner.get(owner)
        if number is None:
            if self._free:
                number = self._free.pop()
            else:
                number = len(self.owners)
                self.owners.append(None)
                self._users.append(0)
            self.owners[number] = owner
            self._by_owner[owner] = number
        self._users[number] += 1
        return number

    def release(self, number: int) -> None:
        """Count a user less of *number*."""
        self._users[number] -= 1
        if not self._users[number]:
            del self._by_owner[self.owners[number]]
            self.owners[number] = None
            self._free.append(number)


class TaskTable:
    """Columns over the tasks of all gangs, and the tasks on each node.

    Callers must neither change nor keep the arrays: they are replaced when the table grows.
    """

    def __init__(self, resource_index: ResourceIndex) -> None:
        """Start without tasks; requests have the rows of *resource_index*."""
        self.tasks: list[Task | None] = []
        """By slot."""
        self.status: StatusColumn = np.full(_INITIAL_SLOTS, FREE, np.int8)
        """Of a free slot: ``FREE``."""
        self.node: Column = np.full(_INITIAL_SLOTS, -1, np.int32)
        """The node whose resources the task uses, or -1."""
        self.queue: Column = np.full(_INITIAL_SLOTS, -1, np.int32)
        self.gang: Column = np.full(_INITIAL_SLOTS, -1, np.int32)
        self.eq_class: Column = np.full(_INITIAL_SLOTS, -1, np.int32)
        self.priority: Column = np.zeros(_INITIAL_SLOTS, np.int32)
        self.gang_priority: Column = np.zeros(_INITIAL_SLOTS, np.int32)
        """Priority of the priority class, by the number of the gang."""
        self._resource_index = resource_index
        self._free_slots: list[int] = []
        self._gangs = _Numbers()
        self._queues = _Numbers()
        self._classes = _Numbers()
        self._requests: Matrix = np.zeros((len(resource_index), _INITIAL_SLOTS), np.int64)
        self._tasks_by_node: dict[int, dict[str, Task]] = {}
        self._extra: dict[str, npt.NDArray[np.generic]] = {}
        self._getters: dict[str, Callable[[Task], int]] = {}

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.tasks) - len(self._free_slots)

    # -- lookups -------------------------------------------------------------------------------

    def queue_id(self, name: str) -> int:
        """Return the number of queue *name*, or -1 if it has no task."""
        return self._queues.get(name)

    def gang_id(self, gang: Gang) -> int:
        """Return the number of *gang*, or -1 if it has no task."""
        return self._gangs.get(gang)

    def gang_of(self, number: int) -> Gang:
        """Return the gang with a number."""
        owner = self._gangs.owners[number]
        if not isinstance(owner, Gang):
            raise KeyError(number)
        return owner

    def requests(self, slots: IntVector) -> Matrix:
        """Return the requests of the tasks in *slots*, a column each."""
        self._add_missing_rows()
        return self._requests[:, self.eq_class[slots]]

    def tasks_on(self, node_index: int) -> Collection[Task]:
        """Return the tasks that use resources of a node; pipelined ones do not."""
        return self._tasks_by_node.get(node_index, _NO_TASKS).values()

    def column(self, name: str) -> npt.NDArray[np.generic]:
        """Return a column that was added by :meth:`add_column`."""
        return self._extra[name]

    # -- changes -------------------------------------------------------------------------------

    def add_column(self, name: str, dtype: npt.DTypeLike, getter: Callable[[Task], int]) -> None:
        """Add column *name*, whose values are set by *getter* when a task is added."""
        self._extra[name], self._getters[name] = np.zeros(len(self.status), dtype), getter
        self.update_column(name)

    def update_column(self, name: str) -> None:
        """Set the values of column *name* again, for all tasks."""
        column, getter = self._extra[name], self._getters[name]
        for slot, task in enumerate(self.tasks):
            if task is not None:
                column[slot] = getter(task)

    def add(self, task: Task, gang: Gang, queue_name: str) -> None:
        """Add *task* of *gang*, whose queue is *queue_name*."""
        slot = self._new_slot()
        task.slot = slot
        self.tasks[slot] = task
        self.gang[slot] = gang_id = self._gangs.acquire(gang)
        self.queue[slot] = self._queues.acquire(queue_name)
        self.eq_class[slot] = self._class_id(task.eq_class)
        self.priority[slot] = task.priority
        self.gang_priority = _grown(self.gang_priority, gang_id, 0)
        self.gang_priority[gang_id] = gang.priority
        for name, getter in self._getters.items():
            self._extra[name][slot] = getter(task)
        self.update((task,))

    def update_columns(self, task: Task) -> None:
        """Set the added columns of *task* again."""
        for name, getter in self._getters.items():
            self._extra[name][task.slot] = getter(task)

    def remove(self, task: Task) -> None:
        """Remove *task*."""
        slot = task.slot
        self._leave(task)
        self._gangs.release(int(self.gang[slot]))
        self._queues.release(int(self.queue[slot]))
        self._classes.release(int(self.eq_class[slot]))
        self.tasks[slot] = None
        self.status[slot] = FREE
        self.node[slot] = self.gang[slot] = self.queue[slot] = self.eq_class[slot] = -1
        self._free_slots.append(slot)
        task.slot = -1

    def replace(self, old: Task, new: Task) -> None:
        """Replace *old* by *new*, which has the same gang, class and node."""
        self._leave(old)
        slot, new.slot, old.slot = old.slot, old.slot, -1
        self.tasks[slot] = new
        self.priority[slot] = new.priority
        self.update_columns(new)
        self.update((new,))

    def update(self, tasks: Sequence[Task]) -> None:
        """Copy status and node of *tasks*, which have the same status."""
        if not tasks:
            return
        status = tasks[0].status
        on_node = status.on_node
        if len(tasks) < _MIN_BATCH:
            for task in tasks:
                self.status[task.slot] = status
                self.node[task.slot] = task.node_index if on_node else -1
        else:
            slots = [task.slot for task in tasks]
            self.status[slots] = status
            self.node[slots] = [task.node_index if on_node else -1 for task in tasks]
        for task in tasks:
            if task.table_node >= 0 and not (on_node and task.table_node == task.node_index):
                self._leave(task)
            if on_node and task.node_index >= 0 and task.table_node < 0:
                self._tasks_by_node.setdefault(task.node_index, {})[task.uid] = task
                task.table_node = task.node_index

    def update_eq_class(self, task: Task) -> None:
        """Copy the class of *task*, which has changed."""
        before = int(self.eq_class[task.slot])
        self.eq_class[task.slot] = self._class_id(task.eq_class)
        self._classes.release(before)

    def update_gang(self, gang: Gang, queue_name: str) -> None:
        """Copy priority and queue of *gang* for all its tasks."""
        gang_id = self._gangs.get(gang)
        if gang_id < 0:
            return
        self.gang_priority[gang_id] = gang.priority
        first = next(iter(gang.tasks.values()), None)
        if first is None or self._queues.owners[self.queue[first.slot]] == queue_name:
            return
        for task in gang.tasks.values():
            self._queues.release(int(self.queue[task.slot]))
            self.queue[task.slot] = self._queues.acquire(queue_name)

    def validate(self, gangs: Iterable[Gang]) -> None:
        """Check that the table equals the tasks of *gangs*.

        Raises:
            AssertionError: it does not; the message names the task.
        """
        known = 0
        for gang in gangs:
            for task in gang.tasks.values():
                known += 1
                slot = task.slot
                on_node = task.status.on_node and task.node_index >= 0
                row = (self.status[slot], self.node[slot], self.priority[slot])
                if self.tasks[slot] is not task or self._gangs.owners[self.gang[slot]] is not gang:
                    raise AssertionError(f"slot of another task: {task.name}")
                if row != (task.status, task.node_index if on_node else -1, task.priority):
                    raise AssertionError(f"outdated row: {task.name}")
                if on_node != (task in self.tasks_on(task.node_index)):
                    raise AssertionError(f"wrong node: {task.name}")
        if known != len(self) or known != np.count_nonzero(self.status != FREE):
            raise AssertionError(f"{len(self)} rows for {known} tasks")
        if sum(map(len, self._tasks_by_node.values())) != np.count_nonzero(self.node >= 0):
            raise AssertionError("tasks of nodes differ from the column")

    # -- private -------------------------------------------------------------------------------

    def _new_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        slot = len(self.tasks)
        self.tasks.append(None)
        if slot == len(self.status):
            self.status = _grown(self.status, slot, FREE)
            self.node = _grown(self.node, slot, -1)
            self.queue = _grown(self.queue, slot, -1)
            self.gang = _grown(self.gang, slot, -1)
            self.eq_class = _grown(self.eq_class, slot, -1)
            self.priority = _grown(self.priority, slot, 0)
            for name, column in self._extra.items():
                self._extra[name] = np.concatenate([column, np.zeros_like(column)])
        return slot

    def _class_id(self, eq_class: EquivalenceClass) -> int:
        is_new = self._classes.get(eq_class) < 0
        class_id = self._classes.acquire(eq_class)
        if is_new:
            request = eq_class.request_vector(self._resource_index)
            self._add_missing_rows()
            if class_id >= self._requests.shape[1]:
                self._requests = np.pad(self._requests, ((0, 0), (0, self._requests.shape[1])))
            self._requests[:, class_id] = request
        return class_id

    def _add_missing_rows(self) -> None:
        missing = len(self._resource_index) - self._requests.shape[0]
        if missing:
            self._requests = np.pad(self._requests, ((0, missing), (0, 0)))

    def _leave(self, task: Task) -> None:
        """Remove *task* from the tasks of its node."""
        if task.table_node < 0:
            return
        tasks = self._tasks_by_node[task.table_node]
        del tasks[task.uid]
        if not tasks:
            del self._tasks_by_node[task.table_node]
        task.table_node = -1


def _grown(column: npt.NDArray[np.signedinteger], index: int, filler: int) -> npt.NDArray:  # type: ignore[type-arg]
    """Return *column*, extended to hold *index*."""
    if index < len(column):
        return column
    return np.concatenate(
        [column, np.full(max(len(column), index + 1 - len(column)), filler, column.dtype)]
    )
