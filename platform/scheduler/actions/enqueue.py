"""``enqueue``: gangs enter their queue when there is hope for them.

1. Gangs that have not entered yet are lined up: queues by rank, gangs by rank within.
2. The queue whose turn it is sends its first gang, which is admitted or refused.
3. A refused gang does not hold up smaller ones behind it, and is told why.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..plugins.extension_points import Rejection
from ..state.gangs import Diagnosis, Gang, QueueInfo

if TYPE_CHECKING:
    from ..framework.session import Session

OPEN = "Open"


def enqueue(session: "Session") -> None:
    """Admit gangs to their queues."""
    for gang in list(_round_robin(session)):
        _enqueue_or_reject(
            session, gang, session.job_enqueueable(gang) if gang.min_resources else None
        )


def enqueue_without_plugins(session: "Session") -> None:
    """Admit gangs to open queues without asking plugins: for ``allocate`` without ``enqueue``."""
    for gang in list(_round_robin(session)):
        _enqueue_or_reject(session, gang, None)


def _enqueue_or_reject(session: "Session", gang: Gang, rejection: Rejection | None) -> None:
    rejection = queue_rejection(session.cache.queue_of(gang)) or rejection
    if rejection:
        session.reject(gang, Diagnosis(rejection.reason, rejection.message))
    else:
        session.enqueue(gang)


def queue_rejection(queue: QueueInfo) -> Rejection | None:
    """Why nobody may enter *queue*, if that is so."""
    if queue.object is None:
        return Rejection("QueueNotFound", f'queue "{queue.name}" does not exist')
    if queue.state != OPEN:
        state = queue.state or "not set yet"
        return Rejection("QueueNotOpen", f'queue "{queue.name}" takes no jobs, it is {state}')
    return None


def _round_robin(session: "Session") -> Iterator[Gang]:
    """Pending gangs, queue by queue and round after round, one from each."""
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
