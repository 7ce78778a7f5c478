"""``network-topology-aware``: the order of HyperNodes, and labels that are used instead.

That a gang stays within a HyperNode does not depend on plugins (:mod:`..framework.gang_domains`).
"""

from collections.abc import Mapping

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.resources import IntVector, Matrix, ResourceIndex
from .arguments import ArgumentError, integer, number
from .extension_points import Scores

_RESOURCES = "hypernode.binpack.resources"


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
        """Return the weighted mean utilization with the gang, 0 to 100 times the weight; 0 if the
        gang exceeds what a domain has."""
        names = self._resource_index.names
        rows = [row for row in np.flatnonzero(request) if names[row] in self._weights]
        weights = np.array([self._weights[names[row]] for row in rows])
        if not weights.any():
            return np.zeros(used.shape[1])
        utilization = (used[rows] + request[rows, None]) / np.maximum(allocatable[rows], 1)
        scores = weights @ utilization * (100 * self._weight / weights.sum())
        return np.where((utilization > 1).any(axis=0), 0.0, scores)


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
