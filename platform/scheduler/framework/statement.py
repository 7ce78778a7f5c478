"""Trying to place a gang: placements that undo themselves unless they are kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Protocol, Self

from ..plugins.extension_points import NOT_ENOUGH_RESOURCES, Rejection
from ..state.equivalence import EquivalenceClass
from ..state.gangs import Diagnosis, FitError, Gang, QueueInfo, Task, add_amounts
from .placer import Placer


class SessionView(Protocol):
    """What a trial stands on: the cycle."""

    def placer(self, eq_class: EquivalenceClass) -> Placer:
        """The placer of *shape* in this cycle."""
        ...

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """How many more pods of *shape* the queue may hold."""
        ...

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection | None:
        """Why the queue holds no more pods of *shape*, if that is so."""
        ...

    def pvc_rejection(self, task: Task) -> str:
        """Why no node may take *task* yet; empty if one may."""
        ...

    def explain(self, eq_class: EquivalenceClass) -> str:
        """Why no node takes another pod of *shape*."""
        ...


class MissingMembers:
    """What a gang lacks to be ready, counted down as tasks are placed."""

    def __init__(self, gang: Gang) -> None:
        """Count what is missing of the minima of *gang*."""
        self.total = max(gang.min_member - gang.counts.ready, 0)
        self.by_role: dict[str, int] = {}
        for role, minimum in gang.role_minima.items():
            if minimum > gang.role_counts(role).ready:
                self.by_role[role] = minimum - gang.role_counts(role).ready

    @property
    def satisfied(self) -> bool:
        """Whether the gang would be ready."""
        return not self.total and not self.by_role

    def needed(self, role: str, available: int) -> int:
        """How many of *there* tasks of *role* to place until the gang is ready."""
        own = self.by_role.get(role, 0)
        others = len(self.by_role) - (role in self.by_role)
        return available if others else min(max(self.total, own), available)

    def consume(self, role: str, count: int) -> None:
        """*count* tasks of *role* have been placed."""
        self.total = max(self.total - count, 0)
        left = self.by_role.pop(role, 0) - count
        if left > 0:
            self.by_role[role] = left

    def is_satisfiable(self, rest: Sequence[Task]) -> bool:
        """Whether *rest* has enough tasks of each role, and altogether."""
        available: dict[str, int] = {}
        for task in rest:
            available[task.role] = available.get(task.role, 0) + 1
        return len(rest) >= self.total and all(
            available.get(role, 0) >= count for role, count in self.by_role.items()
        )


@dataclass(slots=True)
class AllocatedBatch:
    """Tasks of one shape, and the columns that were charged for them."""

    eq_class: EquivalenceClass
    tasks: list[Task]
    node_indexes: list[int]


class Statement:
    """One try to place tasks of one gang. A context manager: what is not kept is undone."""

    def __init__(self, session: SessionView, gang: Gang, queue: QueueInfo) -> None:
        """Nothing is placed yet."""
        self.fit_errors: dict[str, FitError] = {}
        self._failed: set[str | EquivalenceClass] = set()
        self._blocked: set[str] = set()
        self._session = session
        self._gang = gang
        self._queue = queue
        self._batches: list[AllocatedBatch] = []
        self._fitting_uids: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    @property
    def allocations(self) -> Iterator[tuple[Task, int]]:
        """Tasks that found a place, and its column."""
        for batch in self._batches:
            yield from zip(batch.tasks, batch.node_indexes, strict=True)

    def allocate_minimum(self, tasks: Sequence[Task], missing: MissingMembers) -> None:
        """Place tasks in order until *need* is met, or cannot be met any more."""
        tasks = self._unblocked(tasks)
        if self._blocked and not missing.is_satisfiable(tasks):
            return
        order = _grouped(tasks) if missing.total >= len(tasks) else tasks
        done = 0
        for eq_class, run in _runs(order):
            done += len(run)
            if missing.satisfied:
                return
            if self.has_failed(run[0]):
                continue
            if not self._allocate_run(eq_class, run, missing, rest=order[done:]):
                return

    def allocate_extra(self, tasks: Sequence[Task], at_most: int) -> int:
        """Place up to *at_most* further tasks of a gang that is ready; returns how many."""
        placed = 0
        for eq_class, run in _runs(self._unblocked(tasks)):
            if placed == at_most:
                break
            if not self.has_failed(run[0]):
                run = run[: at_most - placed]
                possible = self._allocatable_count(eq_class, run)
                self._allocate(eq_class, run[:possible])
                placed += possible
        return placed

    def has_failed(self, task: Task) -> bool:
        """Whether *task* is blocked, or one like it, by role or else by shape, found no place."""
        return task.uid in self._blocked or (task.role or task.eq_class) in self._failed

    def commit(self) -> list[tuple[Task, int]]:
        """Let the placements stand; whoever keeps them counts them in the gang and the queue."""
        allocations = list(self.allocations)
        self._subtract_from_queue()
        self._batches = []
        return allocations

    def discard(self) -> None:
        """Take everything back, to the last bit."""
        self._subtract_from_queue()
        for batch in self._batches:
            self._session.placer(batch.eq_class).rollback(batch.node_indexes)
        self._batches = []

    def diagnosis(self) -> Diagnosis:
        """What the trial has shown; to be asked before it is undone."""
        fitting = frozenset(task.uid for task, _ in self.allocations).union(self._fitting_uids)
        return Diagnosis(NOT_ENOUGH_RESOURCES, "", dict(self.fit_errors), fitting)

    # -- inside --------------------------------------------------------------------------------

    def _allocate_run(
        self,
        eq_class: EquivalenceClass,
        run: list[Task],
        missing: MissingMembers,
        rest: Sequence[Task],
    ) -> bool:
        """Place what is needed of *run*; say no, and place nothing, if the gang is lost."""
        desired = run[: missing.needed(run[0].role, len(run))]
        possible = self._allocatable_count(eq_class, desired)
        missing.consume(run[0].role, possible)
        if possible < len(desired) and not missing.is_satisfiable(self._remaining(rest)):
            self._fitting_uids = [task.uid for task in desired[:possible]]
            return False
        self._allocate(eq_class, desired[:possible])
        return True

    def _allocatable_count(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """How many of *tasks* queue and nodes have room for; notes the first that is left over."""
        allowed = len(tasks)
        if not self._gang.single and not eq_class.best_effort:
            allowed = min(allowed, self._session.allocatable_count(self._queue, eq_class))
        capacity = self._session.placer(eq_class).capacity()
        possible = min(allowed, capacity)
        if possible < len(tasks):
            # Asked as if those before it had their place: what is left is then too little for it.
            add_amounts(self._queue.allocated, eq_class.request, possible)
            self._record_fit_error(eq_class, tasks[possible], limited=allowed < capacity)
            add_amounts(self._queue.allocated, eq_class.request, -possible)
        return possible

    def _allocate(self, eq_class: EquivalenceClass, tasks: list[Task]) -> None:
        if tasks:
            node_indexes = self._session.placer(eq_class).allocate(len(tasks))
            self._batches.append(AllocatedBatch(eq_class, tasks, node_indexes))
            add_amounts(self._queue.allocated, eq_class.request, len(node_indexes))

    def _record_fit_error(self, eq_class: EquivalenceClass, task: Task, *, limited: bool) -> None:
        rejection = self._session.queue_rejection(self._queue, eq_class) if limited else None
        message = rejection.message if rejection else self._session.explain(eq_class)
        self._failed.add(task.role or task.eq_class)
        self.fit_errors.setdefault(task.role, FitError(task.name, task.uid, message))

    def _unblocked(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Those of *tasks* that some node may take; of the others the first says why."""
        if not any(task.pvcs for task in tasks):
            return tasks
        unblocked = []
        for task in tasks:
            if reason := self._session.pvc_rejection(task):
                self._blocked.add(task.uid)
                self.fit_errors.setdefault(task.role, FitError(task.name, task.uid, reason))
            else:
                unblocked.append(task)
        return unblocked

    def _remaining(self, rest: Sequence[Task]) -> list[Task]:
        return [task for task in rest if not self.has_failed(task)]

    def _subtract_from_queue(self) -> None:
        for batch in self._batches:
            add_amounts(self._queue.allocated, batch.eq_class.request, -len(batch.node_indexes))


def _grouped(tasks: Sequence[Task]) -> list[Task]:
    """The same tasks, those of one shape and role side by side.

    When all are needed their order decides nothing, and like ones are placed in one go.
    """
    groups: dict[tuple[EquivalenceClass, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.eq_class, task.role), []).append(task)
    return [task for group in groups.values() for task in group]


def _runs(tasks: Sequence[Task]) -> Iterator[tuple[EquivalenceClass, list[Task]]]:
    for (eq_class, _), run in groupby(tasks, key=lambda task: (task.eq_class, task.role)):
        yield eq_class, list(run)
