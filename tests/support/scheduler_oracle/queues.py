"""Queues: what each deserves, may have and may admit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from support.scheduler_oracle.objects import (
    Amounts,
    GangFacts,
    PodFacts,
    Request,
    add,
    lacks,
    positive,
    total,
)

from batholith.model.queue import Queue
from batholith.scheduler.state.resources import amounts

NOTHING = Fraction(1, 10**6)
"""A rest that is not divided any more."""


class QueueFacts:
    """A queue, and its gangs."""

    def __init__(self, queue: Queue) -> None:
        self.name = queue.metadata.name
        self.created = queue.metadata.creation_timestamp or ""
        self.priority = queue.spec.priority
        self.weight = max(queue.spec.weight, 1)
        self.guarantee = amounts(queue.spec.guarantee.resource)
        self.stated_deserved = amounts(queue.spec.deserved)
        self.capability = amounts(queue.spec.capability)
        self.is_open = queue.status.state == "Open"
        self.gangs: list[GangFacts] = []
        self.deserved: Amounts = {}
        self.real_capability: Amounts = {}

    @property
    def allocated(self) -> Amounts:
        """What its gangs have."""
        return total(gang.allocated for gang in self.gangs)

    @property
    def requested(self) -> Amounts:
        """What its gangs have and ask for."""
        return total(gang.requested for gang in self.gangs)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How one plugin limits queues."""

    ordered: bool = False
    limited: bool = False
    overuse: bool = False
    """Whether a queue may be overused."""

    by_deserved: bool = True
    """Whether the limit is what a queue deserves, not its maximum."""

    known: frozenset[str] = field(default_factory=frozenset)
    """Queues that have gangs: others have no limits and may have nothing."""

    def order(self, queue: QueueFacts) -> tuple[float, ...]:
        """Higher priority first, then the smaller share."""
        return (-queue.priority, self._share(queue))

    def _share(self, queue: QueueFacts) -> float:
        if queue.name not in self.known:
            return 0.0
        have = queue.allocated
        deserved = {name: units for name, units in queue.deserved.items() if units}
        return max((have.get(name, 0) / n for name, n in deserved.items()), default=1.0)

    def overused(self, queue: QueueFacts) -> bool:
        """Return whether *queue* has all that it deserves."""
        if not self.overuse or queue.name not in self.known:
            return False
        have, deserved = queue.allocated, {n: u for n, u in queue.deserved.items() if u}
        return bool(deserved) and all(have.get(name, 0) >= u for name, u in deserved.items())

    def allows(self, queue: QueueFacts, pod: PodFacts) -> bool:
        """Return whether *queue* may have one more pod."""
        if queue.name not in self.known or not queue.is_open:
            return False
        limit = queue.deserved if self.by_deserved else queue.real_capability
        return not lacks(pod.request, _difference(limit, queue.allocated))

    def admits(self, queue: QueueFacts, minimum: Request) -> bool:
        """Return whether *queue* may admit a gang that needs *minimum*."""
        if not self.limited:
            return True
        taken = total(
            (queue.allocated, *(gang.reserved() for gang in queue.gangs)),
        )
        for gang in queue.gangs:
            add(taken, gang.elastic(), -1)
        return not lacks(minimum, _difference(queue.real_capability, taken))


def _difference(left: Request, right: Request) -> Amounts:
    return {name: left.get(name, 0) - right.get(name, 0) for name in {*left, *right}}


def no_limits() -> QueueLimits:
    """Return limits that limit nothing."""
    return QueueLimits()


def _set_real_capability(queues: Sequence[QueueFacts], cluster: Request) -> None:
    """Set the maximum of each queue: what no other is guaranteed, within its capability."""
    unguaranteed = positive(cluster, total(queue.guarantee for queue in queues))
    for queue in queues:
        real = total((unguaranteed, queue.guarantee))
        for name in cluster:
            real.setdefault(name, 0)
        for name, units in queue.capability.items():
            if units > 0 or name not in ("cpu", "memory"):
                real[name] = min(real.get(name, units), units)
        queue.real_capability = real


def proportion_limits(queues: Sequence[QueueFacts], cluster: Request) -> QueueLimits:
    """Divide the cluster by weight among the queues that have gangs."""
    _set_real_capability(queues, cluster)
    sharing = [queue for queue in queues if queue.gangs]
    divide(sharing, cluster)
    known = frozenset(queue.name for queue in sharing)
    return QueueLimits(ordered=True, limited=True, overuse=True, known=known)


def divide(queues: Sequence[QueueFacts], cluster: Request) -> None:
    """Set what each of *queues* deserves: weighted water filling, in rounds, then rounded."""
    remaining = {name: Fraction(units) for name, units in cluster.items()}
    shares: dict[str, dict[str, Fraction]] = {queue.name: {} for queue in queues}
    unmet = [(queue, queue.requested) for queue in queues]
    while unmet and any(units > NOTHING for units in remaining.values()):
        at_start, weights = dict(remaining), sum(queue.weight for queue, _ in unmet)
        still = []
        for queue, request in unmet:
            before, share = shares[queue.name], dict[str, Fraction]()
            for name in {*request, *queue.guarantee}:
                fraction = at_start.get(name, Fraction(0)) * queue.weight / weights
                units = before.get(name, Fraction(0))
                units += min(fraction, remaining.get(name, Fraction(0)))
                units = min(units, Fraction(request.get(name, 0)))
                if name in queue.real_capability:
                    units = min(units, Fraction(queue.real_capability[name]))
                share[name] = max(units, Fraction(queue.guarantee.get(name, 0)))
                gained = share[name] - before.get(name, 0)
                if name in remaining:
                    remaining[name] = max(remaining[name] - gained, Fraction(0))
            shares[queue.name] = share
            if share != before and any(n > share.get(name, 0) for name, n in request.items()):
                still.append((queue, request))
        if all(at_start[name] - units <= NOTHING for name, units in remaining.items()):
            break
        unmet = still
    names = {name for share in shares.values() for name in share}
    for name in sorted(names):
        own = [shares[queue.name].get(name, Fraction(0)) for queue in queues]
        whole = rounded(own, cluster.get(name, 0))
        for queue, deserved in zip(queues, whole, strict=True):
            queue.deserved[name] = deserved


def rounded(shares: Sequence[Fraction], whole: int) -> list[int]:
    """Return *shares* in units, no more than *whole*: as many as possible are rounded up, the first
    nearly whole ones first, those hardly above a whole number last."""
    units = [floor(each) for each in shares]
    margin = Fraction(1, 101)

    def priority(index: int) -> tuple[int, int]:
        rest = shares[index] - units[index]
        return (0 if rest >= 1 - margin else 2 if rest <= margin else 1), index

    inexact = [index for index, each in enumerate(shares) if each != units[index]]
    for index in sorted(inexact, key=priority)[: max(whole - sum(units), 0)]:
        units[index] += 1
    return units


def capacity_limits(queues: Sequence[QueueFacts], cluster: Request) -> QueueLimits:
    """Flat ``capacity``: what a queue deserves is stated, and it may have its maximum."""
    _set_real_capability(queues, cluster)
    for queue in queues:
        stated = {
            name: min(units, queue.real_capability.get(name, units))
            for name, units in queue.stated_deserved.items()
        }
        names = {*stated, *queue.guarantee}
        queue.deserved = {
            name: max(stated.get(name, 0), queue.guarantee.get(name, 0)) for name in names
        }
    known = frozenset(queue.name for queue in queues if queue.gangs)
    return QueueLimits(ordered=True, limited=True, by_deserved=False, known=known)
