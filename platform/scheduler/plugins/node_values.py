"""A number for each node and set of constraints, computed again only for nodes that changed."""

from collections.abc import Callable

import numpy as np

from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import IntVector

_MAX_ENTRIES = 500
"""Sets of constraints for which values are kept; beyond that all are dropped."""

NodeValue = Callable[[EquivalenceClass, NodeInfo], int]


class NodeValues:
    """The values of one function; 0 for columns without a node."""

    def __init__(self, value: NodeValue) -> None:
        """Start empty; *value* may use the constraints of a class and the fields of a node."""
        self._value = value
        self._known: dict[bytes, tuple[int, IntVector]] = {}

    def get(self, eq_class: EquivalenceClass, nodes: NodeMatrix) -> IntVector:
        """Return the value of each column, not to be changed."""
        position, values = self._known.get(eq_class.constraints_key, (-1, _NO_VALUES))
        log = nodes.node_changes
        if position == log.position and len(values) == nodes.columns:
            return values
        changed = log.since(position) if len(values) == nodes.columns else None
        if changed is None:
            values, changed = np.zeros(nodes.columns, np.int64), list(range(len(nodes.node_infos)))
        for node_index in dict.fromkeys(changed):
            node = nodes.node_infos[node_index]
            values[node_index] = 0 if node is None else self._value(eq_class, node)
        if len(self._known) >= _MAX_ENTRIES:
            self._known.clear()
        self._known[eq_class.constraints_key] = (log.position, values)
        return values


_NO_VALUES: IntVector = np.zeros(0, np.int64)
