"""Why no node takes another pod, in one sentence with numbers."""

import numpy as np

from ..state.equivalence import Shape
from ..state.node_matrix import Snapshot
from ..state.resources import CPU, MEMORY, show
from .feasibility import FITS, Mask, Masks


def explain(snapshot: Snapshot, masks: Masks, shape: Shape) -> str:
    """Say of all nodes why they do not take one more pod of *shape*, most frequent words first.

    Nodes that do have room are taken as filled up with such pods: the question is asked for the
    pod that came after the last one that fitted.
    """
    mask = masks.of(shape)
    nodes = len(snapshot)
    if not nodes:
        return "0/0 nodes are available: the cluster has no nodes"
    counts = np.bincount(mask.codes[snapshot.alive], minlength=len(masks.reasons))
    parts = [
        f"{counts[code]} {masks.reasons[code]}" for code in np.flatnonzero(counts) if code > FITS
    ]
    parts += _shortages(snapshot, mask, shape)
    return f"0/{nodes} nodes are unavailable: {', '.join(sorted(parts))}."


def _shortages(snapshot: Snapshot, mask: Mask, shape: Shape) -> list[str]:
    """For nodes that the filters leave: which resource runs out, counted by the first of them."""
    slots = np.flatnonzero(mask.allowed)
    if not len(slots):
        return []
    request = shape.vector(snapshot.dimensions)
    filled = snapshot.capacity(request, slots)
    left = snapshot.idle[:, slots] - request[:, None] * filled
    rows = np.union1d(np.flatnonzero(request), (CPU, MEMORY))
    first = rows[(left[rows] < request[rows, None]).argmax(axis=0)]
    found = []
    for row in np.unique(first):
        there = left[row, first == row]
        name = snapshot.dimensions.names[row]
        free = f"{'most free' if len(there) > 1 else 'free'} {show(name, int(there.max()))}"
        asked = show(name, int(request[row]))
        found.append(f"{len(there)} Insufficient {name} (requested {asked}, {free})")
    return found
