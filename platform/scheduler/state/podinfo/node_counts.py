"""Counts of pods per node, and their sums per domain of the topology keys in use.

Domains of a topology key are the distinct values of a node label. A count is kept for nodes that
have any, so the size does not depend on the cluster; sums are updated with each pod.
"""

from collections.abc import Mapping
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ..resources import BoolVector, IntVector

_DomainIds = npt.NDArray[np.int32]

NO_DOMAIN = -1
"""Domain of a node without the label."""


class TopologyDomains:
    """The domain of each node for one topology key."""

    def __init__(self, columns: int) -> None:
        """Start without domains."""
        self.ids: _DomainIds = np.full(columns, NO_DOMAIN, np.int32)
        self._ids_by_value: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of domains so far."""
        return len(self._ids_by_value)

    def add_columns(self, count: int) -> None:
        """Add *count* columns."""
        self.ids = np.pad(self.ids, (0, count), constant_values=NO_DOMAIN)

    def update(self, node_index: int, value: str | None) -> int:
        """Set the label of *node_index*; returns the domain that it was in."""
        before = int(self.ids[node_index])
        self.ids[node_index] = (
            NO_DOMAIN
            if value is None
            else self._ids_by_value.setdefault(value, len(self._ids_by_value))
        )
        return before

    def id_of(self, value: str) -> int | None:
        """Return the domain of nodes whose label has *value*, if there has been one."""
        return self._ids_by_value.get(value)

    def spread(self, sums: Mapping[int, int]) -> IntVector:
        """Return for each column the sum of its domain, 0 without a domain."""
        by_domain = np.zeros(len(self) + 1, np.int64)
        by_domain[list(sums)] = list(sums.values())
        by_domain[NO_DOMAIN] = 0
        result: IntVector = by_domain[self.ids]
        return result

    def exists(self) -> BoolVector:
        """Return for each column whether it has a domain."""
        result: BoolVector = self.ids != NO_DOMAIN
        return result


class Topology:
    """The domains of all nodes, by topology key; keys are added on first use."""

    def __init__(self, columns: int) -> None:
        """Start without nodes."""
        self.version = 0
        """Grows with every change of a count or a domain."""
        self._columns = columns
        self._labels: dict[int, Mapping[str, str]] = {}
        self._domains: dict[str, TopologyDomains] = {}
        self._queue_use: dict[tuple[str, str], NodeCounts] = {}
        self._counts: WeakSet[NodeCounts] = WeakSet()
        """Those that have sums."""

    def domains(self, key: str) -> TopologyDomains:
        """Return the domains of *key*."""
        domains = self._domains.get(key)
        if domains is None:
            domains = self._domains[key] = TopologyDomains(self._columns)
            for node_index, labels in self._labels.items():
                domains.update(node_index, labels.get(key))
        return domains

    def sums(self, counts: "NodeCounts", key: str) -> dict[int, int]:
        """Return the sums of *counts* per domain of *key*, which are kept up to date from now."""
        sums = counts.sums.get(key)
        if sums is None:
            domains = self.domains(key)
            sums = counts.sums[key] = {}
            for node_index, count in counts.by_node.items():
                _add(sums, int(domains.ids[node_index]), count)
            self._counts.add(counts)
        return sums

    def values(self, counts: "NodeCounts", key: str) -> IntVector:
        """Return for each column the sum of *counts* over its domain of *key*."""
        return self.domains(key).spread(self.sums(counts, key))

    def queue_use(self, queue: str, resource: str) -> "NodeCounts":
        """Return what the pods of a queue with limits for node groups request on each node."""
        key = (queue, resource)
        found = self._queue_use.get(key)
        if found is None:
            found = self._queue_use[key] = NodeCounts()
        return found

    def add(self, counts: "NodeCounts", node_index: int, delta: int) -> None:
        """Add *delta* to the count of *node_index*."""
        self.version += 1
        _add(counts.by_node, node_index, delta)
        for key, sums in counts.sums.items():
            domain = int(self._domains[key].ids[node_index])
            if domain != NO_DOMAIN:
                _add(sums, domain, delta)

    def add_columns(self, count: int) -> None:
        """Add *count* columns."""
        self._columns += count
        for domains in self._domains.values():
            domains.add_columns(count)

    def update_node(self, node_index: int, labels: Mapping[str, str] | None) -> None:
        """Set the labels of *node_index*; ``None`` if the node does not exist."""
        if labels is None:
            self._labels.pop(node_index, None)
        else:
            self._labels[node_index] = labels
        for key, domains in self._domains.items():
            before = domains.update(node_index, None if labels is None else labels.get(key))
            after = int(domains.ids[node_index])
            if before != after:
                self.version += 1
                self._move(key, node_index, before, after)

    def _move(self, key: str, node_index: int, before: int, after: int) -> None:
        for counts in self._counts:
            count, sums = counts.by_node.get(node_index, 0), counts.sums.get(key)
            if count and sums is not None:
                _add(sums, before, -count)
                _add(sums, after, count)


class NodeCounts:
    """A count per node, and sums per domain; changed by :meth:`Topology.add`."""

    __slots__ = ("__weakref__", "by_node", "sums")

    def __init__(self) -> None:
        """Start with none."""
        self.by_node: dict[int, int] = {}
        self.sums: dict[str, dict[int, int]] = {}
        """By topology key and domain."""

    def dense(self, columns: int) -> IntVector:
        """Return the count of each column."""
        result = np.zeros(columns, np.int64)
        result[list(self.by_node)] = list(self.by_node.values())
        return result


def _add(counts: dict[int, int], key: int, delta: int) -> None:
    if key == NO_DOMAIN:
        return
    total = counts.get(key, 0) + delta
    if total:
        counts[key] = total
    else:
        counts.pop(key, None)
