"""Items to process now or not before a time.

Deferred items are in a heap by the time when they are due, so that reading what is due costs as
much as there is due. Heap entries that are no longer current are skipped.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")

_MAX_STALE_ENTRIES = 64
"""Stale heap entries that are kept beyond the number of deferred items."""


class DeferredItems(Generic[Key, Item]):
    """Items by key, in the order in which they were added."""

    def __init__(self) -> None:
        self._sequence = count()
        self._items: dict[Key, tuple[int, Item]] = {}
        self._active: set[Key] = set()
        self._until: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._inputs: object = None

    def add(self, key: Key, item: Item) -> None:
        """Add *item*, due at once; it replaces an item with the same key."""
        self.discard(key)
        self._items[key] = (next(self._sequence), item)
        self._active.add(key)

    def get(self, key: Key) -> Item | None:
        """Return the item of *key*."""
        found = self._items.get(key)
        return None if found is None else found[1]

    def discard(self, key: Key) -> None:
        """Remove the item of *key*, if any."""
        self._items.pop(key, None)
        self._active.discard(key)
        self._until.pop(key, None)

    def defer(self, key: Key, *, until: float, inputs: object) -> None:
        """Defer an item until *until*, unless it is reactivated or *inputs* change before."""
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
        """End the deferral of an item."""
        if self._until.pop(key, None) is not None:
            self._active.add(key)

    def activate_due(self, now: float, *, inputs: object) -> None:
        """Reactivate the items that are due at *now*, so that :meth:`due` need not search them."""
        heap = self._heap
        while (
            inputs == self._inputs and heap and (heap[0][0] <= now or not self._is_current(heap[0]))
        ):
            entry = heappop(heap)
            if self._is_current(entry):
                self.reactivate(entry[2])

    def due(self, now: float, *, inputs: object) -> tuple[list[Item], float | None]:
        """Return the items that are due at *now* and the time when the next one is due.

        With other *inputs* than those of the last :meth:`defer` all items are due. Changes nothing.
        """
        if inputs != self._inputs:
            return self.items, None
        found = {self._items[key][0]: self._items[key][1] for key in self._active}
        later: list[float] = []
        positions = [0]
        while positions:
            position = positions.pop()
            if position >= len(self._heap):
                continue
            entry = self._heap[position]
            if self._is_current(entry):
                if entry[0] > now:  # and so are the entries below it
                    later.append(entry[0])
                    continue
                found[entry[1]] = self._items[entry[2]][1]
            positions += (2 * position + 1, 2 * position + 2)
        return [found[number] for number in sorted(found)], min(later, default=None)

    @property
    def items(self) -> list[Item]:
        """All items."""
        return [item for _, item in self._items.values()]

    def __len__(self) -> int:
        """Number of items."""
        return len(self._items)

    @property
    def heap_size(self) -> int:
        """Number of heap entries, those that are no longer current included."""
        return len(self._heap)

    def validate(self) -> None:
        """Check that each item is either active or deferred; for tests.

        Raises:
            AssertionError: it is not.
        """
        assert self._active | self._until.keys() == self._items.keys()  # noqa: S101
        assert not self._active & self._until.keys()  # noqa: S101
        assert {key for _, _, key in filter(self._is_current, self._heap)} == {*self._until}  # noqa: S101

    def _is_current(self, entry: tuple[float, int, Key]) -> bool:
        until, number, key = entry
        return self._until.get(key) == until and self._items[key][0] == number
