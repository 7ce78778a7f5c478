"""Whether pods fit nodes once evicted pods are deleted and waiting pods are bound."""

import numpy as np

from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import CPU, MEMORY, BoolVector, IntVector
from .session import Session
from .victim_plan import pods_fitting


class FutureFit:
    """Compares pods with what nodes will have after the operations of statements that are not
    committed yet."""

    def __init__(self, session: Session) -> None:
        """Compare with the nodes of *session*."""
        self._session = session
        self._node_matrix = session.cache.node_matrix

    def request(self, eq_class: EquivalenceClass) -> tuple[IntVector, IntVector]:
        """Return the rows of resources that have to be compared, and the request in these rows."""
        request = eq_class.request_vector(self._node_matrix.resource_index)
        rows = np.union1d(np.flatnonzero(request), (CPU, MEMORY))
        return request[rows], rows

    def free_pods(
        self, eq_class: EquivalenceClass, node_indexes: IntVector | None = None
    ) -> IntVector:
        """Return how many more pods the amounts of *node_indexes* (default: all) suffice for."""
        request, rows = self.request(eq_class)
        return pods_fitting(request, self._node_matrix.future_idle(node_indexes)[rows])

    def limits(self, eq_class: EquivalenceClass) -> IntVector:
        """Return how many more pods each node accepts, apart from amounts."""
        return self._session.node_limit(eq_class)

    def feasible(self, eq_class: EquivalenceClass) -> BoolVector:
        """Return which nodes are feasible apart from amounts, given the pods that are there now."""
        feasible = self._session.feasible(eq_class)
        if not eq_class.sees_pods:
            return feasible
        accepted: BoolVector = feasible & ~self._session.rejected_by_pods(eq_class)
        return accepted

    def fits(self, eq_class: EquivalenceClass, node_index: int, count: int = 1) -> bool:
        """Return whether *count* more pods fit a node."""
        free = self.free_pods(eq_class, np.array([node_index]))[0]
        return bool(
            free >= count
            and self.limits(eq_class)[node_index] >= count
            and self.feasible(eq_class)[node_index]
        )
