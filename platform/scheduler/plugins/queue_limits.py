"""Comparison of requests with the limits of queues."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...model.queue import QueueSpec
from ..state.gangs.diagnosis import Shortage
from ..state.gangs.gang import Gang, QueueInfo, add_amounts, sum_amounts
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import MAX_AMOUNT, Amounts, amounts, format_amount
from .extension_points import NOT_ENOUGH_RESOURCES, Rejection
from .queue_state import queue_state_rejection


class Claimant(Protocol):
    """Pods of one class for which pods of other queues are to be evicted."""

    @property
    def gang(self) -> Gang:
        """Their gang."""
        ...

    @property
    def queue(self) -> QueueInfo:
        """Their queue."""
        ...

    @property
    def eq_class(self) -> EquivalenceClass:
        """Their class."""
        ...


class QueueSums(Protocol):
    """The sums over the gangs of a queue."""

    @property
    def allocated(self) -> Amounts:
        """What is allocated."""
        ...

    @property
    def reserved(self) -> Amounts:
        """What admitted gangs need in addition."""
        ...

    @property
    def elastic(self) -> Amounts:
        """What gangs have beyond their minimum."""
        ...


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What a queue is guaranteed, deserves, and may have at most."""

    guarantee: Amounts
    deserved: Amounts
    real_capability: Amounts
    """Its maximum, without what others are guaranteed."""

    priority: int = 0


def guarantee_of(spec: QueueSpec) -> Amounts:
    """Return the guarantee of a queue."""
    return amounts(spec.guarantee.resource)


def unguaranteed(available: Amounts, guaranteed: Amounts) -> Amounts:
    """Return what of *available* is not *guaranteed* to any queue, with zero for a resource of
    which all is."""
    return {name: max(units - guaranteed.get(name, 0), 0) for name, units in available.items()}


def real_capability(spec: QueueSpec, guarantee: Amounts, left: Amounts) -> Amounts:
    """Return what a queue may have at most: its *guarantee* and what is *left* to all queues,
    limited by its capability.

    A capability of zero CPU or memory limits nothing.
    """
    if not guarantee and not spec.capability:
        return left
    limit = left | {name: left.get(name, 0) + units for name, units in guarantee.items()}
    for name, units in amounts(spec.capability).items():
        if units > 0 or name not in ("cpu", "memory"):
            limit[name] = min(limit.get(name, units), units)
    return limit


def compared(request: Amounts) -> Iterable[tuple[str, int]]:
    """Return the resources of *request* that limits of queues apply to."""
    return ((name, units) for name, units in request.items() if units > 0 and name != "pods")


def count_within(request: Amounts, used: Mapping[str, int], limit: Mapping[str, int]) -> int:
    """Return how many times *request* fits between *used* and *limit*."""
    counts = (
        (limit.get(name, 0) - used.get(name, 0)) // units for name, units in compared(request)
    )
    return max(min(counts, default=MAX_AMOUNT), 0)


def over_limit(
    request: Amounts, used: Mapping[str, int], limit: Mapping[str, int], *, queue: str = ""
) -> Rejection | None:
    """Return why *request* does not fit between *used* and *limit*, or ``None`` if it does.

    *queue* has the limit, unless it is the gang's own queue.
    """
    shortages = tuple(
        Shortage(name, units, limit.get(name, 0), used.get(name, 0), queue=queue)
        for name, units in sorted(compared(request))
        if used.get(name, 0) + units > limit.get(name, 0)
    )
    of = f'queue "{queue}"' if queue else "queue"
    return insufficient(f"{of} resource quota", shortages) if shortages else None


def insufficient(limit: str, shortages: tuple[Shortage, ...]) -> Rejection:
    """Return the rejection of what exceeds *limit*, which is named like that in the message."""
    resources = [
        f"insufficient {each.resource} "
        f"(requested {format_amount(each.resource, each.requested)}, "
        f"free {format_amount(each.resource, max(each.limit - each.used, 0))} "
        f"of {format_amount(each.resource, each.limit)})"
        for each in shortages
    ]
    message = f"{limit} insufficient: {', '.join(resources)}"
    return Rejection(NOT_ENOUGH_RESOURCES, message, shortages=shortages)


def inqueue(sums: QueueSums) -> Amounts:
    """Return what admitted gangs have and need, without what they have beyond their minimum."""
    total = sum_amounts((sums.allocated, sums.reserved))
    add_amounts(total, sums.elastic, -1)
    return total


def free_of_limit(queue: QueueInfo, limit: Amounts) -> Amounts:
    """Return what gangs of *queue* that are to be admitted may have of *limit*.

    That is no less than all of it if the queue is not open: gangs are rejected for that then.
    """
    free = dict(limit)
    if queue_state_rejection(queue):
        return dict.fromkeys(free, MAX_AMOUNT)
    add_amounts(free, inqueue(queue), -1)
    return free


def share(allocated: Mapping[str, int], deserved: Mapping[str, int]) -> float:
    """Return the largest allocated fraction of what is deserved."""
    return max(
        (
            allocated.get(name, 0) / units if units else float(allocated.get(name, 0) > 0)
            for name, units in deserved.items()
        ),
        default=1.0,
    )
