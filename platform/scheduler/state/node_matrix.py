"""Resources and host ports of nodes as matrices: a column per node, a row per resource or port.

``allocatable`` is what a node has, ``idle`` what is not allocated. A node keeps its column while it
exists or has pods; then the column is reused. Amounts are integers, so that a release restores
them exactly.

Data derived from columns (feasibility masks, scores) is kept with a position in a
:class:`ChangeLog`, and updated for the columns that changed since.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .core_types import Node, Taint
from .equivalence import EquivalenceClass
from .host_ports import HostPort, HostPortMatrix
from .node_counts import Topology
from .resources import (
    CPU,
    MAX_AMOUNT,
    MEMORY,
    PODS,
    Amounts,
    BoolVector,
    IntVector,
    Matrix,
    ResourceIndex,
    amounts,
)

_INITIAL_COLUMNS = 16
_MAX_CHANGES = 4096


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The fields of a node that filters and static scores use; they change rarely."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool


class ChangeLog:
    """The columns that changed, in order; each reader keeps its position."""

    def __init__(self) -> None:
        """Start empty."""
        self._indexes: list[int] = []
        self._dropped = 0

    @property
    def position(self) -> int:
        """The end of the log."""
        return self._dropped + len(self._indexes)

    def add(self, node_index: int) -> None:
        """Record a change of column *node_index*."""
        self._indexes.append(node_index)
        if len(self._indexes) > 2 * _MAX_CHANGES:
            del self._indexes[:_MAX_CHANGES]
            self._dropped += _MAX_CHANGES

    def since(self, position: int) -> list[int] | None:
        """Return the columns changed since *position*, or ``None`` if that is no longer logged."""
        if position < self._dropped:
            return None
        return self._indexes[position - self._dropped :]


class NodeMatrix:
    """Allocatable and idle resources of nodes. Not thread-safe."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.resource_index = ResourceIndex()
        self.names: list[str] = []
        self.node_infos: list[NodeInfo | None] = []
        self.allocatable: Matrix = np.zeros((len(self.resource_index), _INITIAL_COLUMNS), np.int64)
        self.idle: Matrix = self.allocatable.copy()
        self.host_ports = HostPortMatrix(_INITIAL_COLUMNS)
        self.alive: BoolVector = np.zeros(_INITIAL_COLUMNS, np.bool_)
        self.usage_changes = ChangeLog()
        """Columns whose amounts or host ports changed."""
        self.node_changes = ChangeLog()
        """Columns whose :class:`NodeInfo` changed."""
        self.topology = Topology(_INITIAL_COLUMNS)
        self.occupancy_listeners: list[
            Callable[[EquivalenceClass, Sequence[int], int], object]
        ] = []
        self._index_by_name: dict[str, int] = {}
        self._free_indexes: list[int] = []
        self._tie_breakers: IntVector | None = None

    # -- nodes ---------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """Number of columns of the matrices, used or not."""
        return int(self.allocatable.shape[1])

    def __len__(self) -> int:
        """Return the number of nodes."""
        return int(self.alive.sum())

    def update_node(self, node: Node) -> bool:
        """Add or update *node*; returns whether any field used here changed."""
        node_index = self.column_for(node.metadata.name)
        node_info = NodeInfo(
            node.metadata.name, node.metadata.labels, node.spec.taints, node.spec.unschedulable
        )
        allocatable = self.resource_index.vector(amounts(node.status.allocatable))
        self.add_missing_rows()
        same = self.alive[node_index] and node_info == self.node_infos[node_index]
        if not same:
            self.node_infos[node_index] = node_info
            self.topology.update_node(node_index, node_info.labels)
            self.node_changes.add(node_index)
            self._tie_breakers = None if not self.alive[node_index] else self._tie_breakers
            self.alive[node_index] = True
        if same and np.array_equal(self.allocatable[:, node_index], allocatable):
            return False
        self._set_allocatable(node_index, allocatable)
        return True

    def remove_node(self, name: str) -> None:
        """Remove a node, if it exists; its pods stay allocated."""
        node_index = self._index_by_name.get(name)
        if node_index is None or not self.alive[node_index]:
            return
        self.alive[node_index] = False
        self.node_infos[node_index] = None
        self.topology.update_node(node_index, None)
        self._tie_breakers = None
        self.node_changes.add(node_index)
        self._set_allocatable(node_index, np.zeros(len(self.resource_index), np.int64))
        self.free_if_empty(node_index)

    def index_of(self, name: str) -> int | None:
        """Return the column of node *name*, which may be unknown but have pods."""
        return self._index_by_name.get(name)

    def tie_breakers(self) -> IntVector:
        """Return a number per node that decides between equal scores: larger for earlier names."""
        if self._tie_breakers is None:
            self._tie_breakers = np.zeros(self.columns, np.int64)
            by_name = sorted(np.flatnonzero(self.alive).tolist(), key=self.names.__getitem__)
            self._tie_breakers[by_name] = np.arange(len(by_name), 0, -1)
        return self._tie_breakers

    def total(self) -> Amounts:
        """Return what is allocatable on all nodes, unschedulable ones included."""
        return self.resource_index.amounts(self.allocatable.sum(axis=1))

    def used(self) -> Amounts:
        """Return what all pods request."""
        used = (self.allocatable - self.idle).sum(axis=1)
        return self.resource_index.amounts(used)

    # -- pods ----------------------------------------------------------------------------------

    def add_pod(self, name: str, request: IntVector, ports: Sequence[HostPort] = ()) -> int:
        """Add a pod with *request* and host *ports* to node *name*; returns the column."""
        node_index = self.column_for(name)
        self.allocate(request, (node_index,), ports)
        return node_index

    def remove_pod(
        self, node_index: int, request: IntVector, ports: Sequence[HostPort] = ()
    ) -> None:
        """Remove a pod with *request* and host *ports* from column *node_index*."""
        self.release(request, (node_index,), ports)
        self.free_if_empty(node_index)

    def allocate(
        self, request: IntVector, node_indexes: Sequence[int], ports: Sequence[HostPort] = ()
    ) -> None:
        """Allocate *request* and host *ports* once for each of *node_indexes*, which may have
        repeats."""
        self._add_request(request, node_indexes, -1)
        if ports:
            self.host_ports.add(ports, node_indexes, 1)

    def release(
        self, request: IntVector, node_indexes: Sequence[int], ports: Sequence[HostPort] = ()
    ) -> None:
        """Undo :meth:`allocate`."""
        self._add_request(request, node_indexes, 1)
        if ports:
            self.host_ports.add(ports, node_indexes, -1)

    def occupy(self, eq_class: EquivalenceClass, node_indexes: Sequence[int]) -> None:
        """Add pods."""
        self.allocate(
            eq_class.request_vector(self.resource_index), node_indexes, eq_class.host_ports
        )
        for listener in self.occupancy_listeners:
            listener(eq_class, node_indexes, 1)

    def vacate(self, eq_class: EquivalenceClass, node_indexes: Sequence[int]) -> None:
        """Undo :meth:`occupy`."""
        self.release(
            eq_class.request_vector(self.resource_index), node_indexes, eq_class.host_ports
        )
        for listener in self.occupancy_listeners:
            listener(eq_class, node_indexes, -1)

    def capacity(self, request: IntVector, node_indexes: IntVector | None = None) -> IntVector:
        """Return how many pods with *request* fit on each of *node_indexes* (default: all).

        CPU and memory count even if not requested: no pod fits an overcommitted node.
        """
        idle = self.idle if node_indexes is None else self.idle[:, node_indexes]
        capacity = np.full(idle.shape[1], MAX_AMOUNT, np.int64)
        for row in np.flatnonzero(request):
            np.minimum(capacity, idle[row] // request[row], out=capacity)
        for resource in (CPU, MEMORY):
            if not request[resource]:
                capacity[idle[resource] < 0] = 0
        return np.maximum(capacity, 0, out=capacity)

    def add_missing_rows(self) -> None:
        """Extend the matrices to the rows of the resource index."""
        missing = len(self.resource_index) - self.allocatable.shape[0]
        if missing:
            padding = ((0, missing), (0, 0))
            self.allocatable = np.pad(self.allocatable, padding)
            self.idle = np.pad(self.idle, padding)

    def validate(self) -> None:
        """Check the invariants.

        Raises:
            AssertionError: one is violated; the message is its name.
        """
        allocatable = self.allocatable[:, : len(self.names)]
        removed = ~self.alive[: len(self.names)]
        invariants = {
            "matrices of different shapes": self.allocatable.shape == self.idle.shape,
            "index of another node": all(
                self.names[at] == n for n, at in self._index_by_name.items()
            ),
            "removed node with allocatable resources": not allocatable[:, removed].any(),
            "free column with allocated resources": not self.idle[:, self._free_indexes].any(),
            "free column with host ports": not any(map(self.host_ports.in_use, self._free_indexes)),
        }
        for message, holds in invariants.items():
            if not holds:
                raise AssertionError(message)

    # -- private -------------------------------------------------------------------------------

    def column_for(self, name: str) -> int:
        node_index = self._index_by_name.get(name)
        if node_index is not None:
            return node_index
        if self._free_indexes:
            node_index = self._free_indexes.pop()
            self.names[node_index] = name
        else:
            node_index = len(self.names)
            self.names.append(name)
            self.node_infos.append(None)
            if node_index == self.columns:
                self._double_columns()
        self._index_by_name[name] = node_index
        return node_index

    def _double_columns(self) -> None:
        padding = ((0, 0), (0, self.columns))
        self.host_ports.add_columns(self.columns)
        self.topology.add_columns(self.columns)
        self.alive = np.pad(self.alive, padding[1])
        self.allocatable = np.pad(self.allocatable, padding)
        self.idle = np.pad(self.idle, padding)
        self._tie_breakers = None

    def _set_allocatable(self, node_index: int, allocatable: IntVector) -> None:
        self.idle[:, node_index] += allocatable - self.allocatable[:, node_index]
        self.allocatable[:, node_index] = allocatable
        self.usage_changes.add(node_index)

    def free_if_empty(self, node_index: int) -> None:
        if self.alive[node_index] or self.idle[PODS, node_index]:
            return
        del self._index_by_name[self.names[node_index]]
        self.names[node_index] = ""
        self._free_indexes.append(node_index)

    def _add_request(self, request: IntVector, node_indexes: Sequence[int], sign: int) -> None:
        self.add_missing_rows()
        counts: dict[int, int] = {}
        for node_index in node_indexes:
            counts[node_index] = counts.get(node_index, 0) + 1
        request = self.resource_index.padded(request)
        for node_index, count in counts.items():
            self.idle[:, node_index] += request * (sign * count)
            self.usage_changes.add(node_index)
