"""Functions of lists and sets."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from .signatures import ANY, Signature

_ORDERED = ("int", "uint", "double", "bool", "string", "bytes")
"""Types of items; the library cannot return a duration or time that a function has chosen."""


def _equal(one: Any, other: Any) -> bool:
    """Compare as CEL does: a bool is no number."""
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool(one == other)


def _index_of(items: Sequence[Any], wanted: Any) -> int:
    return next((index for index, item in enumerate(items) if _equal(item, wanted)), -1)


def _last_index_of(items: Sequence[Any], wanted: Any) -> int:
    found = _index_of(items[::-1], wanted)
    return -1 if found < 0 else len(items) - 1 - found


def _contains(items: Sequence[Any], wanted: Any) -> bool:
    return _index_of(items, wanted) >= 0


def _is_sorted(items: Sequence[Any]) -> bool:
    return all(not after < before for before, after in pairwise(items))


def _sum(items: Sequence[Any]) -> Any:
    return sum(items[1:], items[0]) if items else 0


def _extreme(choose: Callable[[Sequence[Any]], Any], name: str) -> Callable[[Sequence[Any]], Any]:
    def call(items: Sequence[Any]) -> Any:
        if not items:
            raise ValueError(f"{name} called on empty list")
        return choose(items)

    return call


def _sets_contain(items: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return all(_contains(items, each) for each in wanted)


def _sets_are_equivalent(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return _sets_contain(one, other) and _sets_contain(other, one)


def _sets_intersect(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return any(_contains(one, each) for each in other)


def _distinct(items: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if not _contains(found, item):
            found.append(item)
    return found


def _flatten(items: Sequence[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise ValueError("level must be non-negative")
    found: list[Any] = []
    for item in items:
        if isinstance(item, list) and depth > 0:
            found += _flatten(item, depth - 1)
        else:
            found.append(item)
    return found


def _slice(items: Sequence[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise ValueError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise ValueError(
            f"cannot slice({start}, {end}), start index must be less than or equal to end index"
        )
    if end > len(items):
        raise ValueError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return list(items[start:end])


_MAX_RANGE = 10_000
"""Maximum length of a list that an expression creates: as many as it may iterate over."""


def _range(size: int) -> list[int]:
    if size > _MAX_RANGE:
        raise ValueError(f"lists.range({size}) exceeds the limit of {_MAX_RANGE}")
    return list(range(size))


SIGNATURES: tuple[Signature, ...] = (
    Signature("indexOf", ("list(dyn)", ANY), "int", _index_of),
    Signature("lastIndexOf", ("list(dyn)", ANY), "int", _last_index_of),
    *(
        Signature("isSorted", (f"list({each})",), "bool", _is_sorted)
        for each in (*_ORDERED, "duration", "timestamp")
    ),
    *(
        Signature(name, (f"list({each})",), each, _extreme(choose, name))
        for name, choose in (("min", min), ("max", max))
        for each in _ORDERED
    ),
    *(Signature("sum", (f"list({each})",), each, _sum) for each in ("int", "uint", "double")),
    Signature("distinct", ("list(dyn)",), "list(dyn)", _distinct),
    Signature("flatten", ("list(dyn)",), "list(dyn)", _flatten),
    Signature("flatten", ("list(dyn)", "int"), "list(dyn)", _flatten),
    Signature("reverse", ("list(dyn)",), "list(dyn)", lambda items: list(items[::-1])),
    Signature("slice", ("list(dyn)", "int", "int"), "list(dyn)", _slice),
    *(Signature("sort", (f"list({each})",), f"list({each})", sorted) for each in _ORDERED),
    Signature("lists.range", ("int",), "list(int)", _range, member=False),
    Signature("sets.contains", ("list(dyn)",) * 2, "bool", _sets_contain, member=False),
    Signature("sets.equivalent", ("list(dyn)",) * 2, "bool", _sets_are_equivalent, member=False),
    Signature("sets.intersects", ("list(dyn)",) * 2, "bool", _sets_intersect, member=False),
)
