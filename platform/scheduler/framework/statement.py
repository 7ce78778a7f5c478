"""Statements: all-or-nothing attempts to schedule a gang."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Protocol, Self

from ..plugins.extension_points import NOT_ENOUGH_RESOURCES, UNSUPPORTED_FIELD, Rejection
from ..state.diagnosis import Diagnosis, FitError, NodeFit, Stage
from ..state.equivalence import EquivalenceClass
from ..state.gangs import Gang, QueueInfo, Task, add_amounts
from .placer import Placer
from .pod_aware_placer import PodAwarePlacer


class SessionView(Protocol):
    """What a statement needs of its session."""

    def placer(self, eq_class: EquivalenceClass) -> Placer | PodAwarePlacer:
        """Return the placer of *eq_class* in this session."""
        ...

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* the queue may allocate."""
        ...

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection | None:
        """Return why the queue allocates no more pods of *eq_class*, or ``None`` if it does."""
        ...

    def pvc_rejection(self, task: Task) -> str:
        """Return which PVC blocks *task* and why; empty if none does."""
        ...

    def explain(self, eq_class: EquivalenceClass) -> NodeFit:
        """Return why no node fits another pod of *eq_class*."""
        ...


class MissingMembers:
    """The members that a gang needs to be ready, counted down as tasks are allocated."""

    def __init__(self, gang: Gang) -> None:
        """Count the members that *gang* needs beyond its ready ones."""
        self.total = max(gang.min_member - gang.counts.ready, 0)
        self.by_role: dict[str, int] = {}
        for role, minimum in gang.role_minima.items():
            if minimum > gang.role_counts(role).ready:
                self.by_role[role] = minimum - gang.role_counts(role).ready

    @property
    def satisfied(self) -> bool:
        """Whether no member is missing."""
        return not self.total and not self.by_role

    def needed(self, role: str, available: int) -> int:
        """Return how many of *available* tasks of *role* are needed for the gang to be ready."""
        own = self.by_role.get(role, 0)
        others = len(self.by_role) - (role in self.by_role)
        return available if others else min(max(self.total, own), available)

    def consume(self, role: str, count: int) -> None:
        """Count *count* tasks of *role* as allocated."""
        self.total = max(self.total - count, 0)
        left = self.by_role.pop(role, 0) - count
        if left > 0:
            self.by_role[role] = left

    def is_satisfiable(self, rest: Sequence[Task]) -> bool:
        """Return whether *rest* has enough tasks of each role, and in total."""
        available: dict[str, int] = {}
        for task in rest:
            available[task.role] = available.get(task.role, 0) + 1
        return len(rest) >= self.total and all(
            available.get(role, 0) >= count for role, count in self.by_role.items()
        )


@dataclass(slots=True)
class AllocatedBatch:
    """Tasks of one equivalence class, and the nodes that they are allocated on."""

    eq_class: EquivalenceClass
    tasks: list[Task]
    node_indexes: list[int]


class Statement:
    """An attempt to schedule tasks of one gang.

    A context manager: allocations that are not committed are discarded at its end, also if a
    plugin raises (:class:`~.plugin_calls.PluginError`).
    """

    def __init__(self, session: SessionView, gang: Gang, queue: QueueInfo) -> None:
        """Start without allocations."""
        self.fit_errors: dict[str, FitError] = {}
        self._failed: set[str | EquivalenceClass] = set()
        self._blocked: set[str] = set()
        self._reason = NOT_ENOUGH_RESOURCES
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
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    @property
    def allocations(self) -> Iterator[tuple[Task, int]]:
        """The allocated tasks with their nodes."""
        for batch in self._batches:
            yield from zip(batch.tasks, batch.node_indexes, strict=True)

    def allocated_uids(self) -> set[str]:
        """Return the uids of the allocated tasks."""
        return {task.uid for task, _ in self.allocations}

    def allocate_minimum(self, tasks: Sequence[Task], missing: MissingMembers) -> None:
        """Allocate tasks in order until *missing* is satisfied or cannot be satisfied."""
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
        """Allocate up to *at_most* further tasks of a ready gang; returns how many."""
        allocated = 0
        for eq_class, run in _runs(self._unblocked(tasks)):
            if allocated == at_most:
                break
            if not self.has_failed(run[0]):
                run = run[: at_most - allocated]
                possible = self._allocatable_count(eq_class, run)
                self._allocate(eq_class, run[:possible])
                allocated += possible
        return allocated

    def has_failed(self, task: Task) -> bool:
        """Return whether *task* is blocked on its own, or a task of its role did not fit.

        Tasks without a role are compared by equivalence class.
        """
        return task.uid in self._blocked or (task.role or task.eq_class) in self._failed

    def commit(self) -> list[tuple[Task, int]]:
        """Keep and return the allocations; the caller counts them in the gang and the queue."""
        allocations = list(self.allocations)
        self._subtract_from_queue()
        self._batches = []
        return allocations

    def discard(self) -> None:
        """Roll back the allocations."""
        self._subtract_from_queue()
        for batch in self._batches:
            self._session.placer(batch.eq_class).rollback(batch.node_indexes)
        self._batches = []

    def diagnosis(self) -> Diagnosis:
        """Return why tasks did not fit, and which did; to be called before :meth:`discard`."""
        fitting = frozenset(self.allocated_uids()).union(self._fitting_uids)
        return Diagnosis(self._reason, "", dict(self.fit_errors), fitting)

    # -- private -------------------------------------------------------------------------------

    def _allocate_run(
        self,
        eq_class: EquivalenceClass,
        run: list[Task],
        missing: MissingMembers,
        rest: Sequence[Task],
    ) -> bool:
        """Allocate what is needed of *run*; returns ``False`` if the gang cannot become ready."""
        desired = run[: missing.needed(run[0].role, len(run))]
        possible = self._allocatable_count(eq_class, desired)
        missing.consume(run[0].role, possible)
        if possible < len(desired) and not missing.is_satisfiable(self._remaining(rest)):
            self._fitting_uids = [task.uid for task in desired[:possible]]
            return False
        self._allocate(eq_class, desired[:possible])
        return True

    def _allocatable_count(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Return how many of *tasks* fit queue and nodes; records the first that does not fit."""
        allowed = len(tasks)
        if not self._gang.single and not eq_class.best_effort:
            allowed = min(allowed, self._session.allocatable_count(self._queue, eq_class))
        capacity = self._session.placer(eq_class).capacity(allowed)
        possible = min(allowed, capacity)
        if possible < len(tasks):
            # The fit error is computed with the fitting tasks counted as allocated.
            add_amounts(self._queue.allocated, eq_class.request, possible)
            try:
                self._record_fit_error(eq_class, tasks[possible], limited=allowed < capacity)
            finally:
                add_amounts(self._queue.allocated, eq_class.request, -possible)
        return possible

    def _allocate(self, eq_class: EquivalenceClass, tasks: list[Task]) -> None:
        if tasks:
            node_indexes = self._session.placer(eq_class).allocate(len(tasks))
            self._batches.append(AllocatedBatch(eq_class, tasks, node_indexes))
            add_amounts(self._queue.allocated, eq_class.request, len(node_indexes))

    def _record_fit_error(self, eq_class: EquivalenceClass, task: Task, *, limited: bool) -> None:
        rejection = self._session.queue_rejection(self._queue, eq_class) if limited else None
        if rejection:
            fit_error = FitError(
                task.name,
                task.uid,
                rejection.message,
                rejection.stage,
                shortages=rejection.shortages,
            )
        else:
            fit = self._session.explain(eq_class)
            fit_error = FitError(task.name, task.uid, fit.message, nodes=fit)
        self._failed.add(task.role or task.eq_class)
        self.fit_errors.setdefault(task.role, fit_error)

    def _unblocked(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks without unsupported fields that no PVC blocks.

        Records a fit error for the others.
        """
        if not any(task.pvcs or task.eq_class.unsupported_fields for task in tasks):
            return tasks
        unblocked = []
        for task in tasks:
            unsupported = task.unsupported_message()
            if unsupported:
                self._reason = UNSUPPORTED_FIELD
            if message := unsupported or self._session.pvc_rejection(task):
                self._blocked.add(task.uid)
                fit_error = FitError(task.name, task.uid, message, Stage.POD)
                self.fit_errors.setdefault(task.role, fit_error)
            else:
                unblocked.append(task)
        return unblocked

    def _remaining(self, rest: Sequence[Task]) -> list[Task]:
        return [task for task in rest if not self.has_failed(task)]

    def _subtract_from_queue(self) -> None:
        for batch in self._batches:
            add_amounts(self._queue.allocated, batch.eq_class.request, -len(batch.node_indexes))


def _grouped(tasks: Sequence[Task]) -> list[Task]:
    """Return *tasks* grouped by equivalence class and role, to allocate each group at once.

    For use when all are needed, so that their order has no effect.
    """
    groups: dict[tuple[EquivalenceClass, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.eq_class, task.role), []).append(task)
    return [task for group in groups.values() for task in group]


def _runs(tasks: Sequence[Task]) -> Iterator[tuple[EquivalenceClass, list[Task]]]:
    for (eq_class, _), run in groupby(tasks, key=lambda task: (task.eq_class, task.role)):
        yield eq_class, list(run)
