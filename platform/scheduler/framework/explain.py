"""Why no node takes another pod, in one sentence with numbers."""

import numpy as np

from ..state.equivalence import EquivalenceClass
from ..state.node_matrix import NodeMatrix
from ..state.resources import CPU, MEMORY, format_amount
from .feasibility import FEASIBLE, FeasibilityCache, FeasibilityMask


def explain(
    node_matrix: NodeMatrix, feasibility: FeasibilityCache, eq_class: EquivalenceClass
) -> str:
    """Say of all nodes why they do not take one more pod of *shape*, most frequent words first.

    Nodes that do have room are taken as filled up with such pods: the question is asked for the
    pod that came after the last one that fitted.
    """
    mask = feasibility.get(eq_class)
    nodes = len(node_matrix)
    if not nodes:
        return "0/0 nodes are available: the cluster has no nodes"
    counts = np.bincount(mask.codes[node_matrix.alive], minlength=len(feasibility.reasons))
    parts = [
        f"{counts[code]} {feasibility.reasons[code]}"
        for code in np.flatnonzero(counts)
        if code > FEASIBLE
    ]
    parts += _insufficient_resources(node_matrix, mask, eq_class)
    return f"0/{nodes} nodes are unavailable: {', '.join(sorted(parts))}."


def _insufficient_resources(
    node_matrix: NodeMatrix, mask: FeasibilityMask, eq_class: EquivalenceClass
) -> list[str]:
    """For nodes that the filters leave: which resource runs out, counted by the first of them."""
    node_indexes = np.flatnonzero(mask.feasible)
    if not len(node_indexes):
        return []
    request = eq_class.request_vector(node_matrix.resource_index)
    capacity = node_matrix.capacity(request, node_indexes)
    left = node_matrix.idle[:, node_indexes] - request[:, None] * capacity
    rows = np.union1d(np.flatnonzero(request), (CPU, MEMORY))
    first = rows[(left[rows] < request[rows, None]).argmax(axis=0)]
    found = []
    for row in np.unique(first):
        there = left[row, first == row]
        name = node_matrix.resource_index.names[row]
        free = (
            f"{'most free' if len(there) > 1 else 'free'} {format_amount(name, int(there.max()))}"
        )
        asked = format_amount(name, int(request[row]))
        found.append(f"{len(there)} Insufficient {name} (requested {asked}, {free})")
    return found
