"""How kubelets choose NUMA nodes for CPUs and devices. Pure.

The managers of CPUs and of devices give a hint for each set of NUMA nodes that has enough of what
is free. They prefer the hints with as few NUMA nodes as would be needed if everything was free.
The topology manager merges the hints of all resources, and the policy decides whether the pod is
admitted: container by container, or, with the scope ``pod``, for all containers together.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..state.podinfo.numa_request import NumaAmounts, NumaRequest

NONE, BEST_EFFORT, RESTRICTED, SINGLE = "none", "best-effort", "restricted", "single-numa-node"
CONTAINER, POD = "container", "pod"
"""Scopes of a topology manager."""

Amounts = tuple[int, ...]
"""A number of CPUs or devices for each NUMA node; empty if their NUMA nodes are not known."""

ResourceAmounts = tuple[Amounts, ...]
"""Amounts for each of :data:`.numa_request.NUMA_RESOURCES`."""

Hints = Mapping[int, bool]
"""Whether a set of NUMA nodes, a bit mask, is preferred."""


class Fit(NamedTuple):
    """A pod that a node admits."""

    free: ResourceAmounts
    """What is free then."""

    nodes: frozenset[int]
    """The NUMA nodes of what the pod has."""


@lru_cache(maxsize=16384)
def fit(
    request: NumaRequest, total: ResourceAmounts, free: ResourceAmounts, scope: str
) -> Fit | None:
    """Return what *request* gets on a node with *free*, or ``None`` if it is not admitted."""
    used: set[int] = set()
    of_pod = _admitted(request.policy, total, free, request.peak) if scope == POD else None
    for each in request.containers:
        mask = of_pod if scope == POD else _admitted(request.policy, total, free, each.amounts)
        if mask is None:
            return None
        left = take(total, free, each.amounts, mask)
        if left is None:
            return None
        for before, after in zip(free, left, strict=True):
            used |= {node for node in range(len(before)) if after[node] < before[node]}
        free = left if each.is_kept else free
    return Fit(free, frozenset(used))


@lru_cache(maxsize=16384)
def hints(total: Amounts, free: Amounts, amount: int) -> Hints:
    """Return the hints for *amount* of one resource."""
    in_total, in_free = _sums(total), _sums(free)
    masks = range(1, 1 << len(total))
    fewest = min((each.bit_count() for each in masks if in_total[each] >= amount), default=0)
    return {each: each.bit_count() == fewest for each in masks if in_free[each] >= amount}


def merge(policy: str, of_resources: Sequence[Hints]) -> int | None:
    """Return the NUMA nodes that the topology manager chooses, ``None`` if the pod is rejected;
    0 if no set has what all resources need, and the policy admits it nevertheless.

    A merged hint is preferred only if the hints of all resources are equal and preferred.
    """
    preferred = set.intersection(
        *({mask for mask, is_preferred in each.items() if is_preferred} for each in of_resources)
    )
    if policy == SINGLE:
        preferred = {mask for mask in preferred if mask.bit_count() == 1}
    if preferred:
        return min(preferred, key=lambda mask: (mask.bit_count(), mask))
    return None if policy in (RESTRICTED, SINGLE) else _best_effort(of_resources)


def take(
    total: ResourceAmounts, free: ResourceAmounts, amounts: NumaAmounts, mask: int
) -> ResourceAmounts | None:
    """Return what is free once a container has *amounts*, of the NUMA nodes in *mask* first;
    ``None`` if too little is free."""
    left = []
    for of_total, of_free, amount in zip(total, free, amounts, strict=True):
        if of_free and sum(of_free) < amount:
            return None
        left.append(_taken(of_total, of_free, amount, mask))
    return tuple(left)


def take_all(
    requests: Iterable[NumaRequest], total: ResourceAmounts, free: ResourceAmounts, scope: str
) -> ResourceAmounts:
    """Return what is free once pods have what they request, whether their policies admit them or
    not."""
    for request in requests:
        admitted = fit(request, total, free, scope)
        if admitted is not None:
            free = admitted.free
            continue
        for each in request.containers:
            if each.is_kept:
                free = tuple(
                    _taken(of_total, of_free, amount, mask=0)
                    for of_total, of_free, amount in zip(total, free, each.amounts, strict=True)
                )
    return free


def _admitted(
    policy: str, total: ResourceAmounts, free: ResourceAmounts, amounts: NumaAmounts
) -> int | None:
    """Return the NUMA nodes for *amounts*, ``None`` if they are not admitted, 0 for any ones."""
    of_resources = []
    for of_total, of_free, amount in zip(total, free, amounts, strict=True):
        if amount and of_total:
            found = hints(of_total, of_free, amount)
            if not found:
                return None
            of_resources.append(found)
    return merge(policy, of_resources) if of_resources and policy != NONE else 0


def _best_effort(of_resources: Sequence[Hints]) -> int:
    """Return the hint that is best of those that are not preferred: the one whose number of NUMA
    nodes is next to what the resource needs that needs the most, and rather fewer than more."""
    masks: Collection[int] = of_resources[0]
    for each in of_resources[1:]:
        masks = {mask & other for mask in masks for other in each} - {0}
    needed = max(min(mask.bit_count() for mask in each) for each in of_resources)

    def rank(mask: int) -> tuple[bool, int, int]:
        count = mask.bit_count()
        return count > needed, abs(count - needed), mask

    return min(masks, key=rank, default=0)


def _taken(total: Amounts, free: Amounts, amount: int, mask: int) -> Amounts:
    """Return what is free once *amount* is assigned, or as much as is free: of the NUMA nodes in
    *mask* before others, of whole NUMA nodes first, then of those with the least that is free."""
    left = list(free)
    in_order = sorted(range(len(free)), key=lambda node: (free[node], node))
    within = [node for node in in_order if mask >> node & 1]
    for nodes in (within, [node for node in in_order if node not in within]):
        for node in nodes:
            if left[node] == total[node] <= amount:
                amount -= left[node]
                left[node] = 0
        for node in nodes:
            taken = min(amount, left[node])
            amount -= taken
            left[node] -= taken
    return tuple(left)


def _sums(amounts: Amounts) -> list[int]:
    """Return the sum of *amounts* for each set of NUMA nodes."""
    found = [0]
    for amount in amounts:
        found += [each + amount for each in found]
    return found
