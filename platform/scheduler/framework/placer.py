"""Where the next pods of one shape go: always to the best node that still has room.

The result is that of a loop which scores all nodes before each pod and takes the best, ties going
to the node whose name comes first. What makes it fast: only the node that a pod was put on can
change its score, and the scores of *that* node for its next pods are worked out in one go. So a
batch costs one look at all nodes and a handful of operations a pod.
"""

from collections.abc import Sequence

import numpy as np

from ..plugins.extension_points import PrefersNodes, Scores, ScoresNodes
from ..state.equivalence import Shape
from ..state.node_matrix import NodeFacts, Snapshot
from ..state.resources import IntVector
from .feasibility import Mask

_FINENESS = 2**16
"""Scores that differ by less than one part of this are equal."""

_TIE_BITS = 20
_HIGHEST = 2**42
_PLENTY = 2**31
_FEWEST_STEPS, _MOST_STEPS, _WIDTH = 4, 128, 1024
"""How far ahead one look goes: steps for a node, and steps over all nodes."""

_FULL = -1
"""The key of a node that takes no more."""


class Placer:
    """Places pods of one shape on a snapshot during one cycle, while others do too."""

    def __init__(
        self,
        snapshot: Snapshot,
        shape: Shape,
        mask: Mask,
        *,
        scorers: Sequence[ScoresNodes] = (),
        preferences: Sequence[PrefersNodes] = (),
    ) -> None:
        """Look at all nodes once."""
        self._snapshot = snapshot
        self._shape = shape
        self._allowed = mask.allowed
        self._scorers = scorers
        self._request = shape.vector(snapshot.dimensions)
        self._ties = snapshot.ties()
        self._liking = self._preferred(preferences)
        self._mark = snapshot.changed.mark
        self._room = np.zeros(0, np.int64)
        self._keys = np.zeros(0, np.int64)
        self._ahead: dict[int, list[int]] = {}
        """Keys of a column after further pods, last first."""
        self._stale: int | None = None
        """A column whose key is from before the last pod."""
        self._look_at_all()

    def room(self) -> int:
        """How many more pods fit on all nodes together."""
        self._refresh()
        return int(self._room.sum())

    def place(self, count: int) -> list[int]:
        """Put up to *count* pods on nodes and charge them; returns a column for each pod."""
        self._refresh()
        chosen: list[int] = []
        charged = 0
        keys, ahead = self._keys, self._ahead
        while len(chosen) < count:
            slot = int(keys.argmax())
            if keys[slot] < 0:
                break
            chosen.append(slot)
            coming = ahead.get(slot)
            if coming:
                keys[slot] = coming.pop()
            elif len(chosen) == count:
                self._stale = slot
            else:
                self._charge(chosen[charged:])
                charged = len(chosen)
                self._look_ahead(slot, count - charged)
        self._charge(chosen[charged:])
        return chosen

    def give_back(self, slots: Sequence[int]) -> None:
        """Undo a placement."""
        self._snapshot.give(self._request, slots)

    # -- inside --------------------------------------------------------------------------------

    def _charge(self, slots: Sequence[int]) -> None:
        """Charge pods whose effect on the keys is known already."""
        self._snapshot.take(self._request, slots)
        np.subtract.at(self._room, slots, 1)
        self._mark = self._snapshot.changed.mark

    def _refresh(self) -> None:
        """Follow what has been changed by anybody but :meth:`place` since the last look."""
        log = self._snapshot.changed
        if self._mark != log.mark:
            changed = log.since(self._mark)
            self._mark = log.mark
            if changed is None or len(changed) > self._snapshot.columns:
                self._look_at_all()
            else:
                self._look_at(sorted(set(changed)))
        if self._stale is not None:
            self._look_ahead(self._stale, 1)
            self._stale = None

    def _look_at(self, columns: list[int]) -> None:
        slots = np.array(columns, np.int64)
        room = self._snapshot.capacity(self._request, slots)
        room[~self._allowed[slots]] = 0
        allocatable = self._snapshot.allocatable[:, slots]
        keys = self._keys_for(slots, allocatable, allocatable - self._snapshot.idle[:, slots])
        keys[room == 0] = _FULL
        self._room[slots] = np.minimum(room, _PLENTY)
        self._keys[slots] = keys
        for slot in columns:
            self._ahead.pop(slot, None)
            self._stale = None if self._stale == slot else self._stale

    def _look_at_all(self) -> None:
        room = np.minimum(self._snapshot.capacity(self._request), _PLENTY)
        self._room = np.where(self._allowed, room, 0)
        self._keys = np.full(self._snapshot.columns, _FULL, np.int64)
        self._ahead = {}
        self._stale = None
        slots = np.flatnonzero(self._room)
        if len(slots):
            allocatable = self._snapshot.allocatable[:, slots]
            used = allocatable - self._snapshot.idle[:, slots]
            self._keys[slots] = self._keys_for(slots, allocatable, used)

    def _look_ahead(self, slot: int, count: int) -> None:
        """Work out the next keys of *slot*, whose own is used up, and of those likely to follow."""
        nodes = len(self._keys)
        steps = min(max(2 * count // nodes, _FEWEST_STEPS), _MOST_STEPS)
        slots = [slot]
        if count > 1:
            slots += self._best(_WIDTH // steps, but=slot)
        columns = np.array(slots, np.int64)
        more = np.tile(np.arange(1, steps + 1), (len(slots), 1))
        more[0] -= 1
        spread, after = np.repeat(columns, steps), more.ravel()
        allocatable = self._snapshot.allocatable[:, spread]
        used = allocatable - self._snapshot.idle[:, spread] + self._request[:, None] * after
        keys = self._keys_for(spread, allocatable, used)
        keys[after >= self._room[spread]] = _FULL
        for column, coming in zip(slots, keys.reshape(-1, steps)[:, ::-1].tolist(), strict=True):
            self._ahead[column] = coming
        self._keys[slot] = self._ahead[slot].pop()

    def _best(self, count: int, *, but: int) -> list[int]:
        """The *count* columns with the highest keys of whom nothing further is known."""
        keys = self._keys
        found = (
            np.argpartition(keys, -count)[-count:] if count < len(keys) else np.arange(len(keys))
        )
        return [
            slot
            for slot in found.tolist()
            if keys[slot] >= 0 and slot != but and not self._ahead.get(slot)
        ]

    def _keys_for(self, slots: IntVector, allocatable: IntVector, used: IntVector) -> IntVector:
        """One number a column that is larger for the better one; never the same for two."""
        points = self._liking[slots]
        for scorer in self._scorers:
            points = points + scorer.score(self._request, allocatable, used)
        fine = np.minimum(np.maximum(points * _FINENESS, 0), _HIGHEST).astype(np.int64)
        keys: IntVector = (fine << _TIE_BITS) + self._ties[slots]
        return keys

    def _preferred(self, preferences: Sequence[PrefersNodes]) -> Scores:
        """Points that do not depend on amounts, for all columns."""
        points = np.zeros(self._snapshot.columns)
        slots = np.flatnonzero(self._allowed)
        facts = self._snapshot.facts
        nodes: list[NodeFacts] = []
        for preference in preferences:
            nodes = nodes or [found for slot in slots if (found := facts[slot]) is not None]
            liking = preference.prefer(self._shape, nodes)
            if liking is not None:
                points[slots] += liking
        return points
