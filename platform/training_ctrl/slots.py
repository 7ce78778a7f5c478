"""Assign the pods or Services of one replica type to its indices. Pure."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..model.meta import HasMeta

T = TypeVar("T", bound=HasMeta)

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slots(Generic[T]):
    """Objects of one replica type by index."""

    by_index: dict[int, T] = field(default_factory=dict)
    """The object of each index below the number of replicas, as far as there is one."""
    excess: list[T] = field(default_factory=list)
    """Objects with another index, or with the index of an object that is kept."""
    unindexed: list[T] = field(default_factory=list)
    """Objects without a valid index; nothing is done with them."""

    def missing(self, replicas: int) -> list[int]:
        """Return the indices without object."""
        return [index for index in range(replicas) if index not in self.by_index]


def arrange(
    objects: Iterable[T],
    replicas: int,
    *,
    index_of: Callable[[T], int | None],
    rank: Callable[[list[T]], list[T]],
) -> Slots[T]:
    """Assign *objects* to the indices below *replicas*.

    Of several objects with one index the last in the order of *rank* is kept.
    """
    slots: Slots[T] = Slots()
    candidates: dict[int, list[T]] = {}
    for obj in objects:
        index = index_of(obj)
        if index is None:
            slots.unindexed.append(obj)
        elif 0 <= index < replicas:
            candidates.setdefault(index, []).append(obj)
        else:
            slots.excess.append(obj)
    for index, several in sorted(candidates.items()):
        *others, kept = rank(several) if len(several) > 1 else several
        slots.by_index[index] = kept
        slots.excess.extend(others)
    return slots


def parse_index(text: str) -> int | None:
    """Parse the value of an index label; ``None`` if it is no integer."""
    return int(text) if _INTEGER.fullmatch(text) else None
