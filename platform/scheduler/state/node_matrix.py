"""The nodes as matrices that follow the cluster change by change.

One column a node, one row a resource: what the node offers (``allocatable``) and what of it is
left (``idle``). A column keeps its place while its node lives or pods are charged to it; then it
is used again. Whole numbers throughout, so that taking something back restores every bit.

Whoever derives something from columns (masks, scores) remembers a mark of a :class:`ChangeLog`
and asks later which columns changed: nothing is worked out anew for the others.
Neighbours: ``masks`` (who may go where), ``placer`` (where the next pod goes best).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .core_types import Node, Taint
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
    """What filters and preferences see of a node; changes seldom."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool


class ChangeLog:
    """Which columns changed, in order, for readers who come by at their own pace."""

    def __init__(self) -> None:
        """Start empty."""
        self._indexes: list[int] = []
        self._dropped = 0

    @property
    def position(self) -> int:
        """The present end of the log."""
        return self._dropped + len(self._indexes)

    def add(self, node_index: int) -> None:
        """Note a change of column *slot*."""
        self._indexes.append(node_index)
        if len(self._indexes) > 2 * _MAX_CHANGES:
            del self._indexes[:_MAX_CHANGES]
            self._dropped += _MAX_CHANGES

    def since(self, position: int) -> list[int] | None:
        """Columns changed since *mark*, or ``None`` if that is too long ago to tell."""
        if position < self._dropped:
            return None
        return self._indexes[position - self._dropped :]


class NodeMatrix:
    """Nodes and what is free on them. Not safe to change while somebody decides over it."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.resource_index = ResourceIndex()
        self.names: list[str] = []
        self.node_infos: list[NodeInfo | None] = []
        self.allocatable: Matrix = np.zeros((len(self.resource_index), _INITIAL_COLUMNS), np.int64)
        self.idle: Matrix = self.allocatable.copy()
        self.alive: BoolVector = np.zeros(_INITIAL_COLUMNS, np.bool_)
        self.usage_changes = ChangeLog()
        """Columns whose amounts changed."""
        self.node_changes = ChangeLog()
        """Columns whose node facts changed."""
        self._index_by_name: dict[str, int] = {}
        self._free_indexes: list[int] = []
        self._tie_breakers: IntVector | None = None

    # -- nodes ---------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """How many columns the matrices have, used or not."""
        return int(self.allocatable.shape[1])

    def __len__(self) -> int:
        """How many nodes there are."""
        return int(self.alive.sum())

    def update_node(self, node: Node) -> bool:
        """Take in a new or changed *node*; say whether anything that matters here changed."""
        node_index = self._index_for(node.metadata.name)
        node_info = NodeInfo(
            node.metadata.name, node.metadata.labels, node.spec.taints, node.spec.unschedulable
        )
        allocatable = self.resource_index.vector(amounts(node.status.allocatable))
        self.add_missing_rows()
        same = self.alive[node_index] and node_info == self.node_infos[node_index]
        if not same:
            self.node_infos[node_index] = node_info
            self.node_changes.add(node_index)
            self._tie_breakers = None if not self.alive[node_index] else self._tie_breakers
            self.alive[node_index] = True
        if same and np.array_equal(self.allocatable[:, node_index], allocatable):
            return False
        self._set_allocatable(node_index, allocatable)
        return True

    def remove_node(self, name: str) -> None:
        """Forget a node; pods that are still charged to it stay charged. Unknown: no matter."""
        node_index = self._index_by_name.get(name)
        if node_index is None or not self.alive[node_index]:
            return
        self.alive[node_index] = False
        self.node_infos[node_index] = None
        self._tie_breakers = None
        self.node_changes.add(node_index)
        self._set_allocatable(node_index, np.zeros(len(self.resource_index), np.int64))
        self._free_if_empty(node_index)

    def index_of(self, name: str) -> int | None:
        """The column of node *name* (known or only named by a pod), if it has one."""
        return self._index_by_name.get(name)

    def tie_breakers(self) -> IntVector:
        """Who wins among equals: the node whose name comes first has the largest number."""
        if self._tie_breakers is None:
            self._tie_breakers = np.zeros(self.columns, np.int64)
            by_name = sorted(np.flatnonzero(self.alive).tolist(), key=self.names.__getitem__)
            self._tie_breakers[by_name] = np.arange(len(by_name), 0, -1)
        return self._tie_breakers

    def total(self) -> Amounts:
        """What all nodes together offer, unschedulable ones too."""
        return self.resource_index.amounts(self.allocatable.sum(axis=1))

    def used(self) -> Amounts:
        """What all pods together take."""
        used = (self.allocatable - self.idle).sum(axis=1)
        return self.resource_index.amounts(used)

    # -- pods ----------------------------------------------------------------------------------

    def add_pod(self, name: str, request: IntVector) -> int:
        """A pod with *request* is on node *name*; returns the column."""
        node_index = self._index_for(name)
        self.allocate(request, (node_index,))
        return node_index

    def remove_pod(self, node_index: int, request: IntVector) -> None:
        """A pod with *request* is gone from column *slot*."""
        self.release(request, (node_index,))
        self._free_if_empty(node_index)

    def allocate(self, request: IntVector, node_indexes: Iterable[int]) -> None:
        """Charge *request* once to each of *slots*; a slot may come up more than once."""
        self._add_request(request, node_indexes, -1)

    def release(self, request: IntVector, node_indexes: Iterable[int]) -> None:
        """The exact opposite of :meth:`drain`."""
        self._add_request(request, node_indexes, 1)

    def capacity(self, request: IntVector, node_indexes: IntVector | None = None) -> IntVector:
        """How many pods with *request* fit at most on each of *slots* (by default all columns).

        CPU and memory count even when not asked for: an over-committed node takes nobody.
        """
        idle = self.idle if node_indexes is None else self.idle[:, node_indexes]
        capacity = np.full(idle.shape[1], MAX_AMOUNT, np.int64)
        for row in np.flatnonzero(request):
            np.minimum(capacity, idle[row] // request[row], out=capacity)
        for always in (CPU, MEMORY):
            if not request[always]:
                capacity[idle[always] < 0] = 0
        return np.maximum(capacity, 0, out=capacity)

    def add_missing_rows(self) -> None:
        """Give the matrices a row for every resource that is known by now."""
        missing = len(self.resource_index) - self.allocatable.shape[0]
        if missing:
            padding = ((0, missing), (0, 0))
            self.allocatable = np.pad(self.allocatable, padding)
            self.idle = np.pad(self.idle, padding)

    def validate(self) -> None:
        """Check what must always hold.

        Raises:
            AssertionError: the snapshot contradicts itself; the message says where.
        """
        dead = ~self.alive[: len(self.names)]
        invariants = {
            "matrices of different shapes": self.allocatable.shape == self.idle.shape,
            "a node lost its column": all(
                self.names[at] == n for n, at in self._index_by_name.items()
            ),
            "a dead node offers": not self.allocatable[:, : len(self.names)][:, dead].any(),
            "a free column is charged": not self.idle[:, self._free_indexes].any(),
        }
        for message, holds in invariants.items():
            if not holds:
                raise AssertionError(message)

    # -- inside --------------------------------------------------------------------------------

    def _index_for(self, name: str) -> int:
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
        self.alive = np.pad(self.alive, padding[1])
        self.allocatable = np.pad(self.allocatable, padding)
        self.idle = np.pad(self.idle, padding)
        self._tie_breakers = None

    def _set_allocatable(self, node_index: int, allocatable: IntVector) -> None:
        self.idle[:, node_index] += allocatable - self.allocatable[:, node_index]
        self.allocatable[:, node_index] = allocatable
        self.usage_changes.add(node_index)

    def _free_if_empty(self, node_index: int) -> None:
        if self.alive[node_index] or self.idle[PODS, node_index]:
            return
        del self._index_by_name[self.names[node_index]]
        self.names[node_index] = ""
        self._free_indexes.append(node_index)

    def _add_request(self, request: IntVector, node_indexes: Iterable[int], sign: int) -> None:
        self.add_missing_rows()
        counts: dict[int, int] = {}
        for node_index in node_indexes:
            counts[node_index] = counts.get(node_index, 0) + 1
        request = self.resource_index.padded(request)
        for node_index, count in counts.items():
            self.idle[:, node_index] += request * (sign * count)
            self.usage_changes.add(node_index)
