"""``nodeorder``: least allocated, balanced allocation, preferred affinity and taints, preferred
inter-pod affinity and soft topology spread (see :mod:`.pod_scores`).

Scores are those of kube-scheduler (0 to 100 each, truncated to integers, times a weight). A pod
without requests for CPU or memory is scored with a default request. Preferences are normalized over
the candidates: the nodes that fit the next pod.
"""

from collections.abc import Mapping

import numpy as np

from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_topology import domain_keys
from ..state.resources import CPU, MEMORY, FloatVector, IntVector
from . import added_affinity
from .arguments import integer
from .extension_points import NodeAmounts, Scores
from .node_values import NodeValues
from .pod_scores import affinity_scores, spread_scores
from .predicates import IncludedNodes, count_untolerated

_CPU_AND_MEMORY = slice(CPU, MEMORY + 1)
_MIN_IMAGE_BYTES, _MAX_IMAGE_BYTES = 23 * 2**20, 1000 * 2**20
"""Bytes of images on a node for a score of 0, and, for each container, of 100."""

_DEFAULT_REQUEST = np.array(((100,), (200 * 2**20,)))
"""Request of a pod without requests: millicores and bytes."""


class NodeOrderPlugin:
    """The scores of kube-scheduler."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the weights; 0 disables a score."""
        self._least_weight = integer(arguments, "leastrequested.weight", default=1)
        self._most_weight = integer(arguments, "mostrequested.weight", default=0)
        self._balance_weight = integer(arguments, "balancedresource.weight", default=1)
        self._affinity_weight = integer(arguments, "nodeaffinity.weight", default=2)
        self._taints_weight = integer(arguments, "tainttoleration.weight", default=3)
        self._pod_affinity_weight = integer(arguments, "podaffinity.weight", default=2)
        self._images_weight = integer(arguments, "imagelocality.weight", default=1)
        self._spread_weight = integer(arguments, "podtopologyspread.weight", default=2)
        self._added = added_affinity.preferred(arguments)
        self._included = IncludedNodes()
        self._affinity_weights = NodeValues(self._affinity_weight_of)
        self._untolerated = NodeValues(_count_untolerated)

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Score by least or most allocated, and by balance."""
        capacity = np.maximum(amounts.allocatable[_CPU_AND_MEMORY], 1)
        requested, in_use = amounts.request[_CPU_AND_MEMORY, None], amounts.used[_CPU_AND_MEMORY]
        scores = np.zeros(len(amounts.node_indexes))
        if self._least_weight or self._most_weight:
            after = np.minimum(
                in_use + np.where(requested > 0, requested, _DEFAULT_REQUEST), capacity
            )
            if self._least_weight:
                free = (capacity - after) * 100 // capacity
                scores += self._least_weight * ((free[CPU] + free[MEMORY]) // 2)
            if self._most_weight:
                full = after * 100 // capacity
                scores += self._most_weight * ((full[CPU] + full[MEMORY]) // 2)
        if self._balance_weight and requested.any():
            scores += self._balance_weight * _balance_score(
                in_use / capacity, (in_use + requested) / capacity
            )
        return scores

    def normalized_scores(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, candidates: IntVector
    ) -> IntVector | None:
        """Score by preferred node affinity, ``PreferNoSchedule`` taints, and images on nodes."""
        total: IntVector | None = None
        if (eq_class.preferred or self._added) and self._affinity_weight:
            weights = self._affinity_weights.get(eq_class, nodes)[candidates]
            highest = int(weights.max())
            if highest and weights.min() < highest:
                total = self._affinity_weight * (weights * 100 // highest)
        if self._taints_weight:
            intolerable = self._untolerated.get(eq_class, nodes)[candidates]
            highest = int(intolerable.max())
            if highest and intolerable.min() < highest:
                scores = self._taints_weight * (100 - intolerable * 100 // highest)
                total = scores if total is None else total + scores
        if self._images_weight:
            images = image_scores(eq_class, nodes)
            if images is not None:
                scores = self._images_weight * images[candidates]
                total = scores if total is None else total + scores
        return total

    def prefers_by_pods(self, eq_class: EquivalenceClass) -> bool:
        """Return whether a preference of the pods, or of other pods for them, counts."""
        if eq_class.terms.soft_spread and self._spread_weight:
            return True
        return bool(self._pod_affinity_weight) and bool(
            eq_class.terms.preferred
            or any(any(domain_keys(each.preferences)) for each in eq_class.matched_by)
        )

    def pod_scores(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, candidates: IntVector
    ) -> IntVector | None:
        """Score by preferred inter-pod affinity and by soft topology spread."""
        total: IntVector | None = None
        if self._pod_affinity_weight:
            scores = affinity_scores(eq_class, nodes, candidates)
            total = None if scores is None else self._pod_affinity_weight * scores
        if self._spread_weight and eq_class.terms.soft_spread:
            included = self._included.get(eq_class, eq_class.terms.soft_spread, nodes)
            scores = self._spread_weight * spread_scores(eq_class, nodes, candidates, included)
            total = scores if total is None else total + scores
        return total

    def _affinity_weight_of(self, eq_class: EquivalenceClass, node: NodeInfo) -> int:
        terms = (*eq_class.preferred, *self._added)
        name, labels = node.name, node.labels
        return sum(each.weight for each in terms if each.preference.matches(name, labels))


def image_scores(eq_class: EquivalenceClass, nodes: NodeMatrix) -> IntVector | None:
    """Score each column by the images of the pods that the node has; ``None`` if all are 0."""
    local = nodes.images.local_bytes(
        eq_class.images, columns=nodes.columns, node_count=max(len(nodes), 1)
    )
    if local is None:
        return None
    most = _MAX_IMAGE_BYTES * max(eq_class.container_count, 1)
    scores: IntVector = (
        100
        * (np.clip(local, _MIN_IMAGE_BYTES, most) - _MIN_IMAGE_BYTES)
        // (most - _MIN_IMAGE_BYTES)
    )
    return scores if scores.any() else None


def _count_untolerated(eq_class: EquivalenceClass, node: NodeInfo) -> int:
    return count_untolerated(eq_class, node, "PreferNoSchedule") if node.taints else 0


def _balance_score(before: FloatVector, after: FloatVector) -> FloatVector:
    """Score by how much the pod balances CPU and memory utilization; 75 if it does not."""
    score_before, score_after = _balanced_fraction(before), _balanced_fraction(after)
    scores: FloatVector = np.floor(50 + (50 + score_after - score_before) / 2)
    return scores


def _balanced_fraction(use: FloatVector) -> FloatVector:
    deviation = np.abs(np.minimum(use[0], 1) - np.minimum(use[1], 1)) / 2
    scores: FloatVector = np.floor((1 - deviation) * 100)
    return scores
