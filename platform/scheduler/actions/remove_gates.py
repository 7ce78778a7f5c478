"""Remove queue gates from pods within the limits of their queue; a step of ``allocate``.

A cluster autoscaler adds nodes for pending pods that fit no node. Pods that only wait for their
queue must not count there, so they have a scheduling gate until then.

1. Admitted gangs with gated pods are taken in queue order, then in job order.
2. An ungated pod that is not scheduled yet counts as allocated.
3. A gang that is not ready loses the gates of its minimum at least, or none and is rejected.
"""

from ..framework.candidate import Candidate
from ..framework.missing_members import MissingMembers
from ..framework.plugin_calls import PluginError
from ..framework.plugin_decisions import SortKey
from ..framework.session import Session
from ..plugins.extension_points import UNSUPPORTED_FIELD, Rejection
from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang, QueueInfo, SubGroup, Task, TaskStatus, add_amounts
from ..state.queue.scheduling_queue import QueueingHints


def remove_gates(session: Session) -> None:
    """Remove the gates of pods that are within the limits of their queue."""
    queue_of = session.cache.queues.of

    def order(candidate: Candidate) -> tuple[SortKey, SortKey]:
        gang = candidate.gang
        return session.queue_order(queue_of(gang)), session.job_order(gang)

    for candidate in sorted(session.candidates(_is_wanted), key=order):
        gang = candidate.gang
        try:
            _remove_gates_of_gang(session, gang, queue_of(gang))
        except PluginError as error:
            session.reject_failed(gang, error)


def _is_wanted(gang: Gang) -> bool:
    return bool(gang.gated_by_queue) and not gang.is_pending


def _remove_gates_of_gang(session: Session, gang: Gang, queue: QueueInfo) -> None:
    tasks = [task for task in session.tasks(gang, gated_by_queue=True) if not task.ungated]
    if not tasks:
        return
    invalid = session.job_valid(gang)
    if invalid:
        session.reject_for(gang, invalid)
        return
    ungated_request = queue.ungated.copy()
    add_amounts(queue.allocated, ungated_request)
    try:
        fitting, rejection = _tasks_within_limits(session, queue, tasks)
    finally:
        add_amounts(queue.allocated, ungated_request, -1)
    hints = QueueingHints(session.limit_events(queue))
    missing = MissingMembers(gang)
    for task in (*gang.pending_tasks.values(), *gang.gated_by_queue.values()):
        if not task.gates or task.ungated:
            missing.consume(task.role, 1)
    for task in fitting:
        missing.consume(task.role, 1)
    missing.sub_groups = _missing_sub_groups(gang, fitting)
    if fitting and missing.satisfied:
        session.remove_gates(gang, fitting)
    elif rejection and (gang.awaits_ungating() or not gang.pending_tasks):
        session.reject(gang, rejection.diagnosis(), hints)
    if rejection:
        session.wait(gang, hints)


def _missing_sub_groups(gang: Gang, fitting: list[Task]) -> dict[int, int]:
    """Return how many more sub-groups *gang* needs to have whole without gates, if *fitting* lose
    theirs, by the position of their policy."""
    if gang.sub_groups is None:
        return {}
    uids = {task.uid for task in fitting}

    def is_whole(sub_group: SubGroup) -> bool:
        pending = sum(
            task.status is TaskStatus.PENDING
            and (not task.gates or task.ungated or task.uid in uids)
            for task in sub_group.tasks.values()
        )
        return sub_group.counts.ready + pending >= sub_group.policy.size

    return gang.sub_groups.short(is_whole)


def _tasks_within_limits(
    session: Session, queue: QueueInfo, tasks: list[Task]
) -> tuple[list[Task], Rejection | None]:
    """Return those of *tasks* that *queue* can allocate, and why the first of the others keeps its
    gate.

    A pod with unsupported fields keeps it: it would count in the queue without ever running.
    """
    fitting: list[Task] = []
    rejection: Rejection | None = None
    try:
        for task in tasks:
            eq_class = task.eq_class
            if eq_class.unsupported_fields:
                message = f"{task.name}: {task.unsupported_message()}"
                rejection = rejection or Rejection(UNSUPPORTED_FIELD, message, Stage.POD)
            elif eq_class.best_effort or session.allocatable_count(queue, eq_class) > 0:
                add_amounts(queue.allocated, eq_class.request)
                fitting.append(task)
            elif rejection is None:
                rejection = session.queue_rejection(queue, eq_class)
    finally:
        for task in fitting:
            add_amounts(queue.allocated, task.eq_class.request, -1)
    return fitting, rejection
