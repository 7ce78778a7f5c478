"""``network-topology-aware``: the order of HyperNodes, and labels that are used instead.

With ``hypernode.binpack.normal-pod.enable`` nodes are scored by the utilization of their
HyperNodes, so that pods without a topology leave whole HyperNodes to others. That a gang stays
within a HyperNode does not depend on plugins (:mod:`..framework.gang_domains`).
"""

from collections.abc import Iterator, Mapping

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import FloatVector, IntVector, Matrix, ResourceIndex
from ..state.topology.domains import DomainTable
from .arguments import ArgumentError, boolean, integer, number
from .extension_points import NodeAmounts, Scores

_RESOURCES = "hypernode.binpack.resources"
_NORMAL_PODS = "hypernode.binpack.normal-pod.enable"
_FADING = "hypernode.binpack.normal-pod.fading"


class NetworkTopologyAwarePlugin:
    """Scores a HyperNode by its utilization in the resources that a gang requests."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the weights, and the labels."""
        self._weight = number(arguments, "weight", default=1)
        self._weights = {
            "cpu": number(arguments, "hypernode.binpack.cpu", default=1),
            "memory": number(arguments, "hypernode.binpack.memory", default=1),
        }
        listed = str(arguments.get(_RESOURCES) or "").split(",")
        for name in filter(None, map(str.strip, listed)):
            self._weights[name] = number(arguments, f"{_RESOURCES}.{name}", default=1)
        for name, weight in self._weights.items():
            if weight < 0:
                raise ArgumentError(f"hypernode.binpack weight of {name}", "must not be negative")
        self.label_tiers = _label_tiers(arguments.get("label-tiers"))
        self.max_eviction_domains = integer(
            arguments, "hypernode.gradient.evict.max-hypernodes", default=8, minimum=1
        )
        self._resource_index = ResourceIndex()

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the rows of the resources."""
        self._resource_index = cache.node_matrix.resource_index

    def domain_scores(self, request: IntVector, allocatable: Matrix, used: Matrix) -> Scores:
        """Return the weighted mean utilization with the gang, 0 to 100 times the weight.

        If the gang exceeds what a domain has, which then fits its minimum only, the utilization is
        that without the gang, and 100 less: so it is below all others, the fullest one first.
        """
        names = self._resource_index.names
        rows = [row for row in np.flatnonzero(request) if names[row] in self._weights]
        weights = np.array([self._weights[names[row]] for row in rows])
        if not weights.any():
            return np.zeros(used.shape[1])
        capacity = np.maximum(allocatable[rows], 1)
        utilization = (used[rows] + request[rows, None]) / capacity
        is_exceeded = (utilization > 1).any(axis=0)
        factor = 100 * self._weight / weights.sum()
        without = weights @ (used[rows] / capacity) * factor - 100 * self._weight
        scores: Scores = np.where(is_exceeded, without, weights @ utilization * factor)
        return scores


class NodesByUtilizationOfDomains(NetworkTopologyAwarePlugin):
    """Also scores nodes by the utilization of their HyperNodes at the start of a session."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the arguments."""
        super().__init__(arguments)
        self._fading = number(arguments, _FADING, default=0.8)
        if self._fading < 0:
            raise ArgumentError(_FADING, "must not be negative")
        self.generation = 0
        """Grows when the utilization of a HyperNode changes."""
        self._domains = DomainTable((), NodeMatrix())
        self._columns = 0
        self._allocatable: Matrix = np.zeros((0, 0), np.int64)
        self._used: Matrix = np.zeros((0, 0), np.int64)
        self._by_tier: list[tuple[float, IntVector]] = []
        """The weight of each tier, and the domain of each column of the nodes; -1 for none."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Add up what HyperNodes have."""
        super().on_session_open(cache)
        nodes, table = cache.node_matrix, cache.domains.table()
        every = np.arange(len(table))
        none: Matrix = np.zeros((len(self._resource_index), 0), np.int64)
        allocatable = table.row_sums(nodes.allocatable, every) if len(table) else none
        used = allocatable - table.row_sums(nodes.idle, every) if len(table) else none
        is_same = table is self._domains and nodes.columns == self._columns
        if is_same and np.array_equal(used, self._used):
            self.generation += not np.array_equal(allocatable, self._allocatable)
        else:
            self.generation += 1
        self._domains, self._allocatable, self._used = table, allocatable, used
        self._columns = nodes.columns
        if not is_same:
            self._by_tier = [*self._tiers(table, nodes.columns)]

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Return the mean utilization, with the pod, of the HyperNodes of all tiers that a node is
        in, 0 to 100 times the weight; a node without a HyperNode counts as one that is full."""
        total: FloatVector = np.zeros(len(amounts.node_indexes))
        if not self._by_tier:
            return total
        found = self.domain_scores(amounts.request, self._allocatable, self._used)
        by_domain = np.maximum(found, 0.0)
        for weight, domains in self._by_tier:
            own = domains[amounts.node_indexes]
            total += weight * np.where(own < 0, 100 * self._weight, by_domain[own])
        weights = sum(weight for weight, _ in self._by_tier)
        return total / weights if weights else total

    def _tiers(self, table: DomainTable, columns: int) -> Iterator[tuple[float, IntVector]]:
        for tier in np.unique(table.tiers).tolist():
            domains: IntVector = np.full(columns, -1, np.int64)
            for each in np.flatnonzero(table.tiers == tier).tolist():
                domains[table.members(each)] = each
            yield self._fading ** max(tier - 1, 0), domains


def network_topology_aware(arguments: Mapping[str, object]) -> NetworkTopologyAwarePlugin:
    """Return the plugin; only if it is enabled, it scores nodes for pods without a topology."""
    if boolean(arguments, _NORMAL_PODS, default=False):
        return NodesByUtilizationOfDomains(arguments)
    number(arguments, _FADING, default=0.8)  # it may be given nevertheless
    return NetworkTopologyAwarePlugin(arguments)


def _label_tiers(value: object) -> tuple[str, ...]:
    """Return labels of nodes, the lowest tier first.

    Raises:
        ArgumentError: it is no list of texts, or one is repeated.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ArgumentError("label-tiers", f"must be a list of labels, not {value!r}")
    if len(set(value)) < len(value):
        raise ArgumentError("label-tiers", f"has a label twice: {value!r}")
    return tuple(value)
