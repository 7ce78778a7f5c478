"""What a gang may use of the nodes without a delay of planned starts."""

from dataclasses import dataclass

from ..state.nodes.node_matrix import NodeMatrix, pods_that_fit
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import IntVector, Matrix


class SpareLimit:
    """Limits pods to what a gang may use of the nodes, as the limits of plugins do."""

    def __init__(self, free: Matrix, node_matrix: NodeMatrix) -> None:
        """Limit them to *free*, a row per resource and a column per node, from now on."""
        self._free = free
        self._idle = node_matrix.idle.copy()

    def node_limit(
        self, eq_class: EquivalenceClass, node_matrix: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector:
        """Return how many more pods of *eq_class* each node accepts."""
        rows = len(self._free)
        columns = slice(None) if node_indexes is None else node_indexes
        taken = self._idle[:rows, columns] - node_matrix.idle[:rows, columns]
        request = eq_class.request_vector(node_matrix.resource_index)
        return pods_that_fit(request, self._free[:, columns] - taken)


@dataclass(frozen=True, slots=True)
class Spare:
    """What a gang may use."""

    holder: str = ""
    """Key of a gang whose planned start it would delay, if it fits but for that."""
