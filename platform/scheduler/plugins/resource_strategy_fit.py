"""``resource-strategy-fit``: fill nodes by some resources, and spread pods by others.

Each resource has a strategy and a weight; a pod may override both by annotations.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import IntVector, Matrix
from .arguments import ArgumentError, integer, mapping, require_read, text
from .extension_points import Scores

log = logging.getLogger(__name__)

LEAST, MOST = "LeastAllocated", "MostAllocated"


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the utilization of one resource is scored."""

    kind: str = LEAST
    weight: int = 1


_DEFAULT = {"cpu": Strategy(), "memory": Strategy()}


class ResourceStrategyFitPlugin:
    """Scores nodes by the utilization of the resources that a pod requests."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the strategies of resources."""
        self._weight = integer(arguments, "resourceStrategyFitWeight", default=10, minimum=0)
        resources = mapping(arguments, "resources")
        self._strategies = {name: _strategy(resources, name) for name in resources} or _DEFAULT
        for name in ("sra", "proportional"):
            if arguments.get(name):
                raise ArgumentError(name, "is not implemented")
        self._nodes = NodeMatrix()

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the nodes."""
        self._nodes = cache.node_matrix

    def node_score(
        self, eq_class: EquivalenceClass, node_indexes: IntVector, used: Matrix
    ) -> Scores:
        """Return the weighted mean over the resources, 0 to 100 times the weight."""
        names = self._nodes.resource_index.names
        request = eq_class.request_vector(self._nodes.resource_index)
        scores, weights = np.zeros(len(node_indexes)), 0
        for row in np.flatnonzero(request):
            strategy = self._strategy_of(names[row], eq_class)
            if strategy is None or not strategy.weight:
                continue
            weights += strategy.weight
            capacity = self._nodes.allocatable[row, node_indexes]
            fraction = (used[row] + request[row]) / np.maximum(capacity, 1)
            score = fraction if strategy.kind == MOST else 1 - fraction
            scores += np.where((capacity > 0) & (fraction <= 1), score * strategy.weight, 0.0)
        return scores * (100 * self._weight / weights) if weights else scores

    def _strategy_of(self, name: str, eq_class: EquivalenceClass) -> Strategy | None:
        """Return the strategy of a resource; a name that ends with ``*`` is a prefix."""
        found = self._strategies.get(name)
        if found is None:
            prefixes = (each for each in self._strategies if each.endswith("*"))
            matching = [each for each in prefixes if name.startswith(each[:-1])]
            found = self._strategies[max(matching, key=len)] if matching else None
        kind, weights = eq_class.traits.strategy
        own = _weights(weights)
        if name in own:
            found = replace(found or Strategy(), weight=own[name])
        return replace(found, kind=kind) if found and kind in (LEAST, MOST) else found


def _strategy(resources: Mapping[str, object], name: str) -> Strategy:
    try:
        given = mapping(resources, name)
        kind = text(given, "type", default=LEAST)
        weight = integer(given, "weight", default=1, minimum=0)
        require_read(given, name)
    except ArgumentError as error:
        raise ArgumentError("resources", str(error)) from error
    if kind not in (LEAST, MOST):
        raise ArgumentError("resources", f"{name}: type must be {LEAST} or {MOST}, not {kind!r}")
    return Strategy(kind, weight)


@lru_cache(maxsize=1024)
def _weights(annotation: str) -> Mapping[str, int]:
    """Return the weights that a pod asks for; none if the annotation is malformed."""
    if not annotation:
        return {}
    try:
        weights = json.loads(annotation)
    except ValueError:
        weights = None
    valid = isinstance(weights, dict) and all(
        isinstance(each, int) and not isinstance(each, bool) and each >= 0
        for each in weights.values()
    )
    if not valid:
        log.warning("ignoring invalid resource weights of pods", extra={"annotation": annotation})
        return {}
    return dict(weights)
