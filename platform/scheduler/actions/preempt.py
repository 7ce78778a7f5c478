"""The ``preempt`` action: evict pods of lower priority for gangs of the same queue.

1. Gangs that were rejected in this cycle and are starving are taken queue by queue, in job order.
2. A gang gets the resources of tasks of gangs with a lower priority, if all its missing members
   fit then; otherwise nothing is evicted.
3. The resources are held for the gang until the pods have terminated.

Tasks are not evicted for others of their own gang: that would not make it ready.
"""

from ..framework.plugin_calls import PluginError
from ..framework.preemption import evict_for
from ..framework.session import Session
from ..framework.victims import Reach
from ..state.gangs import Gang
from .starving import starving_gangs


def preempt(session: Session) -> None:
    """Evict pods for starving gangs of their queues."""
    queue_of = session.cache.queue_of
    for gang in sorted(
        starving_gangs(session),
        key=lambda each: (session.queue_order(queue_of(each)), session.job_order(each)),
    ):
        _preempt(session, gang)


def _preempt(session: Session, gang: Gang) -> None:
    try:
        if session.votes.job_starving(gang):
            evict_for(session, gang, Reach.PREEMPT)
    except PluginError as error:
        session.reject_failed(gang, error)
