"""``resource-strategy-fit``: fill nodes by some resources, and spread pods by others.

Each resource has a strategy and a weight; a pod may override both by annotations. With
``RequestedToCapacityRatio``, the score of a utilization is on a line through given points, as in
the plugin NodeResourcesFit of kube-scheduler.
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
from ..state.resources import FloatVector, IntVector
from .arguments import ArgumentError, integer, mapping, require_read, text
from .extension_points import NodeAmounts, Scores
from .scarce_resources import Proportional, ScarceResources
from .utilization_shape import MAX_SHAPE_SCORE, Shape, parse_shape

log = logging.getLogger(__name__)

LEAST, MOST, RATIO = "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"
_KINDS = (LEAST, MOST, RATIO)


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the utilization of one resource is scored."""

    kind: str = LEAST
    weight: int = 1
    shape: Shape = ()
    """Of ``RequestedToCapacityRatio``."""

    def scores(self, fraction: FloatVector) -> FloatVector:
        """Return the scores of nodes with a utilization of *fraction*, 0 to 1."""
        if self.kind == RATIO:
            utilization, scores = zip(*self.shape, strict=True)
            found: FloatVector = np.interp(fraction * 100, utilization, scores) / MAX_SHAPE_SCORE
            return found
        return fraction if self.kind == MOST else 1 - fraction


_DEFAULT = {"cpu": Strategy(), "memory": Strategy()}


class ResourceStrategyFitPlugin:
    """Scores nodes by the utilization of the resources that a pod requests."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the strategies of resources."""
        self._weight = integer(arguments, "resourceStrategyFitWeight", default=10, minimum=0)
        resources = mapping(arguments, "resources")
        self._strategies = {name: _strategy(resources, name) for name in resources} or _DEFAULT
        self._scarce = ScarceResources.parse(arguments)
        self._proportional = Proportional.parse(arguments)
        self._nodes = NodeMatrix()

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the nodes."""
        self._nodes = cache.node_matrix

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Return the weighted mean over the resources, 0 to 100 times the weight, and the score by
        scarce resources."""
        names = self._nodes.resource_index.names
        scores = self._utilization_scores(eq_class, amounts, names)
        return scores if self._scarce is None else scores + self._scarce.scores(names, amounts)

    def node_limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Keep CPU and memory for free devices."""
        if self._proportional is None:
            return None
        return self._proportional.limit(eq_class, nodes, node_indexes)

    def node_limit_reason(self, eq_class: EquivalenceClass) -> str:
        """Return the reason of Volcano."""
        return self._proportional.reason if self._proportional else ""

    def _utilization_scores(
        self, eq_class: EquivalenceClass, amounts: NodeAmounts, names: list[str]
    ) -> FloatVector:
        request, used = amounts.request, amounts.used
        scores, weights = np.zeros(len(amounts.node_indexes)), 0
        for row in np.flatnonzero(request):
            strategy = self._strategy_of(names[row], eq_class)
            if strategy is None or not strategy.weight:
                continue
            weights += strategy.weight
            capacity = amounts.allocatable[row]
            fraction = (used[row] + request[row]) / np.maximum(capacity, 1)
            score = strategy.scores(fraction) * strategy.weight
            scores += np.where((capacity > 0) & (fraction <= 1), score, 0.0)
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
        is_possible = kind in (LEAST, MOST) or (kind == RATIO and found is not None and found.shape)
        return replace(found, kind=kind) if found and is_possible else found


def _strategy(resources: Mapping[str, object], name: str) -> Strategy:
    try:
        given = mapping(resources, name)
        kind = text(given, "type", default=LEAST)
        weight = integer(given, "weight", default=1, minimum=0)
        shape = parse_shape(given, "shape")
        require_read(given, name)
    except ArgumentError as error:
        raise ArgumentError("resources", str(error)) from error
    if kind not in _KINDS:
        raise ArgumentError(
            "resources", f"{name}: type must be {', '.join(_KINDS[:-1])} or {RATIO}, not {kind!r}"
        )
    if bool(shape) is not (kind == RATIO):
        problem = "must have a shape" if kind == RATIO else "has a shape"
        raise ArgumentError("resources", f"{name}: type {kind} {problem}")
    return Strategy(kind, weight, shape)


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
