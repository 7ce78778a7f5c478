"""Placers that are kept across sessions, the most recently used ones."""

from collections.abc import Callable

from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from .placer import Placer
from .plugin_calls import PluginError

_MAX_BYTES = 64 * 2**20
_VECTORS = 4
"""Vectors over all nodes that a placer keeps, of eight bytes each."""

_MIN_PLACERS = 32


class PlacerCache:
    """A placer per equivalence class. They update themselves for changed amounts."""

    def __init__(self, node_matrix: NodeMatrix) -> None:
        """Start empty."""
        self._node_matrix = node_matrix
        self._placers: dict[EquivalenceClass, Placer] = {}

    def __len__(self) -> int:
        return len(self._placers)

    def get(
        self, eq_class: EquivalenceClass, on_score_error: Callable[[PluginError], object]
    ) -> Placer | None:
        """Return the placer of *eq_class*, if there is one that can be used."""
        placer = self._placers.pop(eq_class, None)
        if placer is None or not placer.is_current():
            return None
        placer.reopen(on_score_error)
        self._placers[eq_class] = placer
        return placer

    def peek(self, eq_class: EquivalenceClass) -> Placer | None:
        """Return the placer of *eq_class*, if it is kept and can be used."""
        placer = self._placers.get(eq_class)
        return placer if placer is not None and placer.is_current() else None

    def add(self, eq_class: EquivalenceClass, placer: Placer) -> None:
        """Keep *placer*; the least recently used ones are dropped."""
        self._placers[eq_class] = placer
        most = max(_MAX_BYTES // (8 * _VECTORS * self._node_matrix.columns), _MIN_PLACERS)
        while len(self._placers) > most:
            del self._placers[next(iter(self._placers))]

    def clear(self) -> None:
        """Drop all placers: the results of plugins have changed."""
        self._placers.clear()
