"""The ``allocate`` action: schedule gangs up to their minimum or not at all.

0. If ``enqueue`` is not configured, pending gangs of open queues are admitted. Queue gates are
   removed from pods within the limits of their queue; such a pod is scheduled once it has none.
1. Admitted gangs with pending pods are put into a heap for each queue, without those that wait
   for something. Of gangs with equal demand, the next one follows if one was scheduled.
2. The first queue in queue order gives its first gang in job order; of an overused queue, only
   gangs are tried that may borrow.
3. A gang that is not ready is allocated up to its minimum, or not at all and rejected.
4. A gang that is ready gets further pods one at a time (a large gang in small batches), so that
   gangs alternate; the last gang gets all at once.
5. A gang with an allocation and more pending pods is put back into its heap.
6. With backfilling, the start of gangs that have to wait is planned, and what is allocated after
   that leaves them what they need (:mod:`..framework.start_planning`).
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ..framework.backfilling.options import options_of
from ..framework.candidate import Candidate
from ..framework.domain_capacities import empty_capacity
from ..framework.missing_members import MissingMembers, required_tasks
from ..framework.plugin_calls import PluginError
from ..framework.plugin_decisions import SortKey
from ..framework.queueing_hints import limit_hints
from ..framework.session import OWN_CHANGES, Session
from ..framework.start_planning import StartPlanning
from ..framework.sub_group_units import in_unit_order, units_of
from ..framework.unfit_tasks import UnfitTasks
from ..plugins.arguments import duration
from ..plugins.extension_points import NOT_ENOUGH_RESOURCES, Rejection
from ..state.gangs.diagnosis import Diagnosis, FitError
from ..state.gangs.gang import Gang, QueueInfo, Task
from .enqueue import enqueue_without_plugins
from .remove_gates import remove_gates

EVICTION_BACKOFF = "eviction-backoff"
"""For how long a gang that has lost pods to an eviction gets none beyond its minimum."""

_EXTRA_ROUNDS = 32
"""A gang with more pending pods than this gets more than one of them at a time."""


@dataclass(slots=True)
class PendingGang:
    """A gang in the heap of its queue, and what is to be tried in this cycle."""

    candidate: Candidate
    tasks: list[Task] = field(default_factory=list)
    """In task order; best-effort tasks are last. Empty before the gang is tried."""

    reason: str = NOT_ENOUGH_RESOURCES
    """Reason of the last rejection of further pods."""

    fit_errors: dict[str, FitError] = field(default_factory=dict)
    """By role."""

    unfit: UnfitTasks = field(default_factory=UnfitTasks)
    is_new: bool = True
    """Whether it has not been tried yet."""

    @property
    def gang(self) -> Gang:
        """The gang."""
        return self.candidate.gang


Heap = list[tuple[SortKey, str, PendingGang]]


class Allocate:
    """The action with its arguments."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the arguments.

        Raises:
            ArgumentError: one has an impossible value.
        """
        self._options = options_of(arguments)
        backoff = duration(arguments, EVICTION_BACKOFF)
        self._backoff = backoff.total_seconds() if backoff else 0.0

    def __call__(self, session: Session) -> None:
        """Schedule gangs, and further pods of gangs that are ready."""
        planning = StartPlanning(session, self._options)
        _allocate_gangs(session, planning, self._backoff)


def _allocate_gangs(session: Session, planning: StartPlanning, backoff: float) -> None:
    if not session.has_enqueue_action:
        enqueue_without_plugins(session)
    remove_gates(session)
    planning.begin()
    pending = _pending_by_queue(session, planning)
    queue_heap = [(session.queue_order(session.cache.queues.named(name)), name) for name in pending]
    heapq.heapify(queue_heap)
    overused_names: set[str] = set()
    while queue_heap and not session.should_stop():
        key, name = heapq.heappop(queue_heap)
        queue, heap = session.cache.queues.named(name), pending[name]
        if queue_heap and (now := session.queue_order(queue)) > key:
            # Allocations in another queue have changed its key: they have an ancestor in common.
            heapq.heappush(queue_heap, (now, name))
            continue
        if name and name not in overused_names and _is_overused(session, planning, queue, heap):
            overused_names.add(name)
        if planning.order.has_changed(name):
            _sort(planning, heap)
        _pop_hopeless(session, heap)
        if not heap:
            continue
        order, _, pending_gang = heapq.heappop(heap)
        if planning.order.is_shortest_first:
            order = session.job_order(pending_gang.gang)
        planning.reserve_before(queue, order)
        is_last = not queue_heap and not heap and _is_alone(pending_gang.candidate)
        grows_at = pending_gang.gang.evicted_at + backoff
        if grows_at > session.cache.cycle_time and MissingMembers(pending_gang.gang).satisfied:
            _reject_evicted(session, pending_gang.gang, grows_at)
        elif _allocate(session, planning, pending_gang, is_last=is_last):
            _push(planning, heap, pending_gang)
        _push_next(session, planning, heap, pending_gang)
        heapq.heappush(queue_heap, (session.queue_order(queue), name))
    planning.finish()


def _pending_by_queue(session: Session, planning: StartPlanning) -> dict[str, Heap]:
    """Return heaps of gangs to try, by queue; invalid gangs are rejected."""
    pending: dict[str, Heap] = {}
    for candidate in session.candidates(_is_wanted):
        gang = candidate.gang
        rejection = session.job_valid(gang)
        if rejection:
            _reject_invalid(session, gang, rejection)
        else:
            heap = pending.setdefault(session.cache.queues.of(gang).name, [])
            _push(planning, heap, PendingGang(candidate))
    if not planning.is_on:
        return pending
    for name, heap in pending.items():
        first = heap[0][0]
        if planning.order.is_shortest_first:
            first = min(session.job_order(each.gang) for _, _, each in heap)
        planning.reserve_before(session.cache.queues.named(name), first)
    return pending


def _sort(planning: StartPlanning, heap: Heap) -> None:
    """Put *heap* in order again; of gangs with equal demand another one may be the first."""
    for _, _, each in heap:
        if each.is_new:
            each.candidate = planning.order.first(each.candidate)
    heap[:] = [(planning.order.of(each.gang), each.gang.key, each) for _, _, each in heap]
    heapq.heapify(heap)


def _pop_hopeless(session: Session, heap: Heap) -> None:
    """Remove the first gangs of *heap* for which others have left no capacity in this cycle."""
    while heap and heap[0][2].is_new and session.skip_hopeless(heap[0][2].candidate):
        heapq.heappop(heap)


def _is_wanted(gang: Gang) -> bool:
    return not gang.is_pending and gang.has_requesting_tasks() and not gang.awaits_ungating()


def _is_alone(candidate: Candidate) -> bool:
    """Return whether no gang follows *candidate*."""
    return candidate.group is None or len(candidate.group) < 2


def _push_next(session: Session, planning: StartPlanning, heap: Heap, tried: PendingGang) -> None:
    """Push the next gang with the same demand as *tried*, if that one was scheduled."""
    if not tried.is_new:
        return
    tried.is_new = False
    following = planning.order.following(tried.candidate)
    while following is not None:
        rejection = session.job_valid(following.gang)
        if rejection is None:
            _push(planning, heap, PendingGang(following))
            return
        _reject_invalid(session, following.gang, rejection)
        following = planning.order.following(following)


def _reject_invalid(session: Session, gang: Gang, rejection: Rejection) -> None:
    """Reject *gang*; one that is shared holds for all gangs of its queue with equal demand."""
    demand = None
    if rejection.shared:
        demand = limit_hints(gang, session.cache.queues.of(gang).name, frozenset()).demand
    session.reject_for(gang, rejection, demand)


def _tasks_to_try(session: Session, gang: Gang) -> list[Task]:
    """Return the pending tasks of *gang*: best-effort ones only if it may need them to be ready."""
    tasks = session.tasks(gang)
    is_ready = MissingMembers(gang).satisfied
    return [task for task in tasks if not (is_ready and _can_wait(task))]


def _can_wait(task: Task) -> bool:
    """Return whether ``backfill`` may allocate *task*: other tasks do not need it."""
    sub_group = task.sub_group
    return task.eq_class.best_effort and (sub_group is None or not sub_group.missing)


def _is_overused(session: Session, planning: StartPlanning, queue: QueueInfo, heap: Heap) -> bool:
    """Return whether *queue* is overused; then its gangs in *heap* are rejected, without those for
    which nodes and a share are kept, and those that may get what others leave idle."""
    try:
        overused = session.overused(queue)
        is_lent = overused and planning.lends_to(queue)
    except PluginError as error:
        for _, _, waiting in heap:
            session.reject_failed(waiting.gang, error)
        heap.clear()
        return False
    if not overused:
        return False
    entries = sorted(heap)
    heap[:] = [  # still sorted
        each
        for each in entries
        if session.kept_nodes(each[2].gang) is not None
        or (is_lent and planning.borrowable(each[2].gang))
    ]
    left = {key for _, key, _ in heap}
    gangs = [waiting.gang for _, key, waiting in entries if key not in left]
    _reject_overused(session, queue, gangs)
    for gang in gangs:
        planning.rejected(gang)
    return True


def _reject_overused(session: Session, queue: QueueInfo, gangs: list[Gang]) -> None:
    """Reject gangs of an overused queue."""
    events = session.limit_events(queue)
    for gang in gangs:
        eq_class = session.tasks(gang)[0].eq_class
        try:
            rejection = session.queue_rejection(queue, eq_class)
        except PluginError as error:
            session.reject_failed(gang, error)
            continue
        message = rejection.message if rejection else f'queue "{queue.name}" is overused'
        wake_on = rejection.wake_on if rejection else None
        hints = limit_hints(gang, queue.name, events if wake_on is None else wake_on)
        session.reject(gang, Diagnosis(NOT_ENOUGH_RESOURCES, message), hints)


def _reject_evicted(session: Session, gang: Gang, grows_at: float) -> None:
    """Reject *gang*, which has its minimum, until it may have further pods again."""
    at = datetime.fromtimestamp(grows_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = f"pods were evicted; pods beyond its minimum are not scheduled before {at}"
    session.reject(gang, Diagnosis(NOT_ENOUGH_RESOURCES, message), OWN_CHANGES, retry_at=grows_at)
    session.confine_rejection(gang)


def _push(planning: StartPlanning, heap: Heap, pending_gang: PendingGang) -> None:
    gang = pending_gang.gang
    heapq.heappush(heap, (planning.order.of(gang), gang.key, pending_gang))


def _allocate(
    session: Session, planning: StartPlanning, pending_gang: PendingGang, *, is_last: bool
) -> bool:
    """Allocate the minimum or more pods of a gang; returns whether it is to be tried again."""
    gang = pending_gang.gang
    if pending_gang.is_new:
        pending_gang.tasks = _tasks_to_try(session, gang)
    try:
        with (
            planning.borrowing(gang),
            session.lend(gang),
            planning.spare_for(gang) as spare,
        ):
            if spare.holder:
                planning.hold_back(gang, spare.holder)
            elif MissingMembers(gang).satisfied:
                return _allocate_extra(session, planning, pending_gang, is_last=is_last)
            elif _allocate_minimum(session, planning, pending_gang):
                return True
        if session.is_rejected(gang):
            planning.rejected(gang)
        return False
    except PluginError as error:
        session.reject_failed(gang, error)
        return False


def _allocate_minimum(session: Session, planning: StartPlanning, pending_gang: PendingGang) -> bool:
    """Allocate the minimum or nothing; returns whether there are more pods to try."""
    missing = MissingMembers(pending_gang.gang)
    with session.statement(pending_gang.gang) as statement:
        statement.allocate_minimum(pending_gang.tasks, missing)
        if not missing.satisfied:
            diagnosis = statement.diagnosis()
            if _exceeds_nodes(session, pending_gang.gang, statement.unfit):
                diagnosis = replace(diagnosis, exceeds_nodes=True)
            session.reject(pending_gang.gang, diagnosis, statement.unfit)
            return False
        if not_ready := session.job_ready(pending_gang.gang):
            session.withhold(pending_gang.gang, not_ready)
            return False
        allocated_uids = statement.allocated_uids()
        planning.commit(pending_gang.gang, statement)
    pending_gang.tasks = [
        task
        for task in pending_gang.tasks
        if task.uid not in allocated_uids and not _can_wait(task)
    ]
    return bool(pending_gang.tasks)


def _exceeds_nodes(session: Session, gang: Gang, unfit: UnfitTasks) -> bool:
    """Return whether the nodes could not take what *gang* needs even if nothing else ran there.

    *unfit* are the tasks that did not fit.

    Raises:
        PluginError: a filter raised.
    """
    for eq_class, count in required_tasks(list(gang.pending_tasks.values()), MissingMembers(gang)):
        if eq_class in unfit.failed and empty_capacity(session, gang, eq_class) < count:
            return True
    return False


def _allocate_extra(
    session: Session, planning: StartPlanning, pending_gang: PendingGang, *, is_last: bool
) -> bool:
    """Allocate a batch of further pods, or all that fit if this is the last gang.

    Returns whether there are more pods to try.
    """
    pending_gang.tasks = in_unit_order(pending_gang.gang, pending_gang.tasks)
    batch_size = (
        len(pending_gang.tasks) if is_last else max(len(pending_gang.tasks) // _EXTRA_ROUNDS, 1)
    )
    if not is_last and pending_gang.gang.sub_groups is not None:
        batch_size = len(units_of(pending_gang.tasks)[0].required) or 1
    batch = pending_gang.tasks[:batch_size]
    with session.statement(pending_gang.gang) as statement:
        count = statement.allocate_extra(batch, batch_size)
        if statement.operations and (not_ready := session.job_ready(pending_gang.gang)):
            session.withhold(pending_gang.gang, not_ready)
            return False
        allocated_uids = statement.allocated_uids()
        if statement.operations:  # an empty commit would wake other gangs, which wake this one
            planning.commit(pending_gang.gang, statement)
    if count == batch_size:
        pending_gang.tasks = pending_gang.tasks[batch_size:]
    else:
        diagnosis = statement.diagnosis()
        pending_gang.reason = diagnosis.reason
        pending_gang.fit_errors.update(diagnosis.fit_errors)
        pending_gang.unfit.update(statement.unfit)
        remaining = [] if is_last else pending_gang.tasks
        pending_gang.tasks = [
            t for t in remaining if t.uid not in allocated_uids and not statement.has_failed(t)
        ]
    if not pending_gang.tasks and pending_gang.fit_errors:
        diagnosis = Diagnosis(pending_gang.reason, "", dict(pending_gang.fit_errors))
        session.reject(pending_gang.gang, diagnosis, pending_gang.unfit)
    return bool(pending_gang.tasks)
