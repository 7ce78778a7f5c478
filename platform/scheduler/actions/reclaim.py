"""The ``reclaim`` action: evict pods of queues that have more than they deserve for other queues.

1. The first queue in queue order takes resources for its first starving gang in job order; an
   overused queue is skipped. The order takes account of what was evicted just before. Gangs that
   former cycles had no time for are tried, too.
2. A gang gets the resources of tasks of other queues, regardless of priority, if all its missing
   members fit then; otherwise nothing is evicted. Queues that are not reclaimable lose nothing, and
   no queue loses what it is guaranteed.
3. The resources are held for the gang until the pods have terminated.
"""

import heapq

from ..framework.candidate import Candidate
from ..framework.plugin_calls import PluginError
from ..framework.plugin_decisions import SortKey
from ..framework.possible_victims import PossibleVictims
from ..framework.preemption import EvictionOptions
from ..framework.session import Session
from ..framework.victims import Reach
from .starving import try_candidate


def reclaim(session: Session, options: EvictionOptions) -> None:
    """Evict pods of other queues for starving gangs."""
    by_queue: dict[str, list[tuple[SortKey, str, Candidate]]] = {}

    def push(candidate: Candidate) -> str:
        name = session.cache.queues.of(candidate.gang).name
        entry = session.job_order(candidate.gang), candidate.gang.key, candidate
        heapq.heappush(by_queue.setdefault(name, []), entry)
        return name

    victims = PossibleVictims(session)
    for candidate in session.starving.candidates(Reach.RECLAIM.value):
        if candidate.gang.single or not victims.may_reclaim(candidate.gang):
            session.starving.mark_tried(Reach.RECLAIM.value, candidate)
        else:
            push(candidate)
    heap = [(session.queue_order(session.cache.queues.named(name)), name) for name in by_queue]
    heapq.heapify(heap)
    while heap and not session.is_time_over():
        _, name = heapq.heappop(heap)
        candidate = heapq.heappop(by_queue[name])[-1]
        following = _reclaim(session, candidate, options)
        if following is not None:
            push(following)
        if by_queue[name]:
            heapq.heappush(heap, (session.queue_order(session.cache.queues.named(name)), name))


def _reclaim(session: Session, candidate: Candidate, options: EvictionOptions) -> Candidate | None:
    """Evict pods for a gang; returns the next one with equal demand, if that was possible."""
    try:
        overused = session.overused(session.cache.queues.of(candidate.gang))
    except PluginError as error:
        session.reject_failed(candidate.gang, error)
        overused = True
    if overused:
        session.count_decision()
        session.starving.mark_tried(Reach.RECLAIM.value, candidate)
        return None
    return try_candidate(session, candidate, Reach.RECLAIM, options)
