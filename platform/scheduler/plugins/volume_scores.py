"""Scores of nodes by the storage that the claims of a pod would use there, as kube-scheduler's
VolumeBinding has them with a shape.

The utilization of a storage class on a node is what the claims request of the capacity of the
available volumes that they would be bound to. If none of them would be bound to one, it is what
they request of the storage that is published to be free there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.delayed_claims import DelayedClaim
from ..state.resources import IntVector
from .arguments import ArgumentError, integer
from .utilization_shape import Shape, parse_shape, shape_score

SHAPE, WEIGHT = "volumebinding.shape", "volumebinding.weight"


@dataclass(frozen=True, slots=True)
class VolumeScores:
    """How nodes are scored by their storage."""

    shape: Shape
    weight: int

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> "VolumeScores | None":
        """Return what *arguments* ask for, ``None`` if nodes are not scored by their storage.

        Raises:
            ArgumentError: the shape is malformed, or there is a weight without a shape.
        """
        shape = parse_shape(arguments, SHAPE)
        weight = integer(arguments, WEIGHT, default=1, minimum=0)
        if WEIGHT in arguments and not shape:
            raise ArgumentError(WEIGHT, f"has no effect without {SHAPE}")
        return cls(shape, weight) if shape and weight else None

    def scores(
        self, claims: tuple[DelayedClaim, ...], nodes: NodeMatrix, candidates: IntVector
    ) -> IntVector | None:
        """Score *candidates* for one more pod with *claims*; ``None`` if all are equal."""
        volumes = nodes.available_volumes
        uses = (volumes.storage_use(claims, each) for each in candidates.tolist())
        scores = np.array([self._score(each) for each in uses], np.int64)
        return None if scores.min() == scores.max() else self.weight * scores

    def _score(self, use: Mapping[str, tuple[int, int]]) -> int:
        """Return the mean over the storage classes, rounded half up; 0 without any."""
        total = sum(shape_score(self.shape, _utilization(*each)) for each in use.values())
        return (2 * total + len(use)) // (2 * len(use)) if use else 0


def _utilization(requested: int, capacity: int) -> int:
    """Return how much of *capacity* is requested, in percent."""
    return requested * 100 // capacity if 0 < capacity >= requested else 100
