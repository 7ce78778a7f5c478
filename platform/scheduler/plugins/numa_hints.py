"""How kubelets choose NUMA nodes for exclusive CPUs. Pure.

The CPU manager gives a hint for each set of NUMA nodes that has enough free CPUs. It prefers the
hints with as few NUMA nodes as the container would need if all CPUs were free. The topology manager
takes the best hint, container by container, and the policy decides whether the pod is admitted. The
CPUs are the only resource here, so merging hints of several resources is to choose one.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from ..state.podinfo.exclusive_cpus import ExclusiveCpus

NONE, BEST_EFFORT, RESTRICTED, SINGLE = "none", "best-effort", "restricted", "single-numa-node"

Cpus = tuple[int, ...]
"""A number of CPUs for each NUMA node."""


class Hint(NamedTuple):
    """NUMA nodes, by their position."""

    nodes: tuple[int, ...]
    is_preferred: bool


class Fit(NamedTuple):
    """A pod that a node admits."""

    free: Cpus
    """What is free then."""

    nodes: frozenset[int]
    """The NUMA nodes whose CPUs the pod has."""


@lru_cache(maxsize=16384)
def fit(pod: ExclusiveCpus, total: Cpus, free: Cpus) -> Fit | None:
    """Return the CPUs of *pod* on a node with *free* CPUs, or ``None`` if it does not admit it."""
    used: set[int] = set()
    for demand in pod.demands:
        hint = best_hint(total, free, demand.cpus)
        if hint is None or not _is_admitted(pod.policy, hint):
            return None
        nodes = range(len(free)) if pod.policy == NONE else hint.nodes
        left = take(total, free, demand.cpus, nodes)
        used |= {node for node in nodes if left[node] < free[node]}
        free = left if demand.is_kept else free
    return Fit(free, frozenset(used))


def best_hint(total: Cpus, free: Cpus, cpus: int) -> Hint | None:
    """Return the hint that the topology manager chooses for a container of *cpus* CPUs, ``None``
    if too few are free: the fewest NUMA nodes, and of these sets the one with the lowest mask."""
    if sum(free) < cpus:
        return None
    count = _fewest(free, cpus)
    masks = sorted(combinations(range(len(free)), count), key=lambda nodes: nodes[::-1])
    nodes = next(each for each in masks if sum(free[node] for node in each) >= cpus)
    return Hint(nodes, count == _fewest(total, cpus))


def take(total: Cpus, free: Cpus, cpus: int, nodes: Iterable[int]) -> Cpus:
    """Return what is free once *cpus* of *nodes* are assigned, or as many as are free: of whole
    NUMA nodes first, then of those with the fewest free CPUs."""
    left = list(free)
    in_order = sorted(nodes, key=lambda node: (free[node], node))
    for node in in_order:
        if left[node] == total[node] <= cpus:
            cpus -= left[node]
            left[node] = 0
    for node in in_order:
        taken = min(cpus, left[node])
        cpus -= taken
        left[node] -= taken
    return tuple(left)


def take_all(pods: Iterable[ExclusiveCpus], total: Cpus, free: Cpus) -> Cpus:
    """Return what is free once *pods* have their CPUs, whether their policies admit them or not."""
    for pod in pods:
        admitted = fit(pod, total, free)
        if admitted is not None:
            free = admitted.free
            continue
        for demand in pod.demands:
            if demand.is_kept:
                free = take(total, free, demand.cpus, range(len(free)))
    return free


def _is_admitted(policy: str, hint: Hint) -> bool:
    if policy == RESTRICTED:
        return hint.is_preferred
    return policy != SINGLE or len(hint.nodes) == 1


def _fewest(available: Sequence[int], cpus: int) -> int:
    """Return how many NUMA nodes are needed at least for *cpus*."""
    found = 0
    for count in sorted(available, reverse=True):
        if cpus <= 0:
            break
        cpus -= count
        found += 1
    return found
