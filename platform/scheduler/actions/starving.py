"""The gangs for which pods may be evicted."""

from ..framework.session import Session
from ..state.gangs import Gang


def starving_gangs(session: Session) -> list[Gang]:
    """Return the gangs that did not fit in this cycle, and could start if there were resources.

    Those whose pods do not exist yet follow once these are created.
    """
    return [
        gang
        for gang in session.starving_gangs()
        if gang.has_requesting_tasks()
        and not gang.is_pending
        and not session.cache.planned.is_planning(gang.key)
        and not gang.is_pipelined()
        and not gang.awaits_ungating()
        and session.job_valid(gang) is None
    ]
