"""Shortages on nodes that are caused by pods which arrive there without a decision of this
scheduler.

An arrival causes a shortage of the resources that it requests, and only where they sufficed
before. What is lacking because the allocatable resources of the node fell, or because a pod was
resized, has no cause here.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ..podinfo.equivalence import EquivalenceClass
from ..resources import BoolVector, IntVector
from .node_matrix import NodeMatrix

_OfNode = Callable[[int], IntVector]


class ArrivalShortages:
    """By how much arrivals exceed what nodes have."""

    def __init__(self, node_matrix: NodeMatrix, without_pods: _OfNode) -> None:
        """Start without any; *without_pods* returns what a node is charged for pods that do not
        exist."""
        self._node_matrix = node_matrix
        self._without_pods = without_pods
        self._caused: dict[int, IntVector] = {}

    def __iter__(self) -> Iterator[int]:
        """Return the nodes with a shortage that may still exist."""
        return iter(list(self._caused))

    def __contains__(self, node_index: int) -> bool:
        """Return whether arrivals have caused a shortage on a node."""
        return node_index in self._caused

    def observe(self, node_index: int, eq_class: EquivalenceClass) -> None:
        """Count a pod that has arrived, and is charged already."""
        matrix = self._node_matrix
        if not matrix.is_overcommitted(node_index):
            return
        request = eq_class.request_vector(matrix.resource_index)
        after = self._shortage(node_index)
        before = np.maximum(after - request, 0)
        caused = np.minimum(self._known(node_index), before)
        is_cause: BoolVector = (request > 0) & (after > 0) & (caused >= before)
        caused[is_cause] = after[is_cause]
        if caused.any():
            self._caused[node_index] = caused

    def lacking(self, node_index: int) -> IntVector:
        """Return what a node lacks because of arrivals, once terminating pods are deleted."""
        matrix = self._node_matrix
        if node_index not in self._caused or not matrix.is_overcommitted(node_index):
            return np.zeros(len(matrix.resource_index), np.int64)
        shortage = np.maximum(self._shortage(node_index), 0)
        caused: IntVector = np.minimum(shortage, self._known(node_index))
        return caused

    def forget(self, node_index: int) -> None:
        """Forget what arrivals have caused on a node."""
        self._caused.pop(node_index, None)

    # -- private -------------------------------------------------------------------------------

    def _shortage(self, node_index: int) -> IntVector:
        """Return what a node lacks for the existing pods that do not terminate; negative where
        something is left."""
        matrix = self._node_matrix
        matrix.add_missing_rows()
        left = matrix.idle[:, node_index] + self._without_pods(node_index)
        shortage: IntVector = -left - matrix.releasing[:, node_index]
        return shortage

    def _known(self, node_index: int) -> IntVector:
        known = self._caused.get(node_index, np.zeros(0, np.int64))
        return self._node_matrix.resource_index.padded(known)
