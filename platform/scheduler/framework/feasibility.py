"""Who may go where, leaving amounts aside: one mask for all shapes that ask the same of nodes.

A mask is worked out once and then only for columns whose node changed in a way that filters see;
a heartbeat or a pod costs nothing here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..plugins.extension_points import FiltersNodes
from ..state.equivalence import Shape
from ..state.node_matrix import Snapshot
from ..state.resources import BoolVector, IntVector

FITS, NO_NODE = 0, 1
"""Codes of a :class:`Mask` that stand for no reason of a filter."""

_MOST = 2_000
"""Masks remembered; beyond that all are forgotten."""


@dataclass(slots=True)
class Mask:
    """For each column whether it may be used, and why not."""

    codes: IntVector
    allowed: BoolVector
    mark: int = 0
    seen: int = field(default=0)
    """Columns looked at so far; those beyond are new."""


class Masks:
    """All masks over one snapshot, under one set of filters."""

    def __init__(self, snapshot: Snapshot, filters: Sequence[FiltersNodes]) -> None:
        """Watch *snapshot*; *filters* are asked in order, the first refusal counts."""
        self.reasons = ["", "no such node"]
        self._codes: dict[str, int] = {}
        self._snapshot = snapshot
        self._filters = tuple(filters)
        self._masks: dict[bytes, Mask] = {}

    def of(self, shape: Shape) -> Mask:
        """The mask of *shape* as the nodes are now; to be read, and soon."""
        mask = self._masks.get(shape.static)
        if mask is None:
            if len(self._masks) >= _MOST:
                self._masks.clear()
            mask = self._masks[shape.static] = Mask(np.zeros(0, np.int64), np.zeros(0, np.bool_))
        self._bring_up(mask, shape)
        return mask

    def _bring_up(self, mask: Mask, shape: Shape) -> None:
        log = self._snapshot.refitted
        if mask.mark == log.mark and len(mask.codes) == self._snapshot.columns:
            return
        changed = log.since(mask.mark)
        mask.mark = log.mark
        missing = self._snapshot.columns - len(mask.codes)
        if missing:
            mask.codes = np.concatenate([mask.codes, np.full(missing, NO_NODE)])
        known = len(self._snapshot.facts)
        everything = changed is None or not mask.seen
        slots: Iterable[int] = range(known) if everything else dict.fromkeys(changed or ())
        for slot in slots:
            mask.codes[slot] = self._code(shape, slot)
        mask.seen = known
        mask.allowed = mask.codes == FITS

    def _code(self, shape: Shape, slot: int) -> int:
        facts = self._snapshot.facts[slot]
        if facts is None:
            return NO_NODE
        for judge in self._filters:
            reason = judge.refuses(shape, facts)
            if reason:
                return self._code_of(reason)
        return FITS

    def _code_of(self, reason: str) -> int:
        code = self._codes.get(reason)
        if code is None:
            code = self._codes[reason] = len(self.reasons)
            self.reasons.append(reason)
        return code
