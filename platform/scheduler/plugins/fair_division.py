"""Divide resources among queues by weight: for all queues and resources at once."""

import numpy as np

from ..state.resources import IntVector, Matrix

UNLIMITED = 2**62
"""Capability of a queue without one."""

_MAX_PRODUCT = 2**62


def divide(
    weights: IntVector, requested: Matrix, guarantee: Matrix, capability: Matrix, total: IntVector
) -> Matrix:
    """Return what each queue deserves of *total*; a row per queue, a column per resource.

    A queue deserves the fraction of its weight, but no more than it requests and than its
    capability, and no less than its guarantee. What one queue does not request is divided among
    the others, until nothing is left or all requests are met. Units that are left by rounding go
    to the first queues.
    """
    deserved = np.zeros_like(requested)
    unmet = np.arange(len(weights))
    remaining = total.copy()
    while len(unmet) and remaining.any():
        before = deserved[unmet]
        most = np.minimum(capability[unmet], requested[unmet])
        least = guarantee[unmet]
        fractions = _fractions(weights[unmet], remaining, most - before)
        after = np.maximum(np.minimum(before + np.minimum(fractions, remaining), most), least)
        taken = np.minimum(after - before, remaining)
        left = np.maximum(remaining - (np.cumsum(taken, axis=0) - taken), 0)
        after = np.maximum(np.minimum(before + np.minimum(fractions, left), most), least)
        deserved[unmet] = after
        now = np.maximum(remaining - np.minimum(after - before, remaining).sum(axis=0), 0)
        if np.array_equal(now, remaining):
            break
        changed = (after != before).any(axis=1)
        unmet = unmet[changed & (requested[unmet] > after).any(axis=1)]
        remaining = now
    return deserved


def _fractions(weights: IntVector, remaining: IntVector, room: Matrix) -> Matrix:
    """Return the fraction of *remaining* for each weight.

    What rounding down leaves goes to the first fractions that are no whole number, if there is
    *room* for more, so that a queue that deserves a whole number gets it.
    """
    total = int(weights.sum())
    if total * int(weights.max()) > _MAX_PRODUCT:
        products = [[units * weight for units in remaining.tolist()] for weight in weights.tolist()]
        rounded = np.array([[each // total for each in row] for row in products], np.int64)
        inexact = np.array([[each % total > 0 for each in row] for row in products], np.bool_)
    else:
        whole, rest = np.divmod(remaining, total)
        column = weights[:, None]
        rounded = whole * column + rest * column // total
        inexact = rest * column % total > 0
    inexact &= rounded < room
    missing = remaining - rounded.sum(axis=0)
    fractions: Matrix = rounded + (inexact & (np.cumsum(inexact, axis=0) <= missing))
    return fractions
