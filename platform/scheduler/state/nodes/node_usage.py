"""Measured utilization of nodes, as the ``usage`` plugin compares it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..resources import CPU, MEMORY
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
