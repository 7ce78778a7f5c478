"""The ``backfill`` action: schedule best-effort pods.

1. Admitted gangs with best-effort pods are taken in job order; queue limits do not apply.
2. A gang that is not ready, and has only best-effort pods, is allocated up to its minimum or not
   at all.
3. A gang that is ready gets as many more as fit.
"""

import heapq

from ..framework.missing_members import MissingMembers
from ..framework.plugin_calls import PluginError
from ..framework.session import Session
from ..state.gangs.gang import Gang


def backfill(session: Session) -> None:
    """Schedule best-effort pods."""
    heap = [
        (session.job_order(each.gang), each.gang.key, each)
        for each in session.candidates(_is_wanted, rejected=True)
    ]
    heapq.heapify(heap)
    while heap and not session.should_stop():
        candidate = heapq.heappop(heap)[2]
        gang = candidate.gang
        rejection = session.job_valid(gang)
        try:
            if rejection:
                session.reject_for(gang, rejection)
            else:
                _backfill_gang(session, gang)
        except PluginError as error:
            session.reject_failed(gang, error)
        following = session.next_candidate(candidate)
        if following is not None:
            heapq.heappush(heap, (session.job_order(following.gang), following.gang.key, following))


def _is_wanted(gang: Gang) -> bool:
    return (
        not gang.is_pending
        and gang.has_best_effort_tasks()
        and (gang.is_ready() or not gang.has_requesting_tasks())
        and not gang.awaits_ungating()
    )


def _backfill_gang(session: Session, gang: Gang) -> None:
    tasks = [task for task in session.tasks(gang) if task.eq_class.best_effort]
    with session.lend(gang), session.statement(gang) as statement:
        missing = MissingMembers(gang)
        statement.allocate_minimum(tasks, missing)
        if missing.satisfied:
            allocated_uids = statement.allocated_uids()
            statement.allocate_extra(
                [task for task in tasks if task.uid not in allocated_uids], len(tasks)
            )
        diagnosis = statement.diagnosis()
        if missing.satisfied:
            session.commit(gang, statement)
    if not diagnosis.fit_errors:
        return
    if gang.has_requesting_tasks():
        session.wait(gang, statement.unfit)
    else:
        session.reject(gang, diagnosis, statement.unfit)
