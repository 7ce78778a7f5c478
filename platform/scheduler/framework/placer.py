"""Choose nodes for pods of one equivalence class: always the best node that the pod fits.

The result is that of a loop which scores all nodes before each pod and chooses the best; of equal
nodes, the one whose name sorts first. It is fast because only the node of the last pod can change
its score, and the scores of that node for its next pods are computed in one batch. So a batch of
pods costs one scoring of all nodes and a few operations per pod.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ..plugins.extension_points import NodeAmounts, ScorePlugin, Scores
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import MAX_AMOUNT, BoolVector, FloatVector, IntVector
from .feasibility import FeasibilityMask
from .plugin_calls import PluginError

_SCORE_RESOLUTION = 2**16
"""Scores that differ by less than one part of this are equal."""

_TIE_BITS = 20
_MAX_SCORE = 2**41
"""Scores are limited to this, in either direction, so that a key fits 64 bits."""

_MAX_CAPACITY = 2**31
_MIN_STEPS, _MAX_STEPS, _MAX_TOTAL_STEPS = 4, 128, 1024
"""How many pods ahead keys are computed: per node, and for all nodes."""

_MIN_SLICE = 64

_FULL_KEY = -1
"""Key of a full node."""


_NO_SCORES: IntVector = np.zeros(0, np.int64)


class NodeLimit(Protocol):
    """What limits how many pods a node accepts: a plugin, or start reservations."""

    def node_limit(
        self, eq_class: EquivalenceClass, node_matrix: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Return how many more pods of *eq_class* each of *node_indexes* (default: all) accepts;
        ``None`` for any number."""
        ...


def _ignore(error: PluginError) -> None:
    """Do nothing."""


class Placer:
    """Chooses nodes for pods of one equivalence class in one session."""

    def __init__(
        self,
        node_matrix: NodeMatrix,
        eq_class: EquivalenceClass,
        mask: FeasibilityMask,
        *,
        limits: Sequence[NodeLimit] = (),
        scorers: Sequence[ScorePlugin] = (),
        static_scorers: Sequence[ScorePlugin] = (),
        normalized_scorers: Sequence[ScorePlugin] = (),
        on_score_error: Callable[[PluginError], object] = _ignore,
    ) -> None:
        """Score all nodes.

        A score that raises is skipped from then on, and *on_score_error* called.

        Raises:
            PluginError: a limit raised; so do :meth:`capacity` and :meth:`allocate`, which have
                allocated nothing then.
        """
        self._node_matrix = node_matrix
        self._eq_class = eq_class
        self._feasible = mask.feasible
        self._limits = limits
        self._scorers = tuple(scorers)
        self._on_score_error = on_score_error
        self._score_failed = False
        self._node_position = node_matrix.node_changes.position
        self.limited = False
        """Whether plugins limit how many of the pods a node accepts."""
        self._request = eq_class.request_vector(node_matrix.resource_index)
        self._tie_breakers = node_matrix.tie_breakers()
        self._static_scores = self._get_static_scores(mask, static_scorers)
        self._normalized_scorers = tuple(normalized_scorers)
        self._normalized_scores: IntVector | None = None
        self._normalize(np.flatnonzero(node_matrix.alive), drop_equal=True)
        self._position = node_matrix.usage_changes.position
        self._capacity = np.zeros(0, np.int64)
        self._keys = np.zeros(0, np.int64)
        self._next_keys: dict[int, list[int]] = {}
        """Keys of a node after its next pods, in reverse order."""
        self._stale_index: int | None = None
        """The node whose key is from before its last pod."""
        self._rescore_all()

    def is_current(self) -> bool:
        """Return whether it can be used in another session: no node was added or changed, and no
        score raised."""
        matrix = self._node_matrix
        return (
            not self._score_failed
            and self._node_position == matrix.node_changes.position
            and len(self._request) == len(matrix.resource_index)
        )

    def reopen(self, on_score_error: Callable[[PluginError], object]) -> None:
        """Use it in another session; *on_score_error* is called from now on."""
        self._on_score_error = on_score_error

    def capacity(self, at_most: int = MAX_AMOUNT) -> int:
        """Return how many more pods fit on all nodes in total."""
        self._refresh()
        return int(self._capacity.sum())

    def capacities(self) -> IntVector:
        """Return how many more pods fit on each node; not to be changed."""
        self._refresh()
        return self._capacity

    @property
    def is_normalized(self) -> bool:
        """Whether scores are normalized over the nodes that fit."""
        return bool(self._normalized_scorers)

    def allocate(self, count: int) -> list[int]:
        """Allocate up to *count* pods; returns a node index for each."""
        self._refresh()
        chosen: list[int] = []
        allocated = 0
        keys, next_keys = self._keys, self._next_keys
        while len(chosen) < count:
            node_index = int(keys.argmax())
            if keys[node_index] < 0:
                break
            chosen.append(node_index)
            upcoming = next_keys.get(node_index)
            if upcoming:
                keys[node_index] = upcoming.pop()
            elif len(chosen) == count:
                self._stale_index = node_index
            else:
                self._allocate(chosen[allocated:])
                allocated = len(chosen)
                try:
                    self._compute_next_keys(node_index, count - allocated)
                except PluginError:
                    self.rollback(chosen)
                    raise
                keys, next_keys = self._keys, self._next_keys
            if self._normalized_scorers and keys[node_index] < 0:
                self._allocate(chosen[allocated:])
                allocated = len(chosen)
                try:
                    self._renormalize()
                except PluginError:
                    self.rollback(chosen)
                    raise
                keys, next_keys = self._keys, self._next_keys
        self._allocate(chosen[allocated:])
        return chosen

    def rollback(self, node_indexes: Sequence[int]) -> None:
        """Release pods that were allocated on *node_indexes*."""
        self._node_matrix.vacate(self._eq_class, node_indexes)

    # -- for pods whose filters or scores depend on other pods ------------------------------------

    def keys(self) -> IntVector:
        """Return a number per column that is larger for a better node; negative if none fits."""
        self._refresh()
        return self._keys

    @staticmethod
    def add_scores(keys: IntVector, scores: IntVector) -> IntVector:
        """Return *keys* of nodes whose score is larger by *scores*."""
        result: IntVector = keys + (scores.astype(np.int64) * _SCORE_RESOLUTION << _TIE_BITS)
        return result

    def allocate_on(self, node_index: int) -> None:
        """Allocate a pod on *node_index*, which has a key that is not negative."""
        is_behind = self._position != self._node_matrix.usage_changes.position
        if is_behind or self._stale_index not in (None, node_index):
            self._refresh()
        upcoming = self._next_keys.get(node_index)
        if upcoming:
            self._keys[node_index] = upcoming.pop()
        else:
            self._stale_index = node_index
        self._allocate([node_index])

    def allocate_among(self, count: int, allowed: BoolVector) -> list[int]:
        """Allocate up to *count* pods on nodes that are *allowed*."""
        keys = self.keys()
        excluded = np.flatnonzero(~allowed & (keys >= 0))
        saved = keys[excluded]
        keys[excluded] = _FULL_KEY
        chosen = self.allocate(count)
        if self._keys is not keys:  # a score raised, so all keys are new
            self.rollback(chosen)
            return self.allocate_among(count, allowed)
        keys[excluded] = saved
        return chosen

    # -- private -------------------------------------------------------------------------------

    def _allocate(self, node_indexes: Sequence[int]) -> None:
        """Allocate pods whose effect on the keys is computed already."""
        self._node_matrix.occupy(self._eq_class, node_indexes)
        np.subtract.at(self._capacity, node_indexes, 1)
        self._position = self._node_matrix.usage_changes.position

    def _refresh(self) -> None:
        """Update the keys for changes by others than :meth:`allocate` since the last call."""
        log = self._node_matrix.usage_changes
        position = log.position
        if self._position != position:
            changed = log.since(self._position)
            many = changed is None or len(changed) > self._node_matrix.columns
            if changed is None or many or self._normalized_scorers:
                self._rescore_all()
            else:
                self._rescore(sorted(set(changed)))
            self._position = position
        if self._stale_index is not None:
            node_index, self._stale_index = self._stale_index, None
            self._compute_next_keys(node_index, 1)
            if self._normalized_scorers and self._keys[node_index] < 0:
                self._renormalize()

    def _node_capacity(self, node_indexes: IntVector | None = None) -> IntVector:
        """Return how many more pods fit on each of *node_indexes* (default: all)."""
        capacity = self._node_matrix.capacity(self._request, node_indexes)
        for plugin in self._limits:
            try:
                limit = plugin.node_limit(self._eq_class, self._node_matrix, node_indexes)
                if limit is not None:
                    self.limited = True
                    np.minimum(capacity, limit, out=capacity)
            except Exception as error:
                raise PluginError(plugin, "node_limit") from error
        return capacity

    def _rescore(self, columns: list[int]) -> None:
        node_indexes = np.array(columns, np.int64)
        capacity = self._node_capacity(node_indexes)
        capacity[~self._feasible[node_indexes]] = 0
        allocatable = self._node_matrix.allocatable[:, node_indexes]
        keys = self._compute_keys(
            node_indexes, allocatable, allocatable - self._node_matrix.idle[:, node_indexes]
        )
        if keys is None:
            self._rescore_all()
            return
        keys[capacity == 0] = _FULL_KEY
        self._capacity[node_indexes] = np.minimum(capacity, _MAX_CAPACITY)
        self._keys[node_indexes] = keys
        for node_index in columns:
            self._next_keys.pop(node_index, None)
            self._stale_index = None if self._stale_index == node_index else self._stale_index

    def _rescore_all(self) -> None:
        capacity = np.minimum(self._node_capacity(), _MAX_CAPACITY)
        self._capacity = np.where(self._feasible, capacity, 0)
        self._keys = np.full(self._node_matrix.columns, _FULL_KEY, np.int64)
        self._next_keys = {}
        self._stale_index = None
        node_indexes = np.flatnonzero(self._capacity)
        if len(node_indexes):
            self._normalize(node_indexes)
            where = _as_slice(node_indexes)
            allocatable = self._node_matrix.allocatable[:, where]
            used = allocatable - self._node_matrix.idle[:, where]
            keys = None
            while keys is None:
                keys = self._compute_keys(node_indexes, allocatable, used)
            self._keys[where] = keys

    def _normalize(self, candidates: IntVector, *, drop_equal: bool = False) -> bool:
        """Normalize scores over *candidates*; returns whether the score of one of them has changed.

        With *drop_equal* a score that is equal for all candidates is dropped, as it will be equal
        for any of them later.
        """
        if not len(candidates):
            return False
        total: IntVector | None = None
        kept = []
        for scorer in self._normalized_scorers:
            try:
                scores = scorer.normalized_scores(self._eq_class, self._node_matrix, candidates)
                if scores is not None:
                    _checked(scores, len(candidates))
                    total = scores if total is None else total + scores
                if scores is not None or not drop_equal:
                    kept.append(scorer)
            except Exception as error:
                self._report(PluginError(scorer, "normalized_scores"), error)
        self._normalized_scorers = tuple(kept)
        before, self._normalized_scores = self._normalized_scores, None
        if total is not None:
            self._normalized_scores = np.zeros(self._node_matrix.columns, np.int64)
            self._normalized_scores[candidates] = total
        old, new = (
            _NO_SCORES if each is None else each[candidates]
            for each in (before, self._normalized_scores)
        )
        return not np.array_equal(old, new)

    def _renormalize(self) -> None:
        """Normalize scores again, since a candidate has become full."""
        if self._normalize(np.flatnonzero(self._keys >= 0)):
            self._rescore_all()

    def _compute_next_keys(self, node_index: int, count: int) -> None:
        """Compute the next keys of *node_index*, whose key is stale, and of the next best nodes."""
        nodes = len(self._keys)
        steps = min(max(2 * count // nodes, _MIN_STEPS), _MAX_STEPS)
        node_indexes = [node_index]
        if count > 1:
            node_indexes += self._best_candidates(_MAX_TOTAL_STEPS // steps, excluded=node_index)
        columns = np.array(node_indexes, np.int64)
        more = np.tile(np.arange(1, steps + 1), (len(node_indexes), 1))
        more[0] -= 1
        spread, after = np.repeat(columns, steps), more.ravel()
        allocatable = self._node_matrix.allocatable[:, spread]
        used = allocatable - self._node_matrix.idle[:, spread] + self._request[:, None] * after
        keys = self._compute_keys(spread, allocatable, used)
        if keys is None:
            self._rescore_all()
            return
        keys[after >= self._capacity[spread]] = _FULL_KEY
        for column, upcoming in zip(
            node_indexes, keys.reshape(-1, steps)[:, ::-1].tolist(), strict=True
        ):
            self._next_keys[column] = upcoming
        self._keys[node_index] = self._next_keys[node_index].pop()

    def _best_candidates(self, count: int, *, excluded: int) -> list[int]:
        """Return the *count* nodes with the highest keys that have no next keys."""
        keys = self._keys
        candidates = (
            np.argpartition(keys, -count)[-count:] if count < len(keys) else np.arange(len(keys))
        )
        return [
            node_index
            for node_index in candidates.tolist()
            if keys[node_index] >= 0
            and node_index != excluded
            and not self._next_keys.get(node_index)
        ]

    def _compute_keys(
        self, node_indexes: IntVector, allocatable: IntVector, used: IntVector
    ) -> IntVector | None:
        """Return a unique number for each node that is larger for a better node.

        Returns ``None`` if a score raised: it is skipped from now on, so that keys computed before
        are not comparable.
        """
        where = _as_slice(node_indexes)
        scores = self._static_scores[where]
        if self._normalized_scores is not None:
            scores = scores + self._normalized_scores[where]
        amounts = NodeAmounts(self._request, node_indexes, allocatable, used)
        for scorer in self._scorers:
            try:
                own = scorer.score(self._eq_class, amounts)
                scores = scores + _checked(own, len(node_indexes))
            except Exception as error:
                self._scorers = tuple(each for each in self._scorers if each is not scorer)
                self._report(PluginError(scorer, "score"), error)
                return None
        fine = np.clip(scores * _SCORE_RESOLUTION, -_MAX_SCORE, _MAX_SCORE).astype(np.int64)
        keys: IntVector = ((fine + _MAX_SCORE) << _TIE_BITS) + self._tie_breakers[where]
        return keys

    def _get_static_scores(
        self, mask: FeasibilityMask, static_scorers: Sequence[ScorePlugin]
    ) -> FloatVector:
        """Return the scores that do not depend on amounts; those of classes with equal constraints
        are equal."""
        version = (self._node_position, self._node_matrix.columns, tuple(map(id, static_scorers)))
        if mask.static_scores is not None and mask.static_scores[0] == version:
            return mask.static_scores[1]
        scores = self._compute_static_scores(static_scorers)
        if not self._score_failed:
            mask.static_scores = (version, scores)
        return scores

    def _compute_static_scores(self, static_scorers: Sequence[ScorePlugin]) -> FloatVector:
        """Return the scores that do not depend on amounts, for all nodes."""
        scores = np.zeros(self._node_matrix.columns)
        node_indexes = np.flatnonzero(self._feasible)
        node_infos = self._node_matrix.node_infos
        nodes: list[NodeInfo] = []
        for scorer in static_scorers:
            nodes = nodes or [
                info for node_index in node_indexes if (info := node_infos[node_index]) is not None
            ]
            try:
                node_scores = scorer.static_score(self._eq_class, nodes)
                if node_scores is not None:
                    scores[node_indexes] += _checked(node_scores, len(nodes))
            except Exception as error:
                self._report(PluginError(scorer, "static_score"), error)
        return scores

    def _report(self, failure: PluginError, error: Exception) -> None:
        self._score_failed = True
        failure.__cause__ = error
        self._on_score_error(failure)


def _as_slice(node_indexes: IntVector) -> IntVector | slice:
    """Return *node_indexes*, as a slice if they are a long range: that is not copied."""
    count = len(node_indexes)
    if count < _MIN_SLICE:
        return node_indexes
    first, last = int(node_indexes[0]), int(node_indexes[-1])
    is_range = last - first == count - 1 and bool((np.diff(node_indexes) == 1).all())
    return slice(first, last + 1) if is_range else node_indexes


def _checked(scores: Scores, count: int) -> Scores:
    """Return *scores* after a check that they are *count* finite numbers."""
    if scores.shape != (count,) or not np.isfinite(scores).all():
        raise ValueError(f"{count} finite numbers expected")
    return scores
