"""``proportion``: divides the cluster among queues by weight, and keeps each to its part.

A queue may have what its weight gives it of the cluster, no more than it asks for, never more than
its capability, never less than its guarantee; what one queue does not ask for goes to the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..state.equivalence import EquivalenceClass
from ..state.gangs import Gang, QueueInfo, add_amounts, positive_difference, sum_amounts
from ..state.resources import MAX_AMOUNT, Amounts, amounts, format_amount
from .extension_points import NOT_ENOUGH_RESOURCES, Rejection

if TYPE_CHECKING:
    from ..state.cache import SchedulerCache

OPEN = "Open"
QUEUE_NOT_FOUND, QUEUE_NOT_OPEN = "QueueNotFound", "QueueNotOpen"


@dataclass(slots=True)
class QueueAttr:
    """What one queue may have."""

    weight: int
    requested: Amounts
    guarantee: Amounts
    real_capability: Amounts
    """What it can have at most; what is not named is not limited."""

    deserved: Amounts = field(default_factory=dict)


class ProportionPlugin:
    """Limits and orders queues by their deserved part."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Take no arguments."""
        self._queue_attrs: dict[str, QueueAttr] = {}
        self._cache: SchedulerCache | None = None

    def on_session_open(self, cache: "SchedulerCache") -> None:
        """Divide the cluster anew."""
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

    def queue_order(self, queue: QueueInfo) -> float:
        """Higher priority first, then the queue that has least of its part."""
        priority = queue.object.spec.priority if queue.object else 0
        return -priority * 1e6 + min(self._share(queue), 1e5)

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Refuse a gang that its queue has no room for, now or later."""
        if gang.single or self._cache is None:
            return None
        queue = self._cache.queue_of(gang)
        if queue.state != OPEN:
            return _not_open_rejection(queue)
        attr = self._queue_attrs.get(queue.name)
        if not gang.min_resources or attr is None:
            return True
        inqueue = sum_amounts((queue.allocated, queue.reserved))
        add_amounts(inqueue, queue.elastic, -1)
        return _over_limit(gang.min_request, inqueue, attr.real_capability) or True

    def job_enqueued(self, gang: Gang) -> None:
        """Nothing to keep: the queue's reservation grows as the gang enters."""

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """How many more pods of *shape* stay within the queue's deserved part."""
        attr = self._queue_attrs.get(queue.name)
        if queue.state != OPEN or attr is None:
            return 0
        counts = (
            (attr.deserved.get(name, 0) - queue.allocated.get(name, 0)) // units
            for name, units in eq_class.request.items()
            if units > 0 and name != "pods"
        )
        return max(min(counts, default=MAX_AMOUNT), 0)

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection:
        """Say what the queue lacks for one more pod of *shape*."""
        attr = self._queue_attrs.get(queue.name)
        if queue.state != OPEN or attr is None:
            return _not_open_rejection(queue)
        rejection = _over_limit(eq_class.request, queue.allocated, attr.deserved)
        return rejection or Rejection(NOT_ENOUGH_RESOURCES, "queue resource quota insufficient")

    def overused(self, queue: QueueInfo) -> bool:
        """Whether the queue has all of its part."""
        attr = self._queue_attrs.get(queue.name)
        return (
            attr is not None
            and bool(attr.deserved)
            and all(queue.allocated.get(name, 0) >= n for name, n in attr.deserved.items())
        )

    def _share(self, queue: QueueInfo) -> float:
        attr = self._queue_attrs.get(queue.name)
        if attr is None:
            return 0.0
        shares = [queue.allocated.get(name, 0) / n for name, n in attr.deserved.items()]
        return max(shares, default=1.0)


def compute_deserved(attrs: list[QueueAttr], total_resource: Amounts) -> None:
    """Fill in what each portion deserves of *cluster*, by weight, until nobody wants more."""
    remaining = dict(total_resource)
    unmet = list(attrs)
    while unmet and remaining:
        weights = sum(portion.weight for portion in unmet)
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
    """What *portion* deserves after its part of *before*, of which *left* is still there.

    Parts are rounded up, so that the last unit goes to somebody.
    """
    deserved = {}
    for name in attr.requested.keys() | attr.guarantee.keys():
        share = -(-before.get(name, 0) * attr.weight // weights)
        units = attr.deserved.get(name, 0) + min(share, remaining.get(name, 0))
        units = min(units, attr.real_capability.get(name, units), attr.requested.get(name, 0))
        units = max(units, attr.guarantee.get(name, 0))
        if units:
            deserved[name] = units
    return deserved


def _queue_attr(queue: QueueInfo, unguaranteed: Amounts, total_resource: Amounts) -> QueueAttr:
    """The limits of *queue*: its capability, and what others are not guaranteed."""
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


def _over_limit(request: Amounts, used: Amounts, limit: Amounts) -> Rejection | None:
    insufficient = [
        f"insufficient {name} (requested {format_amount(name, units)}, "
        f"free {format_amount(name, max(limit.get(name, 0) - used.get(name, 0), 0))} "
        f"of {format_amount(name, limit.get(name, 0))})"
        for name, units in sorted(request.items())
        if units > 0 and name != "pods" and used.get(name, 0) + units > limit.get(name, 0)
    ]
    if not insufficient:
        return None
    message = f"queue resource quota insufficient: {', '.join(insufficient)}"
    return Rejection(NOT_ENOUGH_RESOURCES, message)


def _not_open_rejection(queue: QueueInfo) -> Rejection:
    if queue.object is None:
        return Rejection(QUEUE_NOT_FOUND, f'queue "{queue.name}" does not exist')
    state = queue.state or "not set yet"
    return Rejection(QUEUE_NOT_OPEN, f'queue "{queue.name}" takes no jobs: its state is {state}')
