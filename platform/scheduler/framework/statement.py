"""Statements: all-or-nothing attempts to schedule a gang."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from ..plugins.extension_points import (
    NOT_ENOUGH_RESOURCES,
    UNSUPPORTED_FIELD,
    Allocation,
)
from ..plugins.placement import GangRef, Placement
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Diagnosis, FitError, Stage
from ..state.gangs.gang import Gang, QueueInfo, Task, TaskStatus
from ..state.podinfo.equivalence import EquivalenceClass
from .affinity_order import in_affinity_order
from .domain_allocation import DomainAllocation
from .missing_members import MissingMembers
from .placer import Placer
from .plugin_calls import PluginError
from .pod_aware_placer import PodAwarePlacer
from .session_view import SessionView
from .sub_group_allocation import SubGroupAllocation
from .task_runs import grouped, runs
from .unfit_tasks import ClassCapacity, FailureKey, Failures, UnfitTasks


class OperationKind(Enum):
    """What an operation of a statement does."""

    ALLOCATE = "allocate"
    PIPELINE = "pipeline"
    EVICT = "evict"


@dataclass(slots=True)
class Operation:
    """An operation that is in effect: tasks of one gang and one equivalence class."""

    kind: OperationKind
    change: Allocation
    before: TaskStatus
    """Status of the tasks before it."""

    placer: Placer | PodAwarePlacer | None = None
    """The placer that chose the nodes, if any."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The operations of a committed statement, by kind."""

    allocated: tuple[Allocation, ...]
    pipelined: tuple[Operation, ...]
    evicted: tuple[Task, ...]


class Statement:
    """An attempt to schedule tasks of one gang: a journal of operations that can be undone.

    An operation takes effect at once: on the nodes, the tasks, their gang and its queue, and on
    the plugins that listen to allocations. All amounts are integers, so its inverse restores
    each of them exactly.

    A context manager: operations that are not committed are undone at its end, also if a plugin
    raises (:class:`~.plugin_calls.PluginError`).
    """

    def __init__(self, session: SessionView, gang: Gang, queue: QueueInfo) -> None:
        """Start without operations."""
        self.fit_errors: dict[str, FitError] = {}
        self.unfit = UnfitTasks()
        self._failed: set[FailureKey] = set()
        self._reason = NOT_ENOUGH_RESOURCES
        self._session = session
        self._cache = session.cache
        self._gang = gang
        self._queue = queue
        self._operations: list[Operation] = []
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
    def operations(self) -> Sequence[Operation]:
        """The operations in effect, in order."""
        return self._operations

    def allocated_uids(self) -> set[str]:
        """Return the uids of the allocated tasks."""
        return {
            task.uid
            for each in self._operations
            if each.kind is OperationKind.ALLOCATE
            for task in each.change.tasks
        }

    def placements(self) -> list[Placement]:
        """Return the nodes of the allocated tasks that have pods."""
        gang = self._gang
        gang_ref = None if gang.single else GangRef(gang.key, gang.podgroup)
        return [
            Placement(
                task.namespace,
                task.name,
                task.uid,
                task.node,
                gang_ref,
                self._cache.node_matrix.node_infos[task.node_index],
                task.eq_class.fields,
            )
            for each in self._operations
            if each.kind is OperationKind.ALLOCATE
            for task in each.change.tasks
            if not task.planned
        ]

    # -- operations ----------------------------------------------------------------------------

    def allocate(self, tasks: Sequence[Task], node_indexes: Sequence[int]) -> None:
        """Allocate pending *tasks* of one gang and class on idle resources of *node_indexes*.

        Raises:
            PluginError: a listener raised; the operation has no effect.
        """
        if tasks:
            change = self._allocation(tasks, node_indexes)
            self._cache.node_matrix.occupy(change.eq_class, node_indexes)
            self._apply(Operation(OperationKind.ALLOCATE, change, TaskStatus.PENDING))

    def pipeline(self, tasks: Sequence[Task], node_indexes: Sequence[int]) -> None:
        """Allocate pending *tasks* of one gang and class on resources of *node_indexes* that are
        about to be free.

        Raises:
            PluginError: a listener raised; the operation has no effect.
        """
        if tasks:
            change = self._allocation(tasks, node_indexes)
            matrix = self._cache.node_matrix
            matrix.add_pipelined(change.eq_class, node_indexes)
            matrix.add_occupancy(change.eq_class, node_indexes, 1)
            self._apply(Operation(OperationKind.PIPELINE, change, TaskStatus.PENDING))

    def evict(self, task: Task) -> None:
        """Release the resources of *task*, which is bound or running.

        Raises:
            PluginError: a listener raised; the operation has no effect.
        """
        change = self._allocation((task,), (task.node_index,))
        matrix = self._cache.node_matrix
        matrix.add_releasing(change.eq_class, change.node_indexes)
        matrix.add_occupancy(change.eq_class, change.node_indexes, -1)
        self._apply(Operation(OperationKind.EVICT, change, task.status))

    def try_without_eviction(self, task: Task, is_valid: Callable[[], bool]) -> bool:
        """Undo the eviction of *task* if *is_valid* returns true then; returns whether it does.

        Raises:
            PluginError: a plugin raised; the eviction is undone.
        """
        position = next(
            position
            for position, each in enumerate(self._operations)
            if each.kind is OperationKind.EVICT and task in each.change.tasks
        )
        self._undo(self._operations.pop(position))
        if is_valid():
            return True
        self.evict(task)
        self._operations.insert(position, self._operations.pop())
        return False

    def redo(self, operations: Iterable[Operation]) -> None:
        """Evict and pipeline again what was undone.

        Raises:
            PluginError: a listener raised; the operation has no effect.
        """
        for each in operations:
            if each.kind is OperationKind.EVICT:
                for task in each.change.tasks:
                    self.evict(task)
            else:
                self.pipeline(each.change.tasks, each.change.node_indexes)

    def savepoint(self) -> int:
        """Return a point to which :meth:`rollback_to` returns."""
        return len(self._operations)

    def rollback_to(self, savepoint: int) -> None:
        """Undo the operations after *savepoint*, the last one first."""
        while len(self._operations) > savepoint:
            self._undo(self._operations.pop())

    def discard(self) -> None:
        """Undo all operations."""
        self.rollback_to(0)

    def commit(self) -> Committed:
        """Keep the operations; called by the session only.

        Evicted pods are still on their nodes from now on. Waiting pods count there, too, until the
        session is closed: so no other pod gets a node on which filters would exclude it because of
        them.
        """
        operations, self._operations = self._operations, []
        by_kind: dict[OperationKind, list[Operation]] = {kind: [] for kind in OperationKind}
        for each in operations:
            by_kind[each.kind].append(each)
            if each.kind is OperationKind.EVICT:
                change = each.change
                self._cache.node_matrix.add_occupancy(change.eq_class, change.node_indexes, 1)
        return Committed(
            tuple(each.change for each in by_kind[OperationKind.ALLOCATE]),
            tuple(by_kind[OperationKind.PIPELINE]),
            tuple(task for each in by_kind[OperationKind.EVICT] for task in each.change.tasks),
        )

    # -- gangs ---------------------------------------------------------------------------------

    def allocate_minimum(self, tasks: Sequence[Task], missing: MissingMembers) -> None:
        """Allocate tasks in order until *missing* is satisfied or cannot be satisfied; on the nodes
        that are kept for the gang if all of them fit there."""
        kept = self._session.kept_nodes(self._gang)
        if kept is not None:
            start, before, failures = self.savepoint(), missing.copy(), self.failures()
            with self._session.within(kept):
                self._allocate_minimum(tasks, missing)
            if missing.satisfied:
                return
            self.rollback_to(start)
            missing.set_to(before)
            self.set_failures(failures)
        self._allocate_minimum(tasks, missing)

    def _allocate_minimum(self, tasks: Sequence[Task], missing: MissingMembers) -> None:
        """With a constraint on the network between the pods, all go into one domain."""
        has_topology = self._gang.topology is not None
        domains = self._session.domains_of(self._gang) if has_topology else None
        if domains is None:
            self.try_minimum(tasks, missing)
        elif not missing.satisfied:
            allocation = DomainAllocation(self, self._session, self._gang)
            allocation.allocate_minimum(domains, self._unblocked(tasks), missing)

    def try_minimum(self, tasks: Sequence[Task], missing: MissingMembers) -> None:
        """Allocate tasks in order until *missing* is satisfied or cannot be satisfied, on the nodes
        that may be used now."""
        tasks = self._unblocked(tasks)
        if self.unfit.blocked and not missing.is_satisfiable(tasks):
            return
        if self._gang.sub_groups is not None:
            SubGroupAllocation(self, self._session, self._gang).try_minimum(tasks, missing)
            return
        order = in_affinity_order(grouped(tasks) if missing.total >= len(tasks) else tasks)
        done = 0
        for eq_class, run in runs(order):
            done += len(run)
            if missing.satisfied:
                return
            if self.has_failed(run[0]):
                continue
            if not self._allocate_run(eq_class, run, missing, rest=order[done:]):
                return

    def allocate_extra(self, tasks: Sequence[Task], at_most: int) -> int:
        """Allocate up to *at_most* further tasks of a ready gang; returns how many."""
        if self._gang.sub_groups is not None:
            extra = SubGroupAllocation(self, self._session, self._gang)
            return extra.allocate_extra(self._unblocked(tasks), at_most)
        if self._gang.topology is None or self._session.domains_of(self._gang) is None:
            return self.try_extra(tasks, at_most)
        allocation = DomainAllocation(self, self._session, self._gang)
        return allocation.allocate_extra(self._unblocked(tasks), at_most)

    def try_extra(self, tasks: Sequence[Task], at_most: int) -> int:
        """Allocate up to *at_most* further tasks on the nodes that may be used now; returns how
        many."""
        allocated = 0
        for eq_class, run in runs(in_affinity_order(self._unblocked(tasks))):
            if allocated == at_most:
                break
            if not self.has_failed(run[0]):
                run = run[: at_most - allocated]
                possible = self.fitting_count(eq_class, run)
                self.allocate_best(run[:possible])
                allocated += possible
        return allocated

    def failures(self) -> Failures:
        """Return which tasks did not fit, and why."""
        return Failures(
            dict(self.fit_errors),
            frozenset(self._failed),
            frozenset(self.unfit.failed),
            tuple(self._fitting_uids),
        )

    def set_failures(self, failures: Failures) -> None:
        """Forget which tasks did not fit since *failures* were returned."""
        self.fit_errors, self._failed = dict(failures.fit_errors), set(failures.roles)
        self.unfit.failed = set(failures.classes)
        self._fitting_uids = list(failures.fitting_uids)

    def add_failure(self, task: Task, error: FitError) -> None:
        """Record that *task* does not fit because of *error*."""
        self.unfit.failed.add(task.eq_class)
        self._failed.add(_failure_key(task))
        self.fit_errors.setdefault(task.role, error)

    def has_failed(self, task: Task) -> bool:
        """Return whether *task* is blocked, or another task of its sub-group did not fit; of its
        role, if it is in none.

        Tasks without a role are compared by equivalence class.
        """
        return task.uid in self.unfit.blocked or _failure_key(task) in self._failed

    def diagnosis(self) -> Diagnosis:
        """Return why tasks did not fit, and which did; to be called before :meth:`discard`."""
        fitting = frozenset(self.allocated_uids()).union(self._fitting_uids)
        return Diagnosis(self._reason, "", dict(self.fit_errors), fitting)

    def fitting_count(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Return how many of *tasks* fit queue and nodes; records the first that does not fit."""
        allowed = len(tasks)
        if not self._gang.single and (not eq_class.best_effort or eq_class.devices.pending):
            allowed = min(allowed, self._session.allocatable_count(self._queue, eq_class))
        placer = self._session.placer(eq_class)
        capacity = placer.capacity(len(tasks))
        possible = min(allowed, capacity)
        if not self._operations and not self._session.is_restricted:
            self.unfit.capacities[eq_class] = _class_capacity(placer, eq_class, capacity)
        if possible < len(tasks):
            self.unfit.failed.add(eq_class)
            if allowed < len(tasks):
                self.unfit.limits[eq_class] = self._session.limit_events(self._queue)
            # The fit error is computed with the fitting tasks counted as allocated.
            with self._session.counted(self._queue, eq_class, possible):
                self._record_fit_error(eq_class, tasks[possible], limited=allowed < capacity)
        return possible

    def allocate_best(self, tasks: Sequence[Task]) -> None:
        """Allocate *tasks* on the nodes that the placer chooses."""
        if tasks:
            placer = self._session.placer(tasks[0].eq_class)
            node_indexes = placer.allocate(len(tasks))
            if tasks[0].planned:
                node_indexes = sorted(node_indexes)  # so that the plan has long runs
            change = self._allocation(tasks, node_indexes)
            self._apply(Operation(OperationKind.ALLOCATE, change, TaskStatus.PENDING, placer))

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
        possible = self.fitting_count(eq_class, desired)
        missing.consume(run[0].role, possible)
        if possible < len(desired) and not missing.is_satisfiable(self._remaining(rest)):
            self._fitting_uids = [task.uid for task in desired[:possible]]
            return False
        self.allocate_best(desired[:possible])
        return True

    def _allocation(self, tasks: Sequence[Task], node_indexes: Sequence[int]) -> Allocation:
        gang, eq_class = tasks[0].gang or self._gang, tasks[0].eq_class
        queue = self._queue if gang is self._gang else self._cache.queues.of(gang)
        return Allocation(gang, queue, eq_class, tasks, node_indexes)

    def _apply(self, operation: Operation) -> None:
        """Count *operation*, which is in effect on the nodes, everywhere else, and record it."""
        gang, tasks = operation.change.gang, operation.change.tasks
        match operation.kind:
            case OperationKind.EVICT:
                self._cache.set_task_statuses(gang, tasks, TaskStatus.RELEASING)
            case OperationKind.ALLOCATE:
                self._place(operation, TaskStatus.ALLOCATED)
            case OperationKind.PIPELINE:
                self._place(operation, TaskStatus.PIPELINED)
        try:
            self._session.notify_listeners(
                operation.change, allocated=operation.kind is not OperationKind.EVICT
            )
        except PluginError:
            self._undo_on_nodes(operation)
            raise
        self._operations.append(operation)

    def _place(self, operation: Operation, status: TaskStatus) -> None:
        change = operation.change
        self._cache.place_tasks(change.gang, change.tasks, change.node_indexes, status)

    def _undo(self, operation: Operation) -> None:
        is_evict = operation.kind is OperationKind.EVICT
        self._session.revert_listeners(operation.change, allocated=is_evict)
        self._undo_on_nodes(operation)

    def _undo_on_nodes(self, operation: Operation) -> None:
        undo_operation(self._cache, operation)

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
        if rejection and rejection.wake_on is not None:
            self.unfit.limits[eq_class] = rejection.wake_on
        self._failed.add(_failure_key(task))
        self.fit_errors.setdefault(task.role, fit_error)

    def _unblocked(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks without unsupported fields that no claim blocks.

        Records a fit error for the others.
        """
        if not any(
            task.pvcs or task.device_claims or task.eq_class.unsupported_fields for task in tasks
        ):
            return tasks
        unblocked = []
        for task in tasks:
            unsupported = task.unsupported_message()
            if unsupported:
                self._reason = UNSUPPORTED_FIELD
            if message := unsupported or self._session.claim_rejection(task):
                self.unfit.blocked.add(task.uid)
                fit_error = FitError(task.name, task.uid, message, Stage.POD)
                self.fit_errors.setdefault(task.role, fit_error)
            else:
                unblocked.append(task)
        return unblocked

    def _remaining(self, rest: Sequence[Task]) -> list[Task]:
        return [task for task in rest if not self.has_failed(task)]


def undo_operation(cache: SchedulerCache, operation: Operation) -> None:
    """Undo *operation* on nodes, tasks, gang and queue."""
    change, matrix = operation.change, cache.node_matrix
    eq_class, node_indexes = change.eq_class, change.node_indexes
    match operation.kind:
        case OperationKind.EVICT:
            cache.set_task_statuses(change.gang, change.tasks, operation.before)
            matrix.add_releasing(eq_class, node_indexes, -1)
            matrix.add_occupancy(eq_class, node_indexes, 1)
            return
        case OperationKind.PIPELINE:
            matrix.add_pipelined(eq_class, node_indexes, -1)
            matrix.add_occupancy(eq_class, node_indexes, -1)
        case OperationKind.ALLOCATE if operation.placer is not None:
            operation.placer.rollback(node_indexes)
        case OperationKind.ALLOCATE:
            matrix.vacate(eq_class, node_indexes)
    cache.unplace_tasks(change.gang, change.tasks)


def _failure_key(task: Task) -> FailureKey:
    return task.sub_group or task.role or task.eq_class


def _class_capacity(
    placer: Placer | PodAwarePlacer, eq_class: EquivalenceClass, count: int
) -> ClassCapacity:
    if isinstance(placer, PodAwarePlacer):
        return ClassCapacity(count, is_exact=False, sees_pods=True)
    return ClassCapacity(count, is_exact=not placer.limited)
