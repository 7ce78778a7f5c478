"""Measured utilization of nodes, as the ``usage`` plugin compares it, and what their pods may use
beyond their requests: best-effort pods, and limits above the requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..podinfo.declared_fields import PodFields, UndeclaredFieldError
from ..podinfo.equivalence import EquivalenceClass
from ..resources import CPU, MEMORY, IntVector, Matrix
from .node_matrix import NodeMatrix

LIMITS = PodFields(limits=True)
"""What a plugin declares that uses :meth:`NodeUsages.bursts`."""


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
        self._bursts: Matrix = np.zeros((2, 0), np.int64)

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
        """Count pods that arrived at nodes (*sign* is 1) or left them (-1)."""
        burst = burst_of(eq_class) if eq_class.fields else None
        if node_indexes and (eq_class.best_effort or burst is not None):
            self._add_columns(max(node_indexes) + 1)
            if eq_class.best_effort:
                np.add.at(self._best_effort, list(node_indexes), sign)
            if burst is not None:
                for row, amount in zip(self._bursts, burst.tolist(), strict=True):
                    np.add.at(row, list(node_indexes), sign * amount)

    def best_effort_pods(self, columns: int) -> IntVector:
        """Return the number of best-effort pods of each of *columns*, not to be changed."""
        self._add_columns(columns)
        return self._best_effort[:columns]

    def bursts(self, columns: int) -> Matrix:
        """Return by how much the limits of the pods of each of *columns* exceed their requests, CPU
        and memory; not to be changed. All are 0 unless a plugin declares :data:`LIMITS`."""
        self._add_columns(columns)
        return self._bursts[:, :columns]

    def _add_columns(self, columns: int) -> None:
        missing = columns - len(self._best_effort)
        if missing > 0:
            self._best_effort = np.pad(self._best_effort, (0, missing))
            self._bursts = np.pad(self._bursts, ((0, 0), (0, missing)))


def burst_of(eq_class: EquivalenceClass) -> IntVector | None:
    """Return by how much the limits of a pod exceed its requests, CPU and memory; ``None`` if no
    plugin declares :data:`LIMITS`. A pod without a limit counts as one without a burst."""
    pods = LIMITS.of(eq_class)
    try:
        limits = [(pods.limit(name), eq_class.request.get(name, 0)) for name in ("cpu", "memory")]
    except UndeclaredFieldError:
        return None
    return np.array([max((limit or 0) - request, 0) for limit, request in limits], np.int64)
