"""The ``reclaim`` action: evict pods of queues that have more than they deserve for other queues.

1. The first queue in queue order takes resources for its first starving gang in job order; an
   overused queue is skipped. The order is that after the evictions before.
2. A gang gets the resources of tasks of other queues, regardless of priority, if all its missing
   members fit then; otherwise nothing is evicted. Queues that are not reclaimable lose nothing, and
   no queue loses what it is guaranteed.
3. The resources are held for the gang until the pods have terminated.
"""

import heapq

from ..framework.plugin_calls import PluginError
from ..framework.preemption import evict_for
from ..framework.session import Session
from ..framework.victims import Reach
from ..state.gangs import Gang, QueueInfo
from .starving import starving_gangs


def reclaim(session: Session) -> None:
    """Evict pods of other queues for starving gangs."""
    by_queue: dict[str, list[Gang]] = {}
    for gang in starving_gangs(session):
        if not gang.single:
            by_queue.setdefault(session.cache.queue_of(gang).name, []).append(gang)
    for gangs in by_queue.values():
        gangs.sort(key=session.job_order, reverse=True)
    heap = [(session.queue_order(session.cache.queue_named(name)), name) for name in by_queue]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        queue = session.cache.queue_named(name)
        _reclaim(session, queue, by_queue[name].pop())
        if by_queue[name]:
            heapq.heappush(heap, (session.queue_order(queue), name))


def _reclaim(session: Session, queue: QueueInfo, gang: Gang) -> None:
    try:
        if not session.overused(queue) and session.votes.job_starving(gang):
            evict_for(session, gang, Reach.RECLAIM)
    except PluginError as error:
        session.reject_failed(gang, error)
