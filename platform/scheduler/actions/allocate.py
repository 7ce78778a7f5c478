"""``allocate``: whole gangs get nodes, or none of their pods does.

0. Where ``enqueue`` is not configured, pending gangs of open queues are admitted. Pods that wait at
   the gate of their queue are let in; they are placed once it is gone.
1. Admitted gangs with pods to place are lined up by queue; those that were refused before and for
   whom nothing has opened since are left out.
2. The queue whose turn it is sends its first gang; a queue that has had its part sends none.
3. A gang that is not ready yet is placed up to its minimum, or not at all and is told why.
4. A gang that is ready gets its further pods one at a time (large ones in small portions), so that
   it takes turns with others; when nobody else waits it gets all at once.
5. While something was placed and pods are left, the gang lines up again.
"""

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..framework.statement import MissingMembers
from ..plugins.extension_points import NOT_ENOUGH_RESOURCES
from ..state.gangs import Diagnosis, FitError, Gang, QueueInfo, Task
from .enqueue import enqueue_without_plugins
from .remove_gates import remove_gates

if TYPE_CHECKING:
    from ..framework.session import Session, SortKey


_EXTRA_ROUNDS = 32
"""A gang with more pods left than this gets more than one a turn."""


@dataclass(slots=True)
class PendingGang:
    """A gang in line, and what of it is still to be tried in this cycle."""

    gang: Gang
    tasks: list[Task]
    """In order; pods that ask for nothing come last."""

    fit_errors: dict[str, FitError] = field(default_factory=dict)
    """Those for whom there was no place, by role."""


def allocate(session: "Session") -> None:
    """Place gangs, and further pods of gangs that run."""
    if not session.has_enqueue_action:
        enqueue_without_plugins(session)
    remove_gates(session)
    pending = _pending_by_queue(session)
    queue_heap = [(session.queue_order(session.cache.queue_named(name)), name) for name in pending]
    heapq.heapify(queue_heap)
    while queue_heap:
        _, name = heapq.heappop(queue_heap)
        queue, heap = session.cache.queue_named(name), pending[name]
        if name and session.overused(queue):
            _reject_overused(session, queue, [waiter.gang for _, _, waiter in heap])
            continue
        if not heap:
            continue
        pending_gang = heapq.heappop(heap)[2]
        if _allocate(session, pending_gang, is_last=not queue_heap and not heap):
            _push(session, heap, pending_gang)
        heapq.heappush(queue_heap, (session.queue_order(queue), name))


def _pending_by_queue(session: "Session") -> "dict[str, list[tuple[SortKey, str, PendingGang]]]":
    """Gangs worth a try, in heaps by queue; a gang that is not is told why."""
    pending: dict[str, list[tuple[SortKey, str, PendingGang]]] = {}
    for gang in list(session.cache.pending_gangs.values()):
        if gang.is_pending or session.can_skip(gang) or not gang.has_requesting_tasks():
            continue
        if gang.awaits_ungating():
            continue
        rejection = session.job_valid(gang)
        if rejection:
            session.reject(gang, Diagnosis(rejection.reason, rejection.message))
        else:
            heap = pending.setdefault(session.cache.queue_of(gang).name, [])
            _push(session, heap, PendingGang(gang, session.tasks(gang)))
    return pending


def _reject_overused(session: "Session", queue: QueueInfo, gangs: list[Gang]) -> None:
    """Tell gangs of a queue that has had its part what they lack of it."""
    for gang in gangs:
        eq_class = session.tasks(gang)[0].eq_class
        rejection = session.queue_rejection(queue, eq_class)
        message = rejection.message if rejection else f'queue "{queue.name}" has had its share'
        session.reject(gang, Diagnosis(NOT_ENOUGH_RESOURCES, message))


def _push(
    session: "Session", heap: "list[tuple[SortKey, str, PendingGang]]", pending_gang: PendingGang
) -> None:
    heapq.heappush(
        heap, (session.job_order(pending_gang.gang), pending_gang.gang.key, pending_gang)
    )


def _allocate(session: "Session", pending_gang: PendingGang, *, is_last: bool) -> bool:
    """Give a gang its turn; say whether it shall have another."""
    if MissingMembers(pending_gang.gang).satisfied:
        return _allocate_extra(session, pending_gang, is_last=is_last)
    return _allocate_minimum(session, pending_gang)


def _allocate_minimum(session: "Session", pending_gang: PendingGang) -> bool:
    """Place the minimum, or nothing."""
    missing = MissingMembers(pending_gang.gang)
    with session.statement(pending_gang.gang) as statement:
        statement.allocate_minimum(pending_gang.tasks, missing)
        if not missing.satisfied:
            session.reject(pending_gang.gang, statement.diagnosis())
            return False
        placed_uids = {task.uid for task, _ in statement.allocations}
        session.commit(pending_gang.gang, statement)
    pending_gang.tasks = [
        task
        for task in pending_gang.tasks
        if task.uid not in placed_uids and not task.eq_class.best_effort
    ]
    return bool(pending_gang.tasks)


def _allocate_extra(session: "Session", pending_gang: PendingGang, *, is_last: bool) -> bool:
    """Place a portion of the further pods, or all that fit if nobody else waits."""
    batch_size = (
        len(pending_gang.tasks) if is_last else max(len(pending_gang.tasks) // _EXTRA_ROUNDS, 1)
    )
    batch = pending_gang.tasks[:batch_size]
    with session.statement(pending_gang.gang) as statement:
        count = statement.allocate_extra(batch, batch_size)
        placed_uids = {task.uid for task, _ in statement.allocations}
        session.commit(pending_gang.gang, statement)
    if count == batch_size:
        pending_gang.tasks = pending_gang.tasks[batch_size:]
    else:
        pending_gang.fit_errors.update(statement.fit_errors)
        remaining = [] if is_last else pending_gang.tasks
        pending_gang.tasks = [
            t for t in remaining if t.uid not in placed_uids and not statement.has_failed(t)
        ]
    if not pending_gang.tasks and pending_gang.fit_errors:
        session.reject(
            pending_gang.gang, Diagnosis(NOT_ENOUGH_RESOURCES, "", dict(pending_gang.fit_errors))
        )
    return bool(pending_gang.tasks)
