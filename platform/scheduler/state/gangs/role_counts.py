"""How many pods of each task of a gang are on each node, for gangs whose tasks belong together or
apart."""

from collections.abc import Mapping, Sequence

from ..podinfo.equivalence import EquivalenceClass

_NONE: Mapping[int, int] = {}


class RoleCounts:
    """Pods by gang and role, per node."""

    def __init__(self) -> None:
        """Start without pods."""
        self._counts: dict[tuple[str, str], dict[int, int]] = {}

    def observe(self, eq_class: EquivalenceClass, node_indexes: Sequence[int], sign: int) -> None:
        """Count pods that arrived at nodes (*sign* is 1) or left them (-1)."""
        key = eq_class.traits.topology
        if not key[0]:
            return
        counts = self._counts.setdefault(key, {})
        for node_index in node_indexes:
            count = counts.get(node_index, 0) + sign
            if count:
                counts[node_index] = count
            else:
                del counts[node_index]
        if not counts:
            del self._counts[key]

    def of(self, gang_key: str, role: str) -> Mapping[int, int]:
        """Return the number of pods by node index."""
        return self._counts.get((gang_key, role), _NONE)
