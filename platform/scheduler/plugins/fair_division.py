"""Divide resources among queues by weight: for all queues and resources at once."""

import numpy as np

from ..state.resources import IntVector, Matrix

UNLIMITED = 2**62
"""Capability of a queue without one."""

_MAX_PRODUCT = 2**62

_MAX_AMOUNT, _MAX_SCALE = 2**60, 2**24
"""Amounts are divided in subunits: the product of the amount and of their number per unit is
limited."""

_MARGIN, _MIN_SUBUNITS = 101, 16
"""Reciprocal of the difference in units, and difference in subunits, up to which an amount may be a
whole number of units that was rounded."""


def divide(
    weights: IntVector, requested: Matrix, guarantee: Matrix, capability: Matrix, total: IntVector
) -> Matrix:
    """Return what each queue deserves of *total*; a row per queue, a column per resource.

    A queue deserves the fraction of its weight, but no more than it requests and than its
    capability, and no less than its guarantee. What one queue does not request is divided among
    the others, until nothing is left or all requests are met. A queue that deserves a whole number
    gets it; units that are left by rounding go to the first of the other queues.
    """
    if not len(weights):
        return np.zeros_like(requested)
    largest = np.maximum(total, guarantee.sum(axis=0))
    requested = np.minimum(requested, largest + 1)
    most = np.minimum(capability, requested)
    wanted: Matrix = np.maximum(most, guarantee)
    is_exact = len(weights) * int(largest.max(initial=0) + 1) <= _MAX_PRODUCT
    if is_exact and (wanted.sum(axis=0) <= total).all():
        return wanted  # the division would end with that, as there is enough for all
    scale = np.clip(_MAX_AMOUNT // (largest + 1), 1, _MAX_SCALE)
    subunits = _divide_subunits(
        weights, requested * scale, guarantee * scale, most * scale, total * scale
    )
    return _whole_units(subunits, total, scale)


def _divide_subunits(
    weights: IntVector, requested: Matrix, guarantee: Matrix, most: Matrix, total: IntVector
) -> Matrix:
    """Divide *total* in rounds; what rounding down leaves is not divided."""
    deserved = np.zeros_like(requested)
    unmet = np.arange(len(weights))
    remaining = total.copy()
    while len(unmet) and remaining.any():
        before, at_most, least = deserved[unmet], most[unmet], guarantee[unmet]
        fractions = _fractions(weights[unmet], remaining)
        after = np.maximum(np.minimum(before + fractions, at_most), least)
        taken = np.minimum(after - before, remaining)
        left = np.maximum(remaining - (np.cumsum(taken, axis=0) - taken), 0)
        after = np.maximum(np.minimum(before + np.minimum(fractions, left), at_most), least)
        deserved[unmet] = after
        now = np.maximum(remaining - np.minimum(after - before, remaining).sum(axis=0), 0)
        if np.array_equal(now, remaining):
            break
        changed = (after != before).any(axis=1)
        unmet = unmet[changed & (requested[unmet] > after).any(axis=1)]
        remaining = now
    return deserved


def _fractions(weights: IntVector, remaining: IntVector) -> Matrix:
    """Return the fraction of *remaining* for each weight, rounded down."""
    total = int(weights.sum())
    if total * int(weights.max()) > _MAX_PRODUCT:
        rows = [[n * weight // total for n in remaining.tolist()] for weight in weights.tolist()]
        return np.array(rows, np.int64)
    whole, rest = np.divmod(remaining, total)
    column = weights[:, None]
    fractions: Matrix = whole * column + rest * column // total
    return fractions


def _whole_units(subunits: Matrix, total: IntVector, scale: IntVector) -> Matrix:
    """Return *subunits*, of which *scale* are one unit, in units.

    As many are rounded up as *total* permits: the first that are nearly whole, which they are but
    for rounding; then the first others, those that are hardly above a whole last.
    """
    units, rest = np.divmod(subunits, scale)
    missing = np.maximum(total - units.sum(axis=0), 0)
    margin = np.minimum(np.maximum(scale // _MARGIN, _MIN_SUBUNITS), scale // 8)
    nearly, hardly = rest >= scale - margin, rest <= margin
    for group in (nearly, ~nearly & ~hardly, ~nearly & hardly & (rest > 0)):
        rounded_up = group & (np.cumsum(group, axis=0) <= missing)
        units += rounded_up
        missing = missing - rounded_up.sum(axis=0)
    return units
