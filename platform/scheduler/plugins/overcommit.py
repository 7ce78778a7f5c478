"""``overcommit``: admits gangs for somewhat more than is free, and no more.

Gangs that are admitted without a chance to start only make pods that wait.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..state.gangs import Gang, add, total
from ..state.resources import Amounts, show
from .arguments import number
from .extension_points import NOT_ENOUGH_RESOURCES, Refusal

if TYPE_CHECKING:
    from ..state.cache import Cluster


class OvercommitPlugin:
    """Holds what admitted gangs need against what is free, times a factor."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Read the factor; one below 1 is not meant."""
        factor = number(arguments, "overcommit-factor", default=1.2)
        self._factor = factor if factor >= 1 else 1.2
        self._free: Amounts = {}

    def open(self, cluster: "Cluster") -> None:
        """Add up what is left to promise."""
        snapshot = cluster.snapshot
        self._free = {name: int(n * self._factor) for name, n in snapshot.total().items()}
        add(self._free, snapshot.used(), -1)
        add(self._free, total(queue.reserved for queue in cluster.queues.values()), -1)

    def admits(self, gang: Gang) -> Refusal | bool | None:
        """Refuse a gang whose minimum is more than is left."""
        if not gang.min_resources:
            return True
        short = [
            f"overused {name} (requested {show(name, units)}, "
            f"free {show(name, max(self._free.get(name, 0), 0))})"
            for name, units in sorted(gang.min_request.items())
            if name != "pods" and units > self._free.get(name, 0)
        ]
        if not short:
            return True
        message = f"resource in cluster is overused: {', '.join(short)}"
        return Refusal(NOT_ENOUGH_RESOURCES, message)

    def admitted(self, gang: Gang) -> None:
        """Promise the gang its minimum."""
        add(self._free, gang.min_request, -1)
