"""Measured utilization of nodes, as the ``usage`` plugin compares it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """The mean utilization of one node over some minutes, in percent of what it has."""

    cpu: float
    memory: float
    measured_at: float
    """Unix time."""


class NodeUsages:
    """The last measurement of each node."""

    def __init__(self) -> None:
        """Start without measurements."""
        self.by_node: Mapping[str, NodeUsage] = {}
        self.interval = 30.0
        """Seconds between two measurements."""
        self.version = 0
        """Grows with each measurement."""

    def update(self, by_node: Mapping[str, NodeUsage], interval: float) -> None:
        """Replace all measurements."""
        self.by_node = by_node
        self.interval = interval
        self.version += 1
