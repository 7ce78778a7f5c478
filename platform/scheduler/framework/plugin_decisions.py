"""What the plugins of a session decide together: orders, and limits of gangs and queues."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial

from ..plugins.extension_points import (
    UNSUPPORTED_FIELD,
    Allocation,
    QueueLimitPlugin,
    Rejection,
    SessionPlugin,
    has_method,
)
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang, QueueInfo, Task, add_amounts, sorted_tasks
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import MAX_AMOUNT
from .device_quota import DeviceQuota
from .framework import Framework
from .plugin_calls import PluginCalls, PluginError, order_key, order_number

SortKey = tuple[float | str | tuple[float, ...], ...]


class PluginDecisions:
    """The results of the plugins that a session was opened for, combined."""

    cache: SchedulerCache
    _borrowable = 0.0
    """Whether the gang that is tried may get more than its queue deserves."""

    def __init__(self, framework: Framework, calls: PluginCalls) -> None:
        """Use the plugins of *framework*, which *calls* has opened."""
        self.calls = calls
        self._framework = framework
        self._job_order = calls.opened(framework.job_order)
        self._queue_order = calls.opened(framework.queue_order)
        self._task_order = calls.opened(framework.task_order)
        self._listeners = calls.opened(framework.allocation_listeners)

    # -- order ---------------------------------------------------------------------------------

    def job_order(self, gang: Gang) -> SortKey:
        """Return the sort key of *gang* within its queue; the smallest is first."""
        plugins = self._job_order
        try:
            keys = [plugin.job_order(gang) for plugin in plugins]
            if any(map(math.isnan, keys)):
                raise ValueError("the order is not a number")
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
            return sorted_tasks(
                tasks, lambda task: tuple(order_number(p.task_order(task)) for p in plugins)
            )
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

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Return why *gang* cannot be scheduled even on idle nodes, or ``None``."""
        if gang.native is not None and gang.native.unsupported:
            return Rejection(UNSUPPORTED_FIELD, gang.native.unsupported, Stage.GANG)
        votes = ((plugin, plugin.job_valid) for plugin in self._framework.job_valid)
        return self._first_rejection("job_valid", votes, gang)

    def job_ready(self, gang: Gang) -> Rejection | None:
        """Return why *gang* does not get what has been allocated to it, or ``None`` if it does."""
        votes = ((plugin, plugin.job_ready) for plugin in self._framework.job_ready)
        return self._first_rejection("job_ready", votes, gang)

    def _first_rejection(
        self, name: str, votes: Iterable[tuple[object, Callable[[Gang], object]]], gang: Gang
    ) -> Rejection | None:
        for plugin, function in votes:
            try:
                rejection = self.calls.call(plugin, name, partial(_vote, function, gang))
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
            if not (self._borrowable and has_method(plugin, "borrowable_count"))
        )

    @contextmanager
    def borrowing(self, fraction: float) -> Iterator[None]:
        """In the block, plugins also count what a queue may borrow: *fraction* of what it deserves,
        or all that other queues leave idle if *fraction* is infinite."""
        before, self._borrowable = self._borrowable, fraction
        try:
            yield
        finally:
            self._borrowable = before

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* the queue may allocate.

        Raises:
            PluginError: a plugin raised.
        """
        with self._with_freed(queue):
            counts = [
                self._allocatable_count(each, queue, eq_class)
                for each in self._framework.allocatable
            ]
        return min(*counts, self.device_quota.count(queue, eq_class), MAX_AMOUNT)

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection | None:
        """Return why *queue* allocates no more pods of *eq_class*, or ``None`` if it does.

        Raises:
            PluginError: a plugin raised.
        """
        with self._with_freed(queue):
            for plugin in self._framework.allocatable:
                if self._allocatable_count(plugin, queue, eq_class) < 1:
                    function = partial(_limit, plugin.queue_rejection, queue, eq_class)
                    return self.calls.call(plugin, "queue_rejection", function)
        if self.device_quota.count(queue, eq_class) < 1:
            return self.device_quota.rejection(queue, eq_class)
        return None

    @contextmanager
    def counted(self, queue: QueueInfo, eq_class: EquivalenceClass, count: int) -> Iterator[None]:
        """Count *count* pods of *eq_class* in the block as allocated in *queue*."""
        add_amounts(queue.allocated, eq_class.request, count)
        try:
            with self.device_quota.counted(queue, eq_class, count):
                yield
        finally:
            add_amounts(queue.allocated, eq_class.request, -count)

    @cached_property
    def device_quota(self) -> DeviceQuota:
        """Limits of queues on devices."""
        return DeviceQuota(self.cache)

    @contextmanager
    def _with_freed(self, queue: QueueInfo) -> Iterator[None]:
        """Count in the block what evictions have freed for gangs of *queue* as allocated. Otherwise
        other gangs of the queue would use up its limit before those can start."""
        reservations = self.cache.reservations
        freed = reservations.freed_in(self.cache.queues.of, queue) if reservations else {}
        add_amounts(queue.allocated, freed)
        try:
            yield
        finally:
            add_amounts(queue.allocated, freed, -1)

    def _allocatable_count(
        self, plugin: QueueLimitPlugin, queue: QueueInfo, eq_class: EquivalenceClass
    ) -> int:
        if self._borrowable and has_method(plugin, "borrowable_count"):
            count = partial(plugin.borrowable_count, queue, eq_class, self._borrowable)
            return self.calls.call(plugin, "borrowable_count", lambda: int(count()))
        return self.calls.call(
            plugin, "allocatable_count", lambda: int(plugin.allocatable_count(queue, eq_class))
        )

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
        self.device_quota.change(change, allocated=allocated)

    def revert_listeners(self, change: Allocation, *, allocated: bool) -> None:
        """Call the listeners for an operation that is undone: *change* is allocated again, or not
        any more."""
        self.device_quota.change(change, allocated=allocated)
        self._call_listeners(self._listeners, change, allocated=allocated)

    def _call_listeners(
        self, listeners: list[SessionPlugin], change: Allocation, *, allocated: bool
    ) -> None:
        """Call *listeners* in reverse order; one that raises is recorded only."""
        for plugin in reversed(listeners):
            point = "allocated" if allocated else "deallocated"
            function = partial(plugin.allocated if allocated else plugin.deallocated, change)
            try:
                self.calls.call(plugin, point, function)
            except PluginError as error:
                self.calls.record(error)


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
