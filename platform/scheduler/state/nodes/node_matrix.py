"""Resources and host ports of nodes as matrices: a column per node, a row per resource or port.

``allocatable`` is what a node has, ``idle`` what is not allocated. ``releasing`` is the part of the
allocated amounts that terminating pods still use, and ``pipelined`` what is promised to pods that
wait for them. A node keeps its column while it exists or has pods; then the column is reused.
Amounts are integers, so that a release restores them exactly.

Data derived from columns (feasibility masks, scores) is kept with a position in a
:class:`ChangeLog`, and updated for the columns that changed since.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ..core_types import Node, Taint
from ..devices.available_devices import AvailableDevices
from ..podinfo.available_volumes import AvailableVolumes
from ..podinfo.equivalence import EquivalenceClass
from ..podinfo.host_ports import HostPort, HostPortMatrix
from ..podinfo.images import NodeImages
from ..podinfo.node_counts import Topology
from ..podinfo.volumes import AttachedVolumes
from ..resources import (
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

T = TypeVar("T")

OccupancyListener = Callable[[EquivalenceClass, Sequence[int], int], object]
"""Called with a class, a node for each pod of it, and 1 if they arrive or -1 if they leave."""

_INITIAL_COLUMNS = 16
_MAX_CHANGES = 4096


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The fields of a node that filters and static scores use; they change rarely."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool


class ChangeLog(Generic[T]):
    """What changed (columns, or names), in order; each reader keeps its position."""

    def __init__(self) -> None:
        """Start empty."""
        self._changed: list[T] = []
        self._dropped = 0

    @property
    def position(self) -> int:
        """The end of the log."""
        return self._dropped + len(self._changed)

    def add(self, changed: T) -> None:
        """Record a change of *changed*."""
        self._changed.append(changed)
        if len(self._changed) > 2 * _MAX_CHANGES:
            del self._changed[:_MAX_CHANGES]
            self._dropped += _MAX_CHANGES

    def since(self, position: int) -> list[T] | None:
        """Return what changed since *position*, or ``None`` if that is no longer logged."""
        if position < self._dropped:
            return None
        return self._changed[position - self._dropped :]


class NodeMatrix:
    """Allocatable and idle resources of nodes. Not thread-safe."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.resource_index = ResourceIndex()
        self.names: list[str] = []
        self.node_infos: list[NodeInfo | None] = []
        self.allocatable: Matrix = np.zeros((len(self.resource_index), _INITIAL_COLUMNS), np.int64)
        self.idle: Matrix = self.allocatable.copy()
        self.releasing: Matrix = self.allocatable.copy()
        self.pipelined: Matrix = self.allocatable.copy()
        self.total_version = 0
        """Grows when :meth:`total` changes."""
        self.occupancy_listeners: list[OccupancyListener] = []
        self._pipelined_pods = 0
        self._total: Amounts | None = None
        self.host_ports = HostPortMatrix(_INITIAL_COLUMNS)
        self.topology = Topology(_INITIAL_COLUMNS)
        self.images = NodeImages()
        self.alive: BoolVector = np.zeros(_INITIAL_COLUMNS, np.bool_)
        self.usage_changes: ChangeLog[int] = ChangeLog()
        """Columns whose amounts or host ports changed."""
        self.node_changes: ChangeLog[int] = ChangeLog()
        """Columns whose :class:`NodeInfo` changed."""
        self._index_by_name: dict[str, int] = {}
        self.attached_volumes = AttachedVolumes(self.names, self._index_by_name)
        self.available_volumes = AvailableVolumes(self)
        self.available_devices = AvailableDevices(self)
        self._free_indexes: list[int] = []
        self._tie_breakers: IntVector | None = None

    # -- nodes ---------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """Number of columns of the matrices, used or not."""
        return int(self.allocatable.shape[1])

    @property
    def node_position(self) -> int:
        """Grows when a :class:`NodeInfo` changes."""
        return self.node_changes.position

    def __len__(self) -> int:
        """Return the number of nodes."""
        return int(self.alive.sum())

    def update_node(self, node: Node) -> bool:
        """Add or update *node*; returns whether any field used here changed."""
        node_index = self._index_for(node.metadata.name)
        node_info = NodeInfo(
            node.metadata.name, node.metadata.labels, node.spec.taints, node.spec.unschedulable
        )
        self.images.update(node_index, node.status.images)
        same = self.alive[node_index] and node_info == self.node_infos[node_index]
        if not same:
            self.node_infos[node_index] = node_info
            self.topology.update_node(node_index, node_info.labels)
            self.node_changes.add(node_index)
            self._tie_breakers = None if not self.alive[node_index] else self._tie_breakers
            self.alive[node_index] = True
        allocatable = self._allocatable_of(node, node_index)
        if same and np.array_equal(self.allocatable[:, node_index], allocatable):
            return False
        self._set_allocatable(node_index, allocatable)
        return True

    def _allocatable_of(self, node: Node, node_index: int) -> IntVector:
        """Return what a node has, with the extended resources that its devices provide."""
        own, devices = amounts(node.status.allocatable), self.available_devices
        extended = (name for name, units in own.items() if units and "/" in name)
        devices.set_own_resources(node.metadata.name, frozenset(extended))
        if devices.resources:
            own |= amounts(devices.offered(node_index))
        vector = self.resource_index.vector(own)
        self.add_missing_rows()
        return vector

    def update_device_resources(
        self, *, former: Iterable[str] = (), nodes: Collection[str] = ("",)
    ) -> None:
        """Count the devices of *nodes* again that provide extended resources, of all if an empty
        name is one of these; *former* are the resources that they have provided before."""
        names = {*former, *self.available_devices.resources}
        if not names:
            return
        for name in names:
            self.resource_index.row(name)
        self.add_missing_rows()
        indexes = np.flatnonzero(self.alive).tolist()
        if "" not in nodes:
            known = (self.index_of(each) for each in nodes)
            indexes = [each for each in known if each is not None and self.alive[each]]
        for node_index in indexes:
            offered = amounts(self.available_devices.offered(node_index))
            vector = self.allocatable[:, node_index].copy()
            own = self.available_devices.own_resources(self.names[node_index])
            for name in names - own:
                vector[self.resource_index.row(name)] = offered.get(name, 0)
            if not np.array_equal(vector, self.allocatable[:, node_index]):
                self._set_allocatable(node_index, vector)

    def remove_node(self, name: str) -> None:
        """Remove a node, if it exists; its pods stay allocated."""
        node_index = self._index_by_name.get(name)
        if node_index is None or not self.alive[node_index]:
            return
        self.alive[node_index] = False
        self.node_infos[node_index] = None
        self.topology.update_node(node_index, None)
        self.images.update(node_index, ())
        self._tie_breakers = None
        self.node_changes.add(node_index)
        self.add_missing_rows()
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
        if self._total is None:
            self._total = self.resource_index.amounts(self.allocatable.sum(axis=1))
        return self._total.copy()

    def used(self) -> Amounts:
        """Return what the pods on all nodes request; those of removed nodes do not count."""
        used = (self.allocatable - self.idle)[:, self.alive].sum(axis=1)
        return self.resource_index.amounts(used)

    # -- pods ----------------------------------------------------------------------------------

    def column_for(self, name: str) -> int:
        """Return the column of node *name*, which is added if it is unknown."""
        return self._index_for(name)

    def occupy(self, eq_class: EquivalenceClass, node_indexes: Sequence[int]) -> None:
        """Add a pod of *eq_class* to each of *node_indexes*, which may have repeats."""
        self._add_request(eq_class.request_vector(self.resource_index), node_indexes, -1)
        self.add_occupancy(eq_class, node_indexes, 1)

    def vacate(self, eq_class: EquivalenceClass, node_indexes: Sequence[int]) -> None:
        """Undo :meth:`occupy`; the column of a removed node stays until :meth:`free_if_empty`."""
        self._add_request(eq_class.request_vector(self.resource_index), node_indexes, 1)
        self.add_occupancy(eq_class, node_indexes, -1)

    def add_occupancy(
        self, eq_class: EquivalenceClass, node_indexes: Sequence[int], sign: int
    ) -> None:
        """Count pods of *eq_class* in all that depends on which pods are on a node, apart from
        amounts; with *sign* -1, undo that."""
        if eq_class.host_ports:
            self.host_ports.add(eq_class.host_ports, node_indexes, sign)
            for node_index in node_indexes:
                self.usage_changes.add(node_index)
        for listener in self.occupancy_listeners:
            listener(eq_class, node_indexes, sign)

    def add_releasing(
        self, eq_class: EquivalenceClass, node_indexes: Sequence[int], sign: int = 1
    ) -> None:
        """Count a terminating pod of *eq_class* on each of *node_indexes*; with *sign* -1, undo
        that."""
        request = eq_class.request_vector(self.resource_index)
        self.add_missing_rows()
        self._add_to(self.releasing, request, node_indexes, sign)

    def add_pipelined(
        self, eq_class: EquivalenceClass, node_indexes: Sequence[int], sign: int = 1
    ) -> None:
        """Promise each of *node_indexes* to a pod of *eq_class*; with *sign* -1, undo that."""
        request = eq_class.request_vector(self.resource_index)
        self.add_missing_rows()
        self._add_to(self.pipelined, request, node_indexes, sign)
        self._pipelined_pods += sign * len(node_indexes)

    def add_pod(self, name: str, request: IntVector, ports: Sequence[HostPort] = ()) -> int:
        """Add a pod with *request* and host *ports* to node *name*; returns the column."""
        node_index = self._index_for(name)
        self.allocate(request, (node_index,), ports)
        return node_index

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

    def future_idle(self, node_indexes: IntVector | None = None) -> Matrix:
        """Return what is idle once terminating pods are deleted and waiting pods are bound."""
        if node_indexes is None:
            return self.idle + self.releasing - self.pipelined
        releasing, pipelined = self.releasing[:, node_indexes], self.pipelined[:, node_indexes]
        return self.idle[:, node_indexes] + releasing - pipelined

    @property
    def has_pipelined(self) -> bool:
        """Whether any amount is promised to waiting pods."""
        return self._pipelined_pods > 0

    def is_overcommitted(self, node_index: int) -> bool:
        """Return whether the pods of a node request more than it has."""
        return bool(self.alive[node_index]) and bool(self.idle[:, node_index].min() < 0)

    def available(self, node_indexes: IntVector | None = None) -> Matrix:
        """Return what is idle and not promised to waiting pods; not to be changed.

        It is negative on overcommitted nodes only, not where more is promised than will be idle.
        """
        idle = self.idle if node_indexes is None else self.idle[:, node_indexes]
        if not self._pipelined_pods:
            return idle
        return np.minimum(idle, np.maximum(self.future_idle(node_indexes), 0))

    def capacity(self, request: IntVector, node_indexes: IntVector | None = None) -> IntVector:
        """Return how many pods with *request* fit on each of *node_indexes* (default: all) now."""
        return pods_that_fit(request, self.available(node_indexes))

    def add_missing_rows(self) -> None:
        """Extend the matrices to the rows of the resource index."""
        missing = len(self.resource_index) - self.allocatable.shape[0]
        if missing:
            padding = ((0, missing), (0, 0))
            self.allocatable = np.pad(self.allocatable, padding)
            self.idle = np.pad(self.idle, padding)
            self.releasing = np.pad(self.releasing, padding)
            self.pipelined = np.pad(self.pipelined, padding)

    def validate(self) -> None:
        """Check the invariants.

        Raises:
            AssertionError: one is violated; the message is its name.
        """
        allocatable = self.allocatable[:, : len(self.names)]
        removed = ~self.alive[: len(self.names)]
        invariants = {
            "matrices of different shapes": all(
                self.allocatable.shape == each.shape
                for each in (self.idle, self.releasing, self.pipelined)
            ),
            "more releasing than used": (self.releasing <= self.allocatable - self.idle).all()
            and (self.releasing >= 0).all(),
            "pipelined pods out of step": bool(self._pipelined_pods) == bool(self.pipelined.any()),
            "outdated total": self.total()
            == self.resource_index.amounts(self.allocatable.sum(axis=1)),
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
        self.host_ports.add_columns(self.columns)
        self.topology.add_columns(self.columns)
        self.alive = np.pad(self.alive, padding[1])
        self.allocatable = np.pad(self.allocatable, padding)
        self.idle = np.pad(self.idle, padding)
        self.releasing = np.pad(self.releasing, padding)
        self.pipelined = np.pad(self.pipelined, padding)
        self._tie_breakers = None

    def _set_allocatable(self, node_index: int, allocatable: IntVector) -> None:
        difference = allocatable - self.allocatable[:, node_index]
        if difference.any():
            self._total = None
            self.total_version += 1
        self.idle[:, node_index] += difference
        self.allocatable[:, node_index] = allocatable
        self.usage_changes.add(node_index)

    def free_if_empty(self, node_index: int) -> None:
        """Free the column of a removed node without pods."""
        if self.alive[node_index] or not self.names[node_index]:
            return
        if self.idle[PODS, node_index] or self.pipelined[PODS, node_index]:
            return
        del self._index_by_name[self.names[node_index]]
        self.names[node_index] = ""
        self._free_indexes.append(node_index)

    def _add_request(self, request: IntVector, node_indexes: Sequence[int], sign: int) -> None:
        self.add_missing_rows()
        self._add_to(self.idle, request, node_indexes, sign)

    def _add_to(
        self, matrix: Matrix, request: IntVector, node_indexes: Sequence[int], sign: int
    ) -> None:
        """Add *request* to a column of *matrix* for each of *node_indexes*."""
        counts: dict[int, int] = {}
        for node_index in node_indexes:
            counts[node_index] = counts.get(node_index, 0) + 1
        rows = len(request)
        for node_index, count in counts.items():
            matrix[:rows, node_index] += request * (sign * count)
            self.usage_changes.add(node_index)


def pods_that_fit(request: IntVector, free: Matrix) -> IntVector:
    """Return how many pods with *request* fit each column of *free*.

    CPU and memory count even if not requested: no pod fits an overcommitted node.
    """
    capacity = np.full(free.shape[1], MAX_AMOUNT, np.int64)
    for row in np.flatnonzero(request):
        np.minimum(capacity, free[row] // request[row], out=capacity)
    for resource in (CPU, MEMORY):
        if not request[resource]:
            capacity[free[resource] < 0] = 0
    return np.maximum(capacity, 0, out=capacity)
