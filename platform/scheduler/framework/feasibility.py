"""Nodes that are feasible apart from amounts. All equivalence classes with equal constraints share
a mask.

A mask is computed once and updated only for nodes that changed in a way that filters see;
a heartbeat or a pod costs nothing here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..plugins.extension_points import FilterPlugin, RejectedNodes
from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import BoolVector, FloatVector, IntVector
from .plugin_calls import PluginError

FEASIBLE, NO_NODE = 0, 1
"""Codes of a :class:`FeasibilityMask` that are not reasons of a filter."""

MAX_ENTRIES = 2_000
"""Masks kept; beyond that all are dropped."""


@dataclass(slots=True)
class FeasibilityMask:
    """For each node index whether the node is feasible, and why not."""

    codes: IntVector
    feasible: BoolVector
    position: int = 0
    evaluated: int = field(default=0)
    """Node indexes evaluated so far; those beyond are new."""
    static_scores: tuple[object, FloatVector] | None = None
    """Scores that do not depend on amounts, and what they were computed from."""


class FeasibilityCache:
    """All masks over one node matrix, for one set of filters."""

    def __init__(self, node_matrix: NodeMatrix, filters: Sequence[FilterPlugin]) -> None:
        """Start without masks; *filters* are asked in order, the first reason counts."""
        self.reasons = ["", "no such node"]
        self._codes: dict[str, int] = {}
        self._node_matrix = node_matrix
        self._filters = tuple(filters)
        self._masks: dict[bytes, FeasibilityMask] = {}

    def clear(self) -> None:
        """Drop all masks: the results of filters have changed."""
        self._masks.clear()

    def get(self, eq_class: EquivalenceClass) -> FeasibilityMask:
        """Return the current mask of *eq_class*, to be read at once and not changed.

        Raises:
            PluginError: a filter raised.
        """
        mask = self._masks.get(eq_class.constraints_key)
        if mask is None:
            if len(self._masks) >= MAX_ENTRIES:
                self._masks.clear()
            mask = self._masks[eq_class.constraints_key] = FeasibilityMask(
                np.zeros(0, np.int64), np.zeros(0, np.bool_)
            )
        try:
            self._update(mask, eq_class)
        except PluginError:
            del self._masks[eq_class.constraints_key]  # not all changes are evaluated
            raise
        return mask

    def _update(self, mask: FeasibilityMask, eq_class: EquivalenceClass) -> None:
        log = self._node_matrix.node_changes
        if mask.position == log.position and len(mask.codes) == self._node_matrix.columns:
            return
        changed = log.since(mask.position)
        mask.position = log.position
        missing = self._node_matrix.columns - len(mask.codes)
        if missing:
            mask.codes = np.concatenate([mask.codes, np.full(missing, NO_NODE)])
        known = len(self._node_matrix.node_infos)
        evaluate_all = changed is None or not mask.evaluated
        node_indexes: Iterable[int] = range(known) if evaluate_all else dict.fromkeys(changed or ())
        for node_index in node_indexes:
            mask.codes[node_index] = self._evaluate(eq_class, node_index)
        mask.evaluated = known
        mask.feasible = mask.codes == FEASIBLE

    def _evaluate(self, eq_class: EquivalenceClass, node_index: int) -> int:
        node_info = self._node_matrix.node_infos[node_index]
        if node_info is None:
            return NO_NODE
        for plugin in self._filters:
            try:
                reason = plugin.filter_node(eq_class, node_info)
                if reason:
                    return self._reason_code(reason)
            except Exception as error:
                raise PluginError(plugin, "filter_node") from error
        return FEASIBLE

    def _reason_code(self, reason: str) -> int:
        code = self._codes.get(reason)
        if code is None:
            code = self._codes[reason] = len(self.reasons)
            self.reasons.append(reason)
        return code


def pod_masks(
    function: Callable[[EquivalenceClass, NodeMatrix], Iterable[RejectedNodes]],
    eq_class: EquivalenceClass,
    node_matrix: NodeMatrix,
) -> list[BoolVector]:
    """Return the masks of *function*, a method of a plugin."""
    return [each.mask for each in function(eq_class, node_matrix)]
