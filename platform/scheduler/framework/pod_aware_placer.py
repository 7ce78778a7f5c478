"""Choose nodes for pods whose filters or scores depend on pods on other nodes.

For a :class:`~.placer.Placer` a pod changes nothing but the score and limit of its node. With
inter-pod affinity, or a topology spread constraint, it changes those of whole domains. So filters
by other pods are asked again before each pod, and the best node that they leave is chosen by the
keys of the placer, which do not depend on other pods.

Most of the pods that other pods' anti-affinity concerns have no terms themselves: then nothing that
they do changes their own filters, and all are allocated in one batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from ..plugins.extension_points import FilterPlugin, ScorePlugin
from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import MAX_AMOUNT, BoolVector, IntVector
from .placer import Placer
from .plugin_calls import PluginError

T = TypeVar("T")

ScorerKey = tuple[object, str]
"""A plugin and the name of its method."""

ScoreCandidates = Callable[[EquivalenceClass, NodeMatrix, IntVector], IntVector | None]


class PodAwarePlacer:
    """Chooses nodes for pods of one equivalence class in one session; has the methods of
    :class:`~.placer.Placer`."""

    def __init__(
        self,
        node_matrix: NodeMatrix,
        eq_class: EquivalenceClass,
        placer: Placer,
        *,
        filters: Sequence[FilterPlugin] = (),
        scorers: Sequence[ScorePlugin] = (),
        normalized_scorers: Sequence[ScorePlugin] = (),
        on_score_error: Callable[[PluginError], object],
        allowed: BoolVector | None = None,
    ) -> None:
        """Use *placer* for everything that does not depend on other pods.

        *allowed* are the nodes that may be chosen, by default all. A score that raises is skipped
        from then on, and *on_score_error* called.
        """
        self._node_matrix = node_matrix
        self._eq_class = eq_class
        self._placer = placer
        self._allowed = allowed
        self._filters = filters
        self._scorers: dict[ScorerKey, ScoreCandidates] = {
            (each, "pod_scores"): each.pod_scores for each in scorers
        }
        self._pod_scorers = tuple(scorers)
        self._on_score_error = on_score_error

        everywhere = np.flatnonzero(node_matrix.alive)
        for each in normalized_scorers if len(everywhere) else ():
            key = (each, "normalized_scores")
            self._scorers[key] = each.normalized_scores
            if self._score(key, everywhere) is None:  # so it is None for any candidates
                self._scorers.pop(key, None)
        self._is_normalized = len(self._scorers) > len(self._pod_scorers)
        self._plan: tuple[tuple[int, int], list[int]] = ((-1, -1), [])
        """Nodes that :meth:`capacity` found, and for which state of the node matrix."""

    def capacity(self, at_most: int = MAX_AMOUNT) -> int:
        """Return how many more pods fit if they are allocated one after the other, up to *at_most*.

        Raises:
            PluginError: a filter or limit raised; so does :meth:`allocate`, which has allocated
                nothing then.
        """
        if self._is_plain():
            if self._allowed is not None:
                return int(self._placer.capacities()[self._allowed].sum())
            return self._placer.capacity()
        chosen = self.allocate(at_most)
        self.rollback(chosen)
        self._plan = (self._position(), chosen)
        return len(chosen)

    def allocate(self, count: int) -> list[int]:
        """Allocate up to *count* pods; returns a node index for each."""
        if self._is_plain():
            if self._allowed is not None:
                return self._placer.allocate_among(count, self._allowed)
            return self._placer.allocate(count)
        chosen: list[int] = []
        position, plan = self._plan
        if position == self._position() and count <= len(plan):
            self._placer.keys()  # it has to know of the rollback
            chosen = plan[:count]
            for node_index in chosen:
                self._placer.allocate_on(node_index)
            return chosen
        try:
            while len(chosen) < count:
                batch = self._allocate_next(count - len(chosen))
                if not batch:
                    break
                chosen += batch
        except PluginError:
            self.rollback(chosen)
            raise
        return chosen

    @property
    def base(self) -> Placer:
        """The placer for what does not depend on other pods."""
        return self._placer

    def capacities(self) -> IntVector:
        """Return how many more pods fit on each node apart from other pods; not to be changed."""
        return self._placer.capacities()

    @property
    def planned(self) -> int:
        """How many pods fit when :meth:`capacity` was called last."""
        return len(self._plan[1])

    def rollback(self, node_indexes: Sequence[int]) -> None:
        """Release pods that were allocated on *node_indexes*."""
        self._placer.rollback(node_indexes)

    # -- private -------------------------------------------------------------------------------

    def _position(self) -> tuple[int, int]:
        """Return a number that differs when the node matrix does."""
        return self._node_matrix.usage_changes.position, self._node_matrix.topology.version

    def _is_plain(self) -> bool:
        """Return whether, now, nothing depends on other pods."""
        return (
            not self._is_normalized
            and not any(
                _call(each, "depends_on_pods", partial(each.depends_on_pods, self._eq_class))
                for each in self._filters
            )
            and not any(
                _call(each, "prefers_by_pods", partial(each.prefers_by_pods, self._eq_class))
                for each in self._pod_scorers
            )
        )

    def _allocate_next(self, count: int) -> list[int]:
        """Allocate one pod, or up to *count* if none of them affects the filters and scores of the
        next one."""
        keys = self._placer.keys()
        rejected = self._rejected()
        candidates = np.flatnonzero((keys >= 0) & ~rejected)
        if not len(candidates):
            return []
        scores = self._scores(candidates)
        if scores is None and not self._eq_class.affects_itself:
            return self._placer.allocate_among(count, ~rejected)
        candidate_keys = keys[candidates]
        if scores is not None:
            candidate_keys = self._placer.add_scores(candidate_keys, scores)
        node_index = int(candidates[candidate_keys.argmax()])
        self._placer.allocate_on(node_index)
        return [node_index]

    def _rejected(self) -> BoolVector:
        rejected = np.zeros(self._node_matrix.columns, np.bool_)
        if self._allowed is not None:
            rejected |= ~self._allowed
        for plugin in self._filters:
            try:
                for each in plugin.pod_filters(self._eq_class, self._node_matrix):
                    rejected |= each.mask
            except Exception as error:
                raise PluginError(plugin, "pod_filters") from error
        return rejected

    def _scores(self, candidates: IntVector) -> IntVector | None:
        """Return the sum of the scores of *candidates*; ``None`` if all are equal."""
        total: IntVector | None = None
        for key in tuple(self._scorers):
            scores = self._score(key, candidates)
            if scores is not None:
                total = scores if total is None else total + scores
        return total

    def _score(self, key: ScorerKey, candidates: IntVector) -> IntVector | None:
        try:
            return self._scorers[key](self._eq_class, self._node_matrix, candidates)
        except Exception as error:
            del self._scorers[key]
            failure = PluginError(*key)
            failure.__cause__ = error
            self._on_score_error(failure)
            return None


def _call(plugin: object, extension_point: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except Exception as error:
        raise PluginError(plugin, extension_point) from error
