"""Limits of the values that expressions with loops may read.

The library counts the iterations of an expression, but not what one costs: ``map`` and ``filter``
copy their result in each iteration, and a function may read a long text in each. While it
evaluates, nothing else runs in the process. So the cost is bounded before an evaluation begins.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .literals import LITERAL

MAX_ITEMS = 2_000
"""Items of the longest list or map if an expression builds a list in a loop."""

MAX_CHARACTERS = 100_000_000
"""Length of the longest text, times iterations: what kube-apiserver's limit of the costs of an
expression allows to read."""

_MAX_ITERATIONS = 10_000
_LOOP = re.compile(r"\.\s*(all|exists|exists_one|existsOne|filter|map)\s*\(")
_APPENDING = frozenset(("filter", "map"))


class Loops:
    """The loops of an expression."""

    def __init__(self, expression: str) -> None:
        found = _LOOP.findall(LITERAL.sub(" ", expression))
        self.count = len(found)
        self.appends = not _APPENDING.isdisjoint(found)


class Inputs:
    """The values of the variables of an expression."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)
        self._sizes: tuple[int, int] | None = None

    def error(self, loops: Loops) -> str:
        """Return why an expression with these loops could take too long; empty if it cannot."""
        if not loops.count:
            return ""
        items, characters = self._sizes = self._sizes or _sizes(self._values)
        if loops.appends and items > MAX_ITEMS:
            return f"a list or map of {items} items is too long for map and filter"
        iterations = min(items**loops.count, _MAX_ITERATIONS)
        if iterations * characters > MAX_CHARACTERS:
            return f"a text of {characters} characters is too long for {iterations} iterations"
        return ""


def _sizes(values: Iterable[Any]) -> tuple[int, int]:
    """Return the items of the longest list or map, and the characters of the longest text."""
    items, characters = 1, 0
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            characters = max(characters, len(value))
        elif isinstance(value, Mapping):
            items = max(items, len(value))
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, list | tuple):
            items = max(items, len(value))
            waiting += value
    return items, characters
