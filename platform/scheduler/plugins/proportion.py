"""``proportion``: divides the cluster among queues by weight.

A queue deserves its weight's fraction of the cluster, but no more than it requests, no more than
its capability and no less than its guarantee; what one queue does not request is divided among
the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..state.cache import SchedulerCache
from ..state.equivalence import EquivalenceClass
from ..state.gangs import Gang, QueueInfo, add_amounts, positive_difference, sum_amounts
from ..state.resources import Amounts, amounts
from .extension_points import NOT_ENOUGH_RESOURCES, Rejection
from .queue_limits import count_within, over_limit, share
from .queue_state import queue_state_rejection


@dataclass(slots=True)
class QueueAttr:
    """The limits of one queue."""

    weight: int
    requested: Amounts
    guarantee: Amounts
    real_capability: Amounts
    """Its maximum; a resource without an entry is not limited."""

    deserved: Amounts = field(default_factory=dict)


class ProportionPlugin:
    """Limits and orders queues by their deserved resources."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
        self._queue_attrs: dict[str, QueueAttr] = {}
        self._cache: SchedulerCache | None = None

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Compute what each queue deserves."""
        self._cache = cache
        total_resource = cache.node_matrix.total()
        by_name = sorted(cache.queues.values(), key=lambda queue: queue.name)
        named = [queue for queue in by_name if queue.object]
        guaranteed = sum_amounts(_guarantee(queue) for queue in named)
        unguaranteed = positive_difference(total_resource, guaranteed)
        self._queue_attrs = {
            queue.name: _queue_attr(queue, unguaranteed, total_resource)
            for queue in named
            if queue.gangs
        }
        compute_deserved(list(self._queue_attrs.values()), total_resource)

    def queue_order(self, queue: QueueInfo) -> tuple[float, ...]:
        """Higher priority first, then the smaller allocated fraction of what it deserves."""
        priority = queue.object.spec.priority if queue.object else 0
        attr = self._queue_attrs.get(queue.name)
        return (-priority, share(queue.allocated, attr.deserved) if attr else 0.0)

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Reject a gang whose minimum exceeds the real capability of its queue."""
        if gang.single or self._cache is None:
            return None
        queue = self._cache.queue_of(gang)
        if rejection := queue_state_rejection(queue):
            return rejection
        attr = self._queue_attrs.get(queue.name)
        if not gang.min_resources or attr is None:
            return True
        inqueue = sum_amounts((queue.allocated, queue.reserved))
        add_amounts(inqueue, queue.elastic, -1)
        return over_limit(gang.min_request, inqueue, attr.real_capability) or True

    def job_enqueued(self, gang: Gang) -> None:
        """Do nothing: the cache adds the minimum of an admitted gang to ``reserved``."""

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* are within what the queue deserves."""
        attr = self._queue_attrs.get(queue.name)
        if attr is None or queue_state_rejection(queue):
            return 0
        return count_within(eq_class.request, queue.allocated, attr.deserved)

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection:
        """Return what is insufficient for one more pod of *eq_class*."""
        attr = self._queue_attrs.get(queue.name)
        rejection = queue_state_rejection(queue)
        if rejection is None and attr is not None:
            rejection = over_limit(eq_class.request, queue.allocated, attr.deserved)
        return rejection or Rejection(NOT_ENOUGH_RESOURCES, "queue resource quota insufficient")

    def overused(self, queue: QueueInfo) -> bool:
        """Return whether all that the queue deserves is allocated."""
        attr = self._queue_attrs.get(queue.name)
        return (
            attr is not None
            and bool(attr.deserved)
            and all(queue.allocated.get(name, 0) >= n for name, n in attr.deserved.items())
        )


def compute_deserved(attrs: list[QueueAttr], total_resource: Amounts) -> None:
    """Set ``deserved`` of *attrs* by weight, until all is divided or all requests are met."""
    remaining = dict(total_resource)
    unmet = list(attrs)
    while unmet and remaining:
        weights = sum(attr.weight for attr in unmet)
        before, still = dict(remaining), []
        for attr in unmet:
            had = attr.deserved
            attr.deserved = _next_deserved(attr, before, remaining, weights)
            remaining = positive_difference(remaining, positive_difference(attr.deserved, had))
            if attr.deserved != had and positive_difference(attr.requested, attr.deserved):
                still.append(attr)
        if remaining == before:
            return
        unmet = still


def _next_deserved(attr: QueueAttr, before: Amounts, remaining: Amounts, weights: int) -> Amounts:
    """Return what *attr* deserves after its fraction of *before*, limited by *remaining*.

    Fractions are rounded up, so that the last unit is assigned.
    """
    deserved = {}
    for name in attr.requested.keys() | attr.guarantee.keys():
        fraction = -(-before.get(name, 0) * attr.weight // weights)
        units = attr.deserved.get(name, 0) + min(fraction, remaining.get(name, 0))
        units = min(units, attr.real_capability.get(name, units), attr.requested.get(name, 0))
        units = max(units, attr.guarantee.get(name, 0))
        if units:
            deserved[name] = units
    return deserved


def _queue_attr(queue: QueueInfo, unguaranteed: Amounts, total_resource: Amounts) -> QueueAttr:
    """Return the limits of *queue*; its maximum excludes what others are guaranteed."""
    spec = queue.object.spec if queue.object else None
    guarantee = _guarantee(queue)
    real_capability = {
        name: unguaranteed.get(name, 0) + guarantee.get(name, 0)
        for name in total_resource.keys() | guarantee.keys()
    }
    for name, units in amounts(spec.capability if spec else {}).items():
        if units > 0 or name not in ("cpu", "memory"):
            real_capability[name] = min(real_capability.get(name, units), units)
    weight = max(spec.weight, 1) if spec else 1
    return QueueAttr(weight, dict(queue.requested), guarantee, real_capability)


def _guarantee(queue: QueueInfo) -> Amounts:
    return amounts(queue.object.spec.guarantee.resource) if queue.object else {}
