"""Sets of completion indexes as ordered intervals, and their text form (``1,3-5,7``)."""

import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

_PIECE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


class IndexSet:
    """Set of non-negative integers, stored as disjoint intervals that do not touch.

    ``add`` costs the logarithm of the number of intervals, and a move within the lists. Each
    interval keeps its text: a status with thousands of intervals is written often.
    """

    __slots__ = ("_firsts", "_lasts", "_pieces", "_text", "total")

    def __init__(self, indexes: Iterable[int] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._pieces: list[str] = []
        """Texts of the intervals."""
        self._text: str | None = ""
        self.total = 0
        """Number of indexes."""
        for index in indexes:
            self.add(index)

    @classmethod
    def parse(cls, text: str, completions: int) -> "IndexSet":
        """Parse the indexes below *completions*; invalid pieces are logged and skipped."""
        found = cls()
        for piece in text.split(",") if text else ():
            match = _PIECE.fullmatch(piece)
            if match is None:
                log.warning("cannot parse completion indexes", extra={"interval": piece})
                continue
            first = int(match[1])
            if first >= completions:
                break
            last = int(match[2]) if match[2] else first
            found.add_range(first, min(last, completions - 1))
        return found

    def add(self, index: int) -> bool:
        """Add *index*; return false if the set has it already."""
        at = bisect_right(self._firsts, index)
        if at and self._lasts[at - 1] >= index:
            return False
        joins_left = at > 0 and self._lasts[at - 1] == index - 1
        joins_right = at < len(self._firsts) and self._firsts[at] == index + 1
        start, end = at - joins_left, at + joins_right
        first = self._firsts[start] if joins_left else index
        last = self._lasts[at] if joins_right else index
        self._replace(start, end, first, last)
        self.total += 1
        return True

    def add_range(self, first: int, last: int) -> None:
        """Add all indexes from *first* to *last*, both included; nothing if *last* is less."""
        if last < first:
            return
        start = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if start < end:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[end - 1])
            for at in range(start, end):
                self.total -= self._lasts[at] - self._firsts[at] + 1
        self._replace(start, end, first, last)
        self.total += last - first + 1

    def _replace(self, start: int, end: int, first: int, last: int) -> None:
        """Replace the intervals from number *start* to *end* by one."""
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]
        self._pieces[start:end] = [_format(first, last)]
        self._text = None

    def with_indexes(self, indexes: Iterable[int]) -> "IndexSet":
        """Return the union with *indexes*; itself if they add nothing."""
        missing = [index for index in indexes if index not in self]
        if not missing:
            return self
        union = IndexSet.__new__(IndexSet)
        union._firsts, union._lasts = self._firsts.copy(), self._lasts.copy()
        union._pieces = self._pieces.copy()
        union._text, union.total = None, self.total
        for index in missing:
            union.add(index)
        return union

    def intersection_total(self, other: "IndexSet") -> int:
        """Return the number of common indexes."""
        total = mine = theirs = 0
        while mine < len(self._firsts) and theirs < len(other._firsts):
            last = min(self._lasts[mine], other._lasts[theirs])
            total += max(0, last - max(self._firsts[mine], other._firsts[theirs]) + 1)
            if self._lasts[mine] == last:
                mine += 1
            else:
                theirs += 1
        return total

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Iterate over the intervals (first, last) in order."""
        return zip(self._firsts, self._lasts, strict=True)

    def __contains__(self, index: object) -> bool:
        """Whether the set has *index*."""
        if not isinstance(index, int):
            return False
        at = bisect_right(self._firsts, index)
        return at > 0 and self._lasts[at - 1] >= index

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indexes in order."""
        for first, last in self.intervals():
            yield from range(first, last + 1)

    def __len__(self) -> int:
        """Number of indexes."""
        return self.total

    def __eq__(self, other: object) -> bool:
        """Whether *other* has the same indexes."""
        if not isinstance(other, IndexSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Return the text form: runs of three or more as a range."""
        if self._text is None:
            self._text = ",".join(self._pieces)
        return self._text

    def __repr__(self) -> str:
        """Return the text form in the constructor's notation."""
        return f"IndexSet({self})"


def _format(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}{',' if last == first + 1 else '-'}{last}"
