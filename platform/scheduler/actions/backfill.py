"""The ``backfill`` action: schedule best-effort pods.

1. Admitted gangs with best-effort pods are taken in job order; queue limits do not apply.
2. A gang that is not ready, and has only best-effort pods, is allocated up to its minimum or not
   at all.
3. A gang that is ready gets as many more as fit.
"""

from ..framework.plugin_calls import PluginError
from ..framework.session import Session
from ..framework.statement import MissingMembers
from ..state.gangs import Gang


def backfill(session: Session) -> None:
    """Schedule best-effort pods."""
    for gang in sorted(_candidates(session), key=session.job_order):
        rejection = session.job_valid(gang)
        if rejection:
            session.reject(gang, rejection.diagnosis())
            continue
        try:
            _backfill_gang(session, gang)
        except PluginError as error:
            session.reject_failed(gang, error)


def _candidates(session: Session) -> list[Gang]:
    return [
        gang
        for gang in session.cache.pending_gangs.values()
        if not gang.is_pending
        and gang.has_best_effort_tasks()
        and (gang.is_ready() or not gang.has_requesting_tasks())
        and not gang.awaits_ungating()
    ]


def _backfill_gang(session: Session, gang: Gang) -> None:
    tasks = [task for task in session.tasks(gang) if task.eq_class.best_effort]
    with session.statement(gang) as statement:
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
    if diagnosis.fit_errors and not gang.has_requesting_tasks():
        session.reject(gang, diagnosis)
