"""Matters to be judged, each at the next sitting or not before its time.

What is put off lies in a heap by the time when it is due, so that a sitting costs as much as there
is to judge, not as much as waits. Entries of the heap that no longer hold are passed over when they
come up.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key")
Matter = TypeVar("Matter")

_SPARE = 64
"""So many entries that no longer hold are not worth tidying up for."""


class Docket(Generic[Key, Matter]):
    """Matters by key, in the order in which they came."""

    def __init__(self) -> None:
        self._numbers = count()
        self._matters: dict[Key, tuple[int, Matter]] = {}
        self._open: set[Key] = set()
        self._until: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._terms: object = None

    def add(self, key: Key, matter: Matter) -> None:
        """Have *matter* judged at the next sitting; it takes the place of one with its key."""
        self.discard(key)
        self._matters[key] = (next(self._numbers), matter)
        self._open.add(key)

    def get(self, key: Key) -> Matter | None:
        """The matter of that key."""
        found = self._matters.get(key)
        return None if found is None else found[1]

    def discard(self, key: Key) -> None:
        """Take a matter off, if it is there."""
        self._matters.pop(key, None)
        self._open.discard(key)
        self._until.pop(key, None)

    def put_off(self, key: Key, *, until: float, terms: object) -> None:
        """Judge a matter no more before *until*, unless it is reopened or *terms* change."""
        if terms != self._terms:
            self._open.update(self._until)
            self._until.clear()
            self._heap.clear()
            self._terms = terms
        self._open.discard(key)
        self._until[key] = until
        heappush(self._heap, (until, self._matters[key][0], key))
        if len(self._heap) > 2 * len(self._until) + _SPARE:
            self._heap = [entry for entry in self._heap if self._holds(entry)]
            heapify(self._heap)

    def reopen(self, key: Key) -> None:
        """Something about a matter has changed: judge it at the next sitting."""
        if self._until.pop(key, None) is not None:
            self._open.add(key)

    def due(self, now: float, *, terms: object) -> tuple[list[Matter], float | None]:
        """What is to be judged *now*, and when something else will be; ``None``: no such time.

        On other *terms* than before that is everything.
        """
        if terms != self._terms:
            return self.matters, None
        heap = self._heap
        while heap and (heap[0][0] <= now or not self._holds(heap[0])):
            entry = heappop(heap)
            if self._holds(entry):
                self.reopen(entry[2])
        found = sorted((self._matters[key] for key in self._open), key=lambda found: found[0])
        return [matter for _, matter in found], heap[0][0] if heap else None

    @property
    def matters(self) -> list[Matter]:
        """All of them."""
        return [matter for _, matter in self._matters.values()]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._matters)

    def validate(self) -> None:
        """Check that each matter is either open or put off; for tests.

        Raises:
            AssertionError: it is not.
        """
        assert self._open | self._until.keys() == self._matters.keys()  # noqa: S101
        assert not self._open & self._until.keys()  # noqa: S101
        assert {key for _, _, key in filter(self._holds, self._heap)} == {*self._until}  # noqa: S101

    def _holds(self, entry: tuple[float, int, Key]) -> bool:
        until, number, key = entry
        return self._until.get(key) == until and self._matters[key][0] == number
