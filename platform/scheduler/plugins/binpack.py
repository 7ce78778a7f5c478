"""``binpack``: fill nodes, so that others stay empty for large gangs."""

from collections.abc import Mapping

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.resources import IntVector, Matrix, ResourceIndex
from .arguments import number
from .extension_points import Scores


class BinpackPlugin:
    """Scores a node by its utilization in the resources that the pod requests."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the weight of the plugin and of each resource."""
        self._weight = number(arguments, "binpack.weight", default=1)
        listed = str(arguments.get("binpack.resources") or "").split(",")
        self._weights = {
            "cpu": _non_negative(number(arguments, "binpack.cpu", default=1)),
            "memory": _non_negative(number(arguments, "binpack.memory", default=1)),
        }
        for name in filter(None, map(str.strip, listed)):
            weight = number(arguments, f"binpack.resources.{name}", default=1)
            self._weights[name] = _non_negative(weight)
        self._resource_index = ResourceIndex()

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the rows of the resources."""
        self._resource_index = cache.node_matrix.resource_index

    def score(self, request: IntVector, allocatable: Matrix, used: Matrix) -> Scores:
        """Return the weighted mean utilization with the pod, 0 to 100 times the weight."""
        names = self._resource_index.names
        rows = [row for row in np.flatnonzero(request) if names[row] in self._weights]
        weights = np.array([self._weights[names[row]] for row in rows])
        if not self._weight or not weights.any():
            return np.zeros(used.shape[1])
        capacity = allocatable[rows]
        utilization = (used[rows] + request[rows, None]) / np.maximum(capacity, 1)
        utilization = np.where(capacity > 0, utilization, 0)
        scores = weights @ utilization * (100 * self._weight / weights.sum())
        return np.where((utilization > 1).any(axis=0), 0.0, scores)


def _non_negative(weight: float) -> float:
    return weight if weight >= 0 else 1.0
