"""Which variants of a parametrised test contain each combination of values of its parameters."""

from collections.abc import Mapping, Sequence
from itertools import combinations

Choice = tuple[str, object]
"""A parameter and its value."""


def covering(variants: Sequence[Mapping[str, object]], size: int) -> set[int]:
    """Return the positions of few *variants* that contain what all of them contain.

    That is each value for a *size* of 1, each pair of values of two parameters for 2, and so on.
    A variant has the value of each parameter, which must be hashable.
    """
    contents = [_combinations(each, size) for each in variants]
    missing = {one for content in contents for one in content}
    chosen: set[int] = set()
    while missing:
        best = max(range(len(contents)), key=lambda index: len(contents[index] & missing))
        chosen.add(best)
        missing -= contents[best]
    return chosen


def _combinations(variant: Mapping[str, object], size: int) -> frozenset[tuple[Choice, ...]]:
    choices: list[Choice] = sorted(variant.items(), key=lambda choice: choice[0])
    return frozenset(combinations(choices, min(size, len(choices))))
