"""The ``enqueue`` action: admit pending gangs to their queues.

1. Pending gangs are taken round-robin: queues in queue order, gangs of each in job order.
2. A gang is admitted or rejected. A rejected gang does not block those behind it, but counts as the
   one gang that its queue has in that round. A gang that is not tried, since it would be rejected
   again, counts likewise.
"""

import heapq
from collections.abc import Callable
from contextlib import nullcontext

from ..framework.candidate import Candidate
from ..framework.session import Session
from ..plugins.extension_points import Rejection
from ..plugins.queue_state import queue_state_rejection
from ..state.gangs.gang import Gang


def enqueue(session: Session) -> None:
    """Admit gangs to their queues."""
    _enqueue(session, lambda gang: session.job_enqueueable(gang) if gang.min_resources else None)


def enqueue_without_plugins(session: Session) -> None:
    """Admit gangs to open queues without asking plugins: for ``allocate`` without ``enqueue``."""
    _enqueue(session, lambda gang: None)


def _enqueue(session: Session, vote: Callable[[Gang], Rejection | None]) -> None:
    """Admit or reject gangs in rounds, one gang of each queue per round."""
    candidates: dict[str, list[Candidate]] = {}
    for candidate in session.candidates(_is_wanted):
        name = session.cache.queues.of(candidate.gang).name
        candidates.setdefault(name, []).append(candidate)
    if not candidates:
        return
    order = sorted(
        candidates, key=lambda name: session.queue_order(session.cache.queues.named(name))
    )
    rounds = session.update_rounds()
    heap: list[tuple[int, int, str, Candidate]] = []

    def push(position: int, candidate: Candidate) -> None:
        round_ = rounds.round_of(order[position], session.job_order(candidate.gang))
        heapq.heappush(heap, (round_, position, candidate.gang.key, candidate))

    for position, name in enumerate(order):
        for candidate in candidates[name]:
            push(position, candidate)
    has_kept = session.cache.reservations.next_due() is not None  # that counts in queues
    while heap and not session.should_stop():
        _, position, _, candidate = heapq.heappop(heap)
        gang = candidate.gang
        with session.lend(gang) if has_kept else nullcontext():
            rejection = vote(gang)
        _enqueue_or_reject(session, gang, rejection)
        following = session.next_candidate(candidate)
        if following is not None:
            push(position, following)


def _is_wanted(gang: Gang) -> bool:
    return gang.is_pending and gang.podgroup is not None


def _enqueue_or_reject(session: Session, gang: Gang, rejection: Rejection | None) -> None:
    queue = session.cache.queues.of(gang)
    rejection = queue_state_rejection(queue) or rejection
    if rejection:
        demand = ("enqueue", queue.name, gang.priority, tuple(sorted(gang.min_request.items())))
        session.reject_for(gang, rejection, demand)
    else:
        session.enqueue(gang)
