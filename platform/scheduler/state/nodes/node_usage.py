"""Measured utilization of nodes, as the ``usage`` plugin compares it, and their best-effort pods,
which use something without requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..podinfo.equivalence import EquivalenceClass
from ..resources import CPU, MEMORY, IntVector
from .node_matrix import NodeMatrix


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """The mean utilization of one node over some minutes, in percent of what it has."""

    cpu: float
    memory: float
    measured_at: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class UsedAmounts:
    """What processes on one node use: millicores and bytes."""

    cpu: int
    memory: int
    measured_at: float


class NodeUsages:
    """The last measurement of each node."""

    def __init__(self) -> None:
        """Start without measurements."""
        self.by_node: Mapping[str, NodeUsage] = {}
        self.version = 0
        """Grows with each measurement."""
        self._best_effort: IntVector = np.zeros(0, np.int64)

    def update(
        self,
        by_node: Mapping[str, NodeUsage],
        amounts: Mapping[str, UsedAmounts],
        nodes: NodeMatrix,
    ) -> None:
        """Replace all measurements; *amounts* are divided by what is allocatable."""
        measured = dict(by_node)
        for name, used in amounts.items():
            node_index = nodes.index_of(name)
            if node_index is not None and nodes.alive[node_index]:
                cpu, memory = (int(nodes.allocatable[row, node_index]) for row in (CPU, MEMORY))
                measured[name] = NodeUsage(
                    100 * used.cpu / max(cpu, 1),
                    100 * used.memory / max(memory, 1),
                    used.measured_at,
                )
        self.by_node = measured
        self.version += 1

    def observe(self, eq_class: EquivalenceClass, node_indexes: Sequence[int], sign: int) -> None:
        """Count best-effort pods that arrived at nodes (*sign* is 1) or left them (-1)."""
        if eq_class.best_effort and node_indexes:
            self._add_columns(max(node_indexes) + 1)
            np.add.at(self._best_effort, list(node_indexes), sign)

    def best_effort_pods(self, columns: int) -> IntVector:
        """Return the number of best-effort pods of each of *columns*, not to be changed."""
        self._add_columns(columns)
        return self._best_effort[:columns]

    def _add_columns(self, columns: int) -> None:
        missing = columns - len(self._best_effort)
        if missing > 0:
            self._best_effort = np.pad(self._best_effort, (0, missing))
