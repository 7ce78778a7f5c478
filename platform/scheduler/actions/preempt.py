"""The ``preempt`` action: evict pods of lower priority for gangs of the same queue.

1. Gangs that were rejected and are starving are taken queue by queue, in job order: those of this
   cycle, and those that former cycles had no time for. Of gangs with equal demand, the next one
   follows if pods were evicted for one.
2. A gang gets the resources of tasks of gangs with a lower priority, if all its missing members
   fit then; otherwise nothing is evicted.
3. The resources are held for the gang until the pods have terminated.

Tasks are not evicted for others of their own gang: it would not be ready after that.
"""

import heapq

from ..framework.candidate import Candidate
from ..framework.plugin_decisions import SortKey
from ..framework.possible_victims import PossibleVictims
from ..framework.preemption import EvictionOptions
from ..framework.session import Session
from ..framework.victims import Reach
from .starving import try_candidate

_Entry = tuple[SortKey, SortKey, str, Candidate]


def preempt(session: Session, options: EvictionOptions) -> None:
    """Evict pods for starving gangs of their queues."""

    def entry(candidate: Candidate) -> _Entry:
        gang = candidate.gang
        queue_order = session.queue_order(session.cache.queues.of(gang))
        return queue_order, session.job_order(gang), gang.key, candidate

    heap = []
    victims = PossibleVictims(session)
    for candidate in session.starving.candidates(Reach.PREEMPT.value):
        if victims.may_preempt(candidate.gang):
            heap.append(entry(candidate))
        else:
            session.starving.mark_tried(Reach.PREEMPT.value, candidate)
    heapq.heapify(heap)
    while heap and not session.is_time_over():
        candidate = heapq.heappop(heap)[-1]
        following = try_candidate(session, candidate, Reach.PREEMPT, options)
        if following is not None:
            heapq.heappush(heap, entry(following))
