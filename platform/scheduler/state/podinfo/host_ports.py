"""Host ports of pods, and how many pods on each node use them.

Two pods conflict on a node if protocol and port are equal and the addresses overlap: ``0.0.0.0``,
which is the default, overlaps all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..core_types import Container, PodSpec
from ..resources import BoolVector, IntVector

_ANY_ADDRESS = "0.0.0.0"


class HostPort(NamedTuple):
    """A port on the addresses of a node."""

    protocol: str
    number: int
    address: str

    def overlaps(self, other: "HostPort") -> bool:
        """Return whether pods with these ports conflict; protocol and number are equal."""
        return _ANY_ADDRESS in (self.address, other.address) or self.address == other.address


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Return the distinct host ports of a pod, sorted."""
    found = {
        HostPort(port.protocol or "TCP", port.host_port, port.host_ip or _ANY_ADDRESS)
        for container in _concurrent_containers(spec)
        for port in container.ports
        if port.host_port > 0
    }
    return tuple(sorted(found))


def _concurrent_containers(spec: PodSpec) -> Iterator[Container]:
    """Yield the containers and sidecars: ports of other init containers are not reserved."""
    yield from spec.containers
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            yield container


class HostPortMatrix:
    """How many pods use each host port: a column per node, a row per port in use."""

    def __init__(self, columns: int) -> None:
        """Start without ports."""
        self._counts: npt.NDArray[np.int32] = np.zeros((4, columns), np.int32)
        self._rows: dict[tuple[str, int], dict[HostPort, int]] = {}
        """Rows of ports in use, by protocol and number."""
        self._totals: dict[HostPort, int] = {}
        self._free_rows = list(range(4))

    def __len__(self) -> int:
        """Return the number of ports in use."""
        return len(self._totals)

    def add_columns(self, count: int) -> None:
        """Add *count* columns."""
        self._counts = np.pad(self._counts, ((0, 0), (0, count)))

    def add(self, ports: Iterable[HostPort], node_indexes: Sequence[int], sign: int) -> None:
        """Count *ports* once for each of *node_indexes*; with *sign* -1, undo that."""
        if not node_indexes:
            return
        for port in ports:
            row = self._row(port)  # may replace the matrix
            np.add.at(self._counts[row], node_indexes, sign)
            total = self._totals.get(port, 0) + sign * len(node_indexes)
            if total:
                self._totals[port] = total
            else:
                self._free_row(port)

    def conflicts(
        self, ports: Iterable[HostPort], node_indexes: IntVector | None = None
    ) -> BoolVector:
        """Return for each of *node_indexes* (default: all) whether a pod there uses one of
        *ports*."""
        size = self._counts.shape[1] if node_indexes is None else len(node_indexes)
        found = np.zeros(size, np.bool_)
        for port in ports:
            for used, row in self._rows.get(port[:2], {}).items():
                if port.overlaps(used):
                    counts = self._counts[row]
                    found |= (counts if node_indexes is None else counts[node_indexes]) > 0
        return found

    def in_use(self, node_index: int) -> bool:
        """Return whether any port is in use on *node_index*."""
        return bool(self._counts[:, node_index].any())

    def _row(self, port: HostPort) -> int:
        rows = self._rows.setdefault(port[:2], {})
        row = rows.get(port)
        if row is None:
            if not self._free_rows:
                known = len(self._counts)
                self._free_rows = list(range(known, 2 * known))
                self._counts = np.pad(self._counts, ((0, known), (0, 0)))
            row = rows[port] = self._free_rows.pop()
        return row

    def _free_row(self, port: HostPort) -> None:
        rows = self._rows[port[:2]]
        self._free_rows.append(rows.pop(port))
        if not rows:
            del self._rows[port[:2]]
        self._totals.pop(port, None)
