"""The session of one scheduling cycle: what actions read, and how they decide.

The actions run in order, and each sees the effects of those before it. A session does no I/O, reads
no clock and uses no randomness, so the same cache always leads to the same decision.
"""

from collections.abc import Callable
from functools import partial

from ..plugins.extension_points import AllocatablePlugin, Allocation, AllocationListener, Rejection
from ..state.cache import SchedulerCache
from ..state.diagnosis import Diagnosis, NodeFit
from ..state.equivalence import EquivalenceClass
from ..state.gangs import Gang, QueueInfo, Task, sorted_tasks
from ..state.resources import MAX_AMOUNT
from .decision import GangRef, Placement, UngatedPod
from .explain import explain
from .feasibility import FeasibilityCache
from .framework import Framework
from .placer import Placer
from .plugin_calls import PLUGIN_ERROR, PluginCalls, PluginError, order_key
from .statement import Operation, Statement, undo_operation

SortKey = tuple[float | str | tuple[float, ...], ...]


class Session:
    """The scheduler cache and the plugins, for the actions of one cycle."""

    def __init__(
        self,
        cache: SchedulerCache,
        framework: Framework,
        feasibility: FeasibilityCache,
        *,
        has_enqueue_action: bool,
    ) -> None:
        """Open the session: each plugin computes what it needs from *cache*.

        *has_enqueue_action* is whether the ``enqueue`` action is configured; without it,
        ``allocate`` admits gangs.
        """
        self.cache = cache
        self.has_enqueue_action = has_enqueue_action
        self.placements: list[Placement] = []
        self.enqueued: list[Gang] = []
        self.evicted: list[Task] = []
        """Tasks that were evicted by a committed statement."""
        self.ungated: list[UngatedPod] = []
        self.ungated_gangs: list[Gang] = []
        self.scheduled = 0
        self.rejected = 0
        self._framework = framework
        self._feasibility = feasibility
        self._placers: dict[EquivalenceClass, Placer] = {}
        self._explanations: dict[EquivalenceClass, tuple[int, NodeFit]] = {}
        self._placer_errors: dict[EquivalenceClass, PluginError] = {}
        self.calls = calls = PluginCalls(framework.plugin_names)
        cache.node_matrix.add_missing_rows()
        for plugin in framework.session_open:
            calls.open(plugin, partial(plugin.on_session_open, cache))
        self._job_order = calls.opened(framework.job_order)
        self._queue_order = calls.opened(framework.queue_order)
        self._listeners = calls.opened(framework.allocation_listeners)
        self._pipelined: list[Operation] = []
        self._task_order = calls.opened(framework.task_order)

    # -- order ---------------------------------------------------------------------------------

    def job_order(self, gang: Gang) -> SortKey:
        """Return the sort key of *gang* within its queue; the smallest is first."""
        plugins = self._job_order
        try:
            keys = [float(plugin.job_order(gang)) for plugin in plugins]
        except Exception:  # the calls are guarded only then, since there may be many
            order = self.calls.order
            keys = [order(p, "job_order", partial(p.job_order, gang)) for p in plugins]
        return (*keys, gang.created, gang.key)

    def queue_order(self, queue: QueueInfo) -> SortKey:
        """Return the sort key of *queue*; the smallest is first."""
        plugins = self._queue_order
        try:
            keys = [order_key(plugin.queue_order(queue)) for plugin in plugins]
        except Exception:
            keys = [
                self.calls.order_key(each, "queue_order", partial(each.queue_order, queue))
                for each in plugins
            ]
        created = queue.object.metadata.creation_timestamp if queue.object else ""
        return (*keys, created or "", queue.name)

    def tasks(self, gang: Gang, *, gated_by_queue: bool = False) -> list[Task]:
        """Return the pending tasks of *gang* in order, best-effort tasks last.

        With *gated_by_queue*, return its tasks with a queue gate instead.
        """
        plugins = self._task_order
        tasks = (gang.gated_by_queue if gated_by_queue else gang.pending_tasks).values()
        try:
            return sorted_tasks(tasks, lambda task: tuple(p.task_order(task) for p in plugins))
        except Exception:
            return sorted_tasks(tasks, self._guarded_task_order)

    def _guarded_task_order(self, task: Task) -> tuple[float, ...]:
        return tuple(
            self.calls.order(plugin, "task_order", partial(plugin.task_order, task))
            for plugin in self._task_order
        )

    # -- limits --------------------------------------------------------------------------------

    def job_enqueueable(self, gang: Gang) -> Rejection | None:
        """Return why *gang* is not admitted to its queue, or ``None`` if it is.

        If a plugin of a tier permits and none rejects, later tiers are not asked.
        """
        for tier in self._framework.job_enqueueable:
            try:
                votes = [
                    self.calls.call(
                        plugin, "job_enqueueable", partial(plugin.job_enqueueable, gang)
                    )
                    for plugin in tier
                ]
            except PluginError as error:
                return self.calls.record(error)
            for vote in votes:
                if isinstance(vote, Rejection):
                    return vote
            if any(votes):
                return None
        return None

    def enqueue(self, gang: Gang) -> None:
        """Admit *gang* to its queue, or reject it if a plugin that counts admitted gangs raises."""
        try:
            for tier in self._framework.job_enqueueable:
                for plugin in tier:
                    self.calls.call(plugin, "job_enqueued", partial(plugin.job_enqueued, gang))
        except PluginError as error:
            self.reject_failed(gang, error)
            return
        gang.diagnosis = None
        self.cache.mark_enqueued(gang)
        self.enqueued.append(gang)

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Return why *gang* cannot be scheduled even on idle nodes, or ``None``."""
        for plugin in self._framework.job_valid:
            try:
                vote = partial(_vote, plugin.job_valid, gang)
                rejection = self.calls.call(plugin, "job_valid", vote)
            except PluginError as error:
                return self.calls.record(error)
            if rejection:
                return rejection
        return None

    def overused(self, queue: QueueInfo) -> bool:
        """Return whether *queue* gets no more in this cycle.

        Raises:
            PluginError: a plugin raised.
        """
        return any(
            self.calls.call(plugin, "overused", partial(plugin.overused, queue))
            for plugin in self._framework.overused
        )

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* the queue may allocate.

        Raises:
            PluginError: a plugin raised.
        """
        counts = (
            self._allocatable_count(each, queue, eq_class) for each in self._framework.allocatable
        )
        return min(counts, default=MAX_AMOUNT)

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection | None:
        """Return why *queue* allocates no more pods of *eq_class*, or ``None`` if it does.

        Raises:
            PluginError: a plugin raised.
        """
        for plugin in self._framework.allocatable:
            if self._allocatable_count(plugin, queue, eq_class) < 1:
                function = partial(_limit, plugin.queue_rejection, queue, eq_class)
                return self.calls.call(plugin, "queue_rejection", function)
        return None

    def _allocatable_count(
        self, plugin: AllocatablePlugin, queue: QueueInfo, eq_class: EquivalenceClass
    ) -> int:
        return self.calls.call(
            plugin, "allocatable_count", lambda: int(plugin.allocatable_count(queue, eq_class))
        )

    # -- placement -----------------------------------------------------------------------------

    def placer(self, eq_class: EquivalenceClass) -> Placer:
        """Return the placer of *eq_class*, created on first use.

        Raises:
            PluginError: a filter or limit raised.
        """
        placer = self._placers.get(eq_class)
        if placer is None:
            if eq_class in self._placer_errors:
                raise self._placer_errors[eq_class].with_traceback(None)
            try:
                placer = self._placers[eq_class] = self._new_placer(eq_class)
            except PluginError as error:
                self._placer_errors[eq_class] = error
                raise
        return placer

    def _new_placer(self, eq_class: EquivalenceClass) -> Placer:
        framework, calls = self._framework, self.calls
        calls.require_open((*framework.filters, *framework.node_limits))
        return Placer(
            self.cache.node_matrix,
            eq_class,
            self._feasibility.get(eq_class),
            limits=framework.node_limits,
            scorers=calls.opened(framework.scorers),
            node_scorers=calls.opened(framework.node_scorers),
            static_scorers=calls.opened(framework.static_scorers),
            on_score_error=calls.record,
        )

    def pvc_rejection(self, task: Task) -> str:
        """Return which PVC blocks *task* and why; empty if none does."""
        return self.cache.pvcs.blocking_reason(task)

    def explain(self, eq_class: EquivalenceClass) -> NodeFit:
        """Return why no node fits another pod of *eq_class*."""
        position = self.cache.node_matrix.usage_changes.position
        known = self._explanations.get(eq_class)
        if known is None or known[0] != position:
            fit = explain(
                self.cache.node_matrix, self._feasibility, eq_class, self._framework.node_limits
            )
            known = self._explanations[eq_class] = (position, fit)
        return known[1]

    def statement(self, gang: Gang) -> Statement:
        """Return a new statement for *gang*."""
        return Statement(self, gang, self.cache.queue_of(gang))

    def can_skip(self, gang: Gang) -> bool:
        """Return whether *gang* was rejected and no relevant event has been applied since."""
        return gang.last_attempt == (self.cache.capacity_generation, gang.version)

    def commit(self, gang: Gang, statement: Statement) -> None:
        """Commit *statement*: assume its placements."""
        committed = statement.commit()
        gang.diagnosis = None
        self.scheduled += 1
        for change in committed.allocated:
            self.cache.assume(change.gang, change.tasks)
            gang_ref = None if gang.single else GangRef(gang.key, gang.podgroup)
            self.placements += [
                Placement(task.namespace, task.name, task.uid, task.node, gang_ref)
                for task in change.tasks
            ]
        for task in committed.evicted:
            self.cache.assume_evicted(task)
        self.evicted += committed.evicted
        self._pipelined += committed.pipelined
        self.cache.refresh()

    @property
    def pipelined(self) -> list[tuple[Task, int]]:
        """The tasks that wait for resources by a committed statement, with their nodes."""
        return [
            pair
            for each in self._pipelined
            for pair in zip(each.change.tasks, each.change.node_indexes, strict=True)
        ]

    def close(self) -> None:
        """End the session: tasks that wait for resources are pending again."""
        while self._pipelined:
            operation = self._pipelined.pop()
            self.revert_listeners(operation.change, allocated=False)
            undo_operation(self.cache, operation, committed=True)

    # -- listeners -----------------------------------------------------------------------------

    def notify_listeners(self, change: Allocation, *, allocated: bool) -> None:
        """Call the listeners: *change* is allocated, or else deallocated.

        Raises:
            PluginError: one raised; the opposite is reported to those before it.
        """
        for position, plugin in enumerate(self._listeners):
            point = "allocated" if allocated else "deallocated"
            function = partial(plugin.allocated if allocated else plugin.deallocated, change)
            try:
                self.calls.call(plugin, point, function)
            except PluginError:
                self._call_listeners(self._listeners[:position], change, allocated=not allocated)
                raise

    def revert_listeners(self, change: Allocation, *, allocated: bool) -> None:
        """Call the listeners for an operation that is undone, so that *change* is allocated or
        not."""
        self._call_listeners(self._listeners, change, allocated=allocated)

    def _call_listeners(
        self, listeners: list[AllocationListener], change: Allocation, *, allocated: bool
    ) -> None:
        """Call *listeners* in reverse order; one that raises is recorded only."""
        for plugin in reversed(listeners):
            point = "allocated" if allocated else "deallocated"
            function = partial(plugin.allocated if allocated else plugin.deallocated, change)
            try:
                self.calls.call(plugin, point, function)
            except PluginError as error:
                self.calls.record(error)

    # -- results -------------------------------------------------------------------------------

    def remove_gates(self, gang: Gang, tasks: list[Task]) -> None:
        """Remove the queue gate of *tasks* of *gang*."""
        gang.diagnosis = None
        self.cache.mark_ungated(gang, tasks)
        self.ungated += [UngatedPod(task.namespace, task.name, task.uid) for task in tasks]
        self.ungated_gangs.append(gang)

    def reject_failed(self, gang: Gang, error: PluginError) -> None:
        """Record that *gang* is unschedulable because a plugin raised."""
        rejection = self.calls.record(error)
        self.reject(gang, rejection.diagnosis())

    def reject(self, gang: Gang, diagnosis: Diagnosis) -> None:
        """Record why *gang*, or what is left of it, is unschedulable.

        It is skipped until something changes, unless a plugin raised: no event marks the
        end of that.
        """
        if diagnosis.reason != PLUGIN_ERROR:
            gang.last_attempt = (self.cache.capacity_generation, gang.version)
        self.rejected += 1
        if gang.diagnosis != diagnosis:
            gang.diagnosis = diagnosis
            self.cache.mark_changed(gang)


def _vote(function: Callable[[Gang], object], gang: Gang) -> Rejection | None:
    """Return the result of *function*, a method of a plugin."""
    result = function(gang)
    return None if result is None else _rejection(result)


def _limit(
    function: Callable[[QueueInfo, EquivalenceClass], object],
    queue: QueueInfo,
    eq_class: EquivalenceClass,
) -> Rejection:
    """Return the result of *function*, a method of a plugin."""
    return _rejection(function(queue, eq_class))


def _rejection(result: object) -> Rejection:
    if not isinstance(result, Rejection):
        raise TypeError(f"Rejection expected, not {type(result).__name__}")
    return result
