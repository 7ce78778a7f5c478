"""Nodes: which fit a pod, and which is best."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from support.scheduler_filters import (
    allows_scheduling,
    matches_node_affinity,
    node_matches,
    tolerates,
    tolerates_taints,
)
from support.scheduler_oracle.objects import Amounts, Config, PodFacts, add

from batholith.scheduler.state.core_types import Node
from batholith.scheduler.state.resources import amounts

RESOLUTION = 2**16
"""Scores are equal if they are so after rounding down to this fraction."""

_MI = 2**20


class NodeState:
    """A node, and the pods on it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.name = node.metadata.name
        self.labels = node.metadata.labels
        self.allocatable = amounts(node.status.allocatable)
        self.used: Amounts = {}
        self.pods: dict[str, PodFacts] = {}
        self.held: dict[str, Amounts] = {}
        """What is held for pending pods of a gang, by its key."""

    def add(self, pod: PodFacts) -> None:
        """Put *pod* on the node."""
        self.pods[pod.uid] = pod
        add(self.used, pod.request)

    def remove(self, pod: PodFacts) -> None:
        """Take *pod* from the node."""
        del self.pods[pod.uid]
        add(self.used, pod.request, -1)

    def idle(self, name: str) -> int:
        """Return how much of a resource is free; negative if it is overcommitted."""
        return self.allocatable.get(name, 0) - self.used.get(name, 0)

    def free_for(self, gang: str, name: str) -> int:
        """Return how much of a resource is free and not held for another gang; negative only if
        pods overcommit it."""
        idle = self.idle(name)
        held = sum(each.get(name, 0) for key, each in self.held.items() if key != gang)
        return min(idle, max(idle - held, 0))


# -- feasibility -----------------------------------------------------------------------------------


def feasible_nodes(
    nodes: Iterable[NodeState], pod: PodFacts, gang: str, config: Config
) -> list[NodeState]:
    """Return the nodes that *pod* of *gang* fits, in the order of *nodes*."""
    filters = "predicates" in config.plugins
    return [node for node in nodes if fits(node, pod, gang) and (not filters or accepts(node, pod))]


def fits(node: NodeState, pod: PodFacts, gang: str) -> bool:
    """Return whether the resources of *node* suffice."""
    if any(units > node.free_for(gang, name) for name, units in pod.request.items() if units > 0):
        return False
    return node.idle("cpu") >= 0 and node.idle("memory") >= 0


def accepts(node: NodeState, pod: PodFacts) -> bool:
    """Return whether no filter rejects *node*."""
    filters = (allows_scheduling, tolerates_taints, matches_node_affinity)
    is_accepted = all(passes(pod.pod, node.node) for passes in filters)
    return is_accepted and not _ports_conflict(node, pod)


def _ports_conflict(node: NodeState, pod: PodFacts) -> bool:
    for other in node.pods.values():
        for protocol, number, address in other.ports:
            for one in pod.ports:
                same = one[:2] == (protocol, number)
                if same and (address == one[2] or "0.0.0.0" in (address, one[2])):
                    return True
    return False


# -- scores ----------------------------------------------------------------------------------------


class Scorer:
    """The scores of one plugin."""

    def __init__(self, plugin: str, arguments: Mapping[str, object]) -> None:
        self.plugin = plugin
        self.arguments = arguments

    def scores(self, candidates: Sequence[NodeState], pod: PodFacts) -> list[float]:
        """Return the score of each candidate."""
        if self.plugin == "binpack":
            return [self._binpack(node, pod) for node in candidates]
        totals: list[float] = [
            self._weight("leastrequested", 1) * least_allocated(node, pod)
            + self._weight("mostrequested", 0) * most_allocated(node, pod)
            + self._weight("balancedresource", 1) * balanced(node, pod)
            for node in candidates
        ]
        affinity = _normalized([_preference(node, pod) for node in candidates])
        taints = _normalized([_soft_taints(node, pod) for node in candidates])
        for index in range(len(candidates)):
            totals[index] += self._weight("nodeaffinity", 2) * affinity[index]
            totals[index] += self._weight("tainttoleration", 3) * (100 - taints[index])
        return totals

    def _weight(self, name: str, default: int) -> int:
        return cast("int", self.arguments.get(f"{name}.weight", default))

    def _binpack(self, node: NodeState, pod: PodFacts) -> float:
        given = self.arguments
        listed = [each.strip() for each in str(given.get("binpack.resources") or "").split(",")]
        weights = {name: _number(given, f"binpack.{name}") for name in ("cpu", "memory")}
        weights |= {name: _number(given, f"binpack.resources.{name}") for name in listed if name}
        requested = [name for name in weights if pod.request.get(name, 0) > 0]
        share, weight = 0.0, 0.0
        for name in requested:
            capacity = node.allocatable.get(name, 0)
            used = node.used.get(name, 0) + pod.request[name]
            if capacity and used > capacity:
                return 0.0
            share += weights[name] * (used / capacity) if capacity else 0.0
            weight += weights[name]
        return 100 * _number(given, "binpack.weight") * share / weight if weight else 0.0


def _number(arguments: Mapping[str, object], name: str) -> float:
    value = cast("float", arguments.get(name, 1))
    return value if value >= 0 else 1.0


def _nonzero(pod: PodFacts, name: str) -> int:
    """Return the request of *pod*, with a default for one that has none."""
    return pod.request.get(name, 0) or {"cpu": 100, "memory": 200 * _MI}[name]


def least_allocated(node: NodeState, pod: PodFacts) -> int:
    """kube-scheduler's LeastAllocated, of CPU and memory."""
    scores = []
    for name in ("cpu", "memory"):
        capacity = max(node.allocatable.get(name, 0), 1)
        after = node.used.get(name, 0) + _nonzero(pod, name)
        scores.append(max(capacity - after, 0) * 100 // capacity)
    return sum(scores) // 2


def most_allocated(node: NodeState, pod: PodFacts) -> int:
    """kube-scheduler's MostAllocated, of CPU and memory."""
    scores = []
    for name in ("cpu", "memory"):
        capacity = max(node.allocatable.get(name, 0), 1)
        after = node.used.get(name, 0) + _nonzero(pod, name)
        scores.append(min(after, capacity) * 100 // capacity)
    return sum(scores) // 2


def balanced(node: NodeState, pod: PodFacts) -> int:
    """kube-scheduler's BalancedAllocation in its delta form; 75 is neutral."""
    asked = [pod.request.get(name, 0) for name in ("cpu", "memory")]
    if not any(asked):
        return 0
    before, after = [], []
    for name, units in zip(("cpu", "memory"), asked, strict=True):
        capacity = max(node.allocatable.get(name, 0), 1)
        used = node.used.get(name, 0)
        before.append(min(used / capacity, 1.0))
        after.append(min((used + units) / capacity, 1.0))
    return math.floor(50 + (50 + _evenness(after) - _evenness(before)) / 2)


def _evenness(fractions: Sequence[float]) -> int:
    return math.floor((1 - abs(fractions[0] - fractions[1]) / 2) * 100)


def _preference(node: NodeState, pod: PodFacts) -> int:
    affinity = pod.node_affinity
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    return sum(each.weight for each in terms if node_matches(each.preference, node.node))


def _soft_taints(node: NodeState, pod: PodFacts) -> int:
    soft = [each for each in node.node.spec.taints if each.effect == "PreferNoSchedule"]
    return sum(not tolerates(pod.pod.spec.tolerations, taint) for taint in soft)


def _normalized(counts: Sequence[int]) -> list[int]:
    highest = max(counts)
    return [count * 100 // highest if highest else 0 for count in counts]


def best_node(
    candidates: Sequence[NodeState], pod: PodFacts, scorers: Sequence[Scorer], guide: str
) -> NodeState:
    """Return the best of *candidates*, the first of equal ones.

    *guide* is taken if it is as good as the best but for rounding.
    """
    scores = [0.0] * len(candidates)
    for scorer in scorers:
        for index, score in enumerate(scorer.scores(candidates, pod)):
            scores[index] += score
    best = max(scores)
    keys = [math.floor(score * RESOLUTION) for score in scores]
    first = keys.index(max(keys))
    for index, node in enumerate(candidates):
        close = abs(scores[index] - best) * RESOLUTION <= 1
        if node.name == guide and close and scores[index] != scores[first]:
            return node
    return candidates[first]
