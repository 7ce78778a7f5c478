"""The ``enqueue`` action: admit pending gangs to their queues.

1. Pending gangs are taken round-robin: queues in queue order, gangs of each in job order.
2. A gang is admitted or rejected; a rejected gang does not block those behind it.
"""

from collections.abc import Iterator

from ..framework.session import Session
from ..plugins.extension_points import Rejection
from ..plugins.queue_state import queue_state_rejection
from ..state.gangs import Gang


def enqueue(session: Session) -> None:
    """Admit gangs to their queues."""
    for gang in list(_round_robin(session)):
        _enqueue_or_reject(
            session, gang, session.job_enqueueable(gang) if gang.min_resources else None
        )


def enqueue_without_plugins(session: Session) -> None:
    """Admit gangs to open queues without asking plugins: for ``allocate`` without ``enqueue``."""
    for gang in list(_round_robin(session)):
        _enqueue_or_reject(session, gang, None)


def _enqueue_or_reject(session: Session, gang: Gang, rejection: Rejection | None) -> None:
    rejection = queue_state_rejection(session.cache.queue_of(gang)) or rejection
    if rejection:
        session.reject(gang, rejection.diagnosis())
    else:
        session.enqueue(gang)


def _round_robin(session: Session) -> Iterator[Gang]:
    """Yield pending gangs in rounds, one gang of each queue per round."""
    queues: dict[str, list[Gang]] = {}
    for gang in session.cache.pending_gangs.values():
        if gang.is_pending and gang.podgroup is not None and not session.can_skip(gang):
            queues.setdefault(session.cache.queue_of(gang).name, []).append(gang)
    for gangs in queues.values():
        gangs.sort(key=session.job_order, reverse=True)
    order = sorted(queues, key=lambda name: session.queue_order(session.cache.queue_named(name)))
    while order:
        for name in order:
            yield queues[name].pop()
        order = [name for name in order if queues[name]]
