"""Shapes: the score of a utilization is on a line through given points, as in kube-scheduler."""

from collections.abc import Mapping
from itertools import pairwise

from .arguments import ArgumentError, Arguments, integer, require_read

Shape = tuple[tuple[int, int], ...]
"""Utilization in percent, which increases, and its score up to :data:`MAX_SHAPE_SCORE`."""

MAX_SHAPE_SCORE = 10


def parse_shape(arguments: Mapping[str, object], name: str) -> Shape:
    """Return the points of the argument *name*, empty if it is not given.

    Raises:
        ArgumentError: it has no points, a number is out of range, or utilization does not increase.
    """
    given = arguments.get(name)
    if given is None:
        return ()
    points = [_point(each, name) for each in given] if isinstance(given, list) else []
    if not points:
        raise ArgumentError(name, "must be a list of points with utilization and score")
    utilization = [each for each, _ in points]
    if any(before >= after for before, after in pairwise(utilization)):
        raise ArgumentError(name, f"utilization must increase: {utilization}")
    return tuple(points)


def shape_score(shape: Shape, utilization: int) -> int:
    """Return the score of *utilization*, 0 to 100, with the integer division of kube-scheduler."""
    scale = 100 // MAX_SHAPE_SCORE
    if utilization <= shape[0][0]:
        return shape[0][1] * scale
    for (left, low), (right, high) in pairwise(shape):
        if utilization <= right:
            change = (utilization - left) * scale * abs(high - low) // (right - left)
            return low * scale + (change if high > low else -change)
    return shape[-1][1] * scale


def _point(given: object, name: str) -> tuple[int, int]:
    point = Arguments(given) if isinstance(given, dict) else Arguments({})
    try:
        utilization = integer(point, "utilization", default=-1)
        score = integer(point, "score", default=0)
    except ArgumentError as error:
        raise ArgumentError(name, str(error)) from error
    require_read(point, name)
    if not 0 <= utilization <= 100:
        raise ArgumentError(name, f"utilization must be from 0 to 100: {given!r}")
    if not 0 <= score <= MAX_SHAPE_SCORE:
        raise ArgumentError(name, f"score must be from 0 to {MAX_SHAPE_SCORE}: {given!r}")
    return utilization, score
