"""Pages of lists that are sorted for each request: of objects of which there are few."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .paging import Position, decode_cursor, encode_cursor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """The items of one page."""

    items: Sequence[T]
    next_cursor: str | None
    total: int
    """Number of items on all pages."""


@dataclass(frozen=True, kw_only=True)  # with slots, ListRequest[T](…) fails in Python 3.11
class ListRequest(Generic[T]):
    """One page of a list."""

    query: str
    """Identifies filters and order: a cursor is valid for the same ones only."""

    position: Callable[[T], Position]
    """Returns the sort key of an item, unique in the list."""

    length: int
    """Number of values in a sort key."""

    descending: bool
    limit: int
    cursor: str

    def select(self, items: Iterable[T]) -> ListPage[T]:
        """Return the page of *items*, which the filters select.

        Raises:
            ProblemError: 422, the cursor is none of this list.
        """
        after = decode_cursor(self.cursor, self.query, length=self.length) if self.cursor else None
        keyed = [(self.position(item), item) for item in items]
        following = (
            pair
            for pair in keyed
            if after is None or (pair[0] < after if self.descending else pair[0] > after)
        )
        smallest = heapq.nlargest if self.descending else heapq.nsmallest
        found = smallest(self.limit + 1, following, key=lambda pair: pair[0])
        shown = found[: self.limit]
        is_last = len(found) <= self.limit
        return ListPage(
            items=[item for _, item in shown],
            next_cursor=None if is_last else encode_cursor(self.query, shown[-1][0]),
            total=len(keyed),
        )
