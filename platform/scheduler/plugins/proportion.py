"""``proportion``: divides the cluster among queues by weight, and keeps each to its part.

A queue may have what its weight gives it of the cluster, no more than it asks for, never more than
its capability, never less than its guarantee; what one queue does not ask for goes to the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..state.equivalence import Shape
from ..state.gangs import Gang, Queue, add, beyond, total
from ..state.resources import LARGEST, Amounts, amounts, show
from .extension_points import NOT_ENOUGH_RESOURCES, Refusal

if TYPE_CHECKING:
    from ..state.cache import Cluster

OPEN = "Open"
QUEUE_NOT_FOUND, QUEUE_NOT_OPEN = "QueueNotFound", "QueueNotOpen"


@dataclass(slots=True)
class Portion:
    """What one queue may have."""

    weight: int
    requested: Amounts
    guarantee: Amounts
    ceiling: Amounts
    """What it can have at most; what is not named is not limited."""

    deserved: Amounts = field(default_factory=dict)


class ProportionPlugin:
    """Limits and orders queues by their deserved part."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Take no arguments."""
        self._portions: dict[str, Portion] = {}
        self._cluster: Cluster | None = None

    def open(self, cluster: "Cluster") -> None:
        """Divide the cluster anew."""
        self._cluster = cluster
        everything = cluster.snapshot.total()
        by_name = sorted(cluster.queues.values(), key=lambda queue: queue.name)
        named = [queue for queue in by_name if queue.object]
        guaranteed = total(_guarantee(queue) for queue in named)
        unpromised = beyond(everything, guaranteed)
        self._portions = {
            queue.name: _portion(queue, unpromised, everything) for queue in named if queue.gangs
        }
        divide(list(self._portions.values()), everything)

    def rank_queue(self, queue: Queue) -> float:
        """Higher priority first, then the queue that has least of its part."""
        priority = queue.object.spec.priority if queue.object else 0
        return -priority * 1e6 + min(self._share(queue), 1e5)

    def admits(self, gang: Gang) -> Refusal | bool | None:
        """Refuse a gang that its queue has no room for, now or later."""
        if gang.single or self._cluster is None:
            return None
        queue = self._cluster.queue_of(gang)
        if queue.state != OPEN:
            return _not_open(queue)
        portion = self._portions.get(queue.name)
        if not gang.min_resources or portion is None:
            return True
        promised = total((queue.allocated, queue.reserved))
        add(promised, queue.elastic, -1)
        return _refusal(gang.min_request, promised, portion.ceiling) or True

    def admitted(self, gang: Gang) -> None:
        """Nothing to keep: the queue's reservation grows as the gang enters."""

    def room(self, queue: Queue, shape: Shape) -> int:
        """How many more pods of *shape* stay within the queue's deserved part."""
        portion = self._portions.get(queue.name)
        if queue.state != OPEN or portion is None:
            return 0
        rooms = (
            (portion.deserved.get(name, 0) - queue.allocated.get(name, 0)) // units
            for name, units in shape.request.items()
            if units > 0 and name != "pods"
        )
        return max(min(rooms, default=LARGEST), 0)

    def limit(self, queue: Queue, shape: Shape) -> Refusal:
        """Say what the queue lacks for one more pod of *shape*."""
        portion = self._portions.get(queue.name)
        if queue.state != OPEN or portion is None:
            return _not_open(queue)
        found = _refusal(shape.request, queue.allocated, portion.deserved)
        return found or Refusal(NOT_ENOUGH_RESOURCES, "queue resource quota insufficient")

    def overused(self, queue: Queue) -> bool:
        """Whether the queue has all of its part."""
        portion = self._portions.get(queue.name)
        return (
            portion is not None
            and bool(portion.deserved)
            and all(queue.allocated.get(name, 0) >= n for name, n in portion.deserved.items())
        )

    def _share(self, queue: Queue) -> float:
        portion = self._portions.get(queue.name)
        if portion is None:
            return 0.0
        shares = [queue.allocated.get(name, 0) / n for name, n in portion.deserved.items()]
        return max(shares, default=1.0)


def divide(portions: list[Portion], cluster: Amounts) -> None:
    """Fill in what each portion deserves of *cluster*, by weight, until nobody wants more."""
    left = dict(cluster)
    unmet = list(portions)
    while unmet and left:
        weights = sum(portion.weight for portion in unmet)
        before, still = dict(left), []
        for portion in unmet:
            had = portion.deserved
            portion.deserved = _grown(portion, before, left, weights)
            left = beyond(left, beyond(portion.deserved, had))
            if portion.deserved != had and beyond(portion.requested, portion.deserved):
                still.append(portion)
        if left == before:
            return
        unmet = still


def _grown(portion: Portion, before: Amounts, left: Amounts, weights: int) -> Amounts:
    """What *portion* deserves after its part of *before*, of which *left* is still there.

    Parts are rounded up, so that the last unit goes to somebody.
    """
    grown = {}
    for name in portion.requested.keys() | portion.guarantee.keys():
        part = -(-before.get(name, 0) * portion.weight // weights)
        units = portion.deserved.get(name, 0) + min(part, left.get(name, 0))
        units = min(units, portion.ceiling.get(name, units), portion.requested.get(name, 0))
        units = max(units, portion.guarantee.get(name, 0))
        if units:
            grown[name] = units
    return grown


def _portion(queue: Queue, unpromised: Amounts, everything: Amounts) -> Portion:
    """The limits of *queue*: its capability, and what others are not guaranteed."""
    spec = queue.object.spec if queue.object else None
    guarantee = _guarantee(queue)
    ceiling = {
        name: unpromised.get(name, 0) + guarantee.get(name, 0)
        for name in everything.keys() | guarantee.keys()
    }
    for name, units in amounts(spec.capability if spec else {}).items():
        if units > 0 or name not in ("cpu", "memory"):
            ceiling[name] = min(ceiling.get(name, units), units)
    weight = max(spec.weight, 1) if spec else 1
    return Portion(weight, dict(queue.requested), guarantee, ceiling)


def _guarantee(queue: Queue) -> Amounts:
    return amounts(queue.object.spec.guarantee.resource) if queue.object else {}


def _refusal(request: Amounts, taken: Amounts, limit: Amounts) -> Refusal | None:
    short = [
        f"insufficient {name} (requested {show(name, units)}, "
        f"free {show(name, max(limit.get(name, 0) - taken.get(name, 0), 0))} "
        f"of {show(name, limit.get(name, 0))})"
        for name, units in sorted(request.items())
        if units > 0 and name != "pods" and taken.get(name, 0) + units > limit.get(name, 0)
    ]
    if not short:
        return None
    message = f"queue resource quota insufficient: {', '.join(short)}"
    return Refusal(NOT_ENOUGH_RESOURCES, message)


def _not_open(queue: Queue) -> Refusal:
    if queue.object is None:
        return Refusal(QUEUE_NOT_FOUND, f'queue "{queue.name}" does not exist')
    state = queue.state or "not set yet"
    return Refusal(QUEUE_NOT_OPEN, f'queue "{queue.name}" takes no jobs: its state is {state}')
