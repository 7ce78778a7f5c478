"""``nodeorder``: spread by least use, balance CPU against memory, follow preferences.

Scores follow Kubernetes (0 to 100 each, cut to whole numbers, times a weight). A pod that asks for
no CPU or memory is scored as if it asked for a little. Preferences are scaled over the nodes that
the pods' filters leave.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ..state.equivalence import Shape
from ..state.node_matrix import NodeFacts
from ..state.resources import CPU, MEMORY, FloatVector, IntVector, Matrix
from .arguments import whole
from .extension_points import Scores
from .predicates import matches, untolerated

_BOTH = slice(CPU, MEMORY + 1)
_NOMINAL = np.array(((100,), (200 * 2**20,)))
"""What a pod without requests is taken to need: millicores and bytes."""


class NodeOrderPlugin:
    """The scores that Kubernetes' own scheduler knows, as far as one node decides them."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Read the weights; 0 turns a score off."""
        self._least = whole(arguments, "leastrequested.weight", default=1)
        self._most = whole(arguments, "mostrequested.weight", default=0)
        self._balance = whole(arguments, "balancedresource.weight", default=1)
        self._affinity = whole(arguments, "nodeaffinity.weight", default=2)
        self._taints = whole(arguments, "tainttoleration.weight", default=3)

    def score(self, request: IntVector, allocatable: Matrix, used: Matrix) -> Scores:
        """Least or most used, and balance."""
        offered = np.maximum(allocatable[_BOTH], 1)
        asked, taken = request[_BOTH, None], used[_BOTH]
        points = np.zeros(used.shape[1])
        if self._least or self._most:
            after = np.minimum(taken + np.where(asked > 0, asked, _NOMINAL), offered)
            if self._least:
                free = (offered - after) * 100 // offered
                points += self._least * ((free[CPU] + free[MEMORY]) // 2)
            if self._most:
                full = after * 100 // offered
                points += self._most * ((full[CPU] + full[MEMORY]) // 2)
        if self._balance and asked.any():
            points += self._balance * _balance(taken / offered, (taken + asked) / offered)
        return points

    def prefer(self, shape: Shape, nodes: Sequence[NodeFacts]) -> Scores | None:
        """Preferred node affinity, and taints that only discourage."""
        points = np.zeros(len(nodes))
        liked = np.array([_liking(shape, node) for node in nodes]) if shape.preferred else points
        if liked.any():
            points = points + self._affinity * (liked * 100 // liked.max())
        if any(node.taints for node in nodes):
            bad = np.array([untolerated(shape, node, "PreferNoSchedule") for node in nodes])
            if bad.any():
                points = points + self._taints * (100 - bad * 100 // bad.max())
        return points if points.any() else None


def _liking(shape: Shape, node: NodeFacts) -> int:
    return sum(each.weight for each in shape.preferred if matches(each.preference, node))


def _balance(before: FloatVector, after: FloatVector) -> FloatVector:
    """How much nearer CPU and memory use come to each other; 75 if nothing changes."""
    then, now = _evenness(before), _evenness(after)
    points: FloatVector = np.floor(50 + (50 + now - then) / 2)
    return points


def _evenness(use: FloatVector) -> FloatVector:
    apart = np.abs(np.minimum(use[0], 1) - np.minimum(use[1], 1)) / 2
    points: FloatVector = np.floor((1 - apart) * 100)
    return points
