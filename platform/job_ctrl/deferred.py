"""Matters to be judged, each at the next sitting or not before its time.

What is put off lies in a heap by the time when it is due, so that a sitting costs as much as there
is to judge, not as much as waits. Entries of the heap that no longer hold are passed over when they
come up.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")

_MAX_STALE_ENTRIES = 64
"""So many entries that no longer hold are not worth tidying up for."""


class DeferredItems(Generic[Key, Item]):
    """Matters by key, in the order in which they came."""

    def __init__(self) -> None:
        self._sequence = count()
        self._items: dict[Key, tuple[int, Item]] = {}
        self._active: set[Key] = set()
        self._until: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._inputs: object = None

    def add(self, key: Key, item: Item) -> None:
        """Have *matter* judged at the next sitting; it takes the place of one with its key."""
        self.discard(key)
        self._items[key] = (next(self._sequence), item)
        self._active.add(key)

    def get(self, key: Key) -> Item | None:
        """The matter of that key."""
        found = self._items.get(key)
        return None if found is None else found[1]

    def discard(self, key: Key) -> None:
        """Take a matter off, if it is there."""
        self._items.pop(key, None)
        self._active.discard(key)
        self._until.pop(key, None)

    def defer(self, key: Key, *, until: float, inputs: object) -> None:
        """Judge a matter no more before *until*, unless it is reopened or *terms* change."""
        if inputs != self._inputs:
            self._active.update(self._until)
            self._until.clear()
            self._heap.clear()
            self._inputs = inputs
        self._active.discard(key)
        self._until[key] = until
        heappush(self._heap, (until, self._items[key][0], key))
        if len(self._heap) > 2 * len(self._until) + _MAX_STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)

    def reactivate(self, key: Key) -> None:
        """Something about a matter has changed: judge it at the next sitting."""
        if self._until.pop(key, None) is not None:
            self._active.add(key)

    def due(self, now: float, *, inputs: object) -> tuple[list[Item], float | None]:
        """What is to be judged *now*, and when something else will be; ``None``: no such time.

        On other *terms* than before that is everything.
        """
        if inputs != self._inputs:
            return self.items, None
        heap = self._heap
        while heap and (heap[0][0] <= now or not self._is_current(heap[0])):
            entry = heappop(heap)
            if self._is_current(entry):
                self.reactivate(entry[2])
        found = sorted((self._items[key] for key in self._active), key=lambda found: found[0])
        return [matter for _, matter in found], heap[0][0] if heap else None

    @property
    def items(self) -> list[Item]:
        """All of them."""
        return [matter for _, matter in self._items.values()]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._items)

    def validate(self) -> None:
        """Check that each matter is either open or put off; for tests.

        Raises:
            AssertionError: it is not.
        """
        assert self._active | self._until.keys() == self._items.keys()  # noqa: S101
        assert not self._active & self._until.keys()  # noqa: S101
        assert {key for _, _, key in filter(self._is_current, self._heap)} == {*self._until}  # noqa: S101

    def _is_current(self, entry: tuple[float, int, Key]) -> bool:
        until, number, key = entry
        return self._until.get(key) == until and self._items[key][0] == number
