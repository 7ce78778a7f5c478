"""The rounds in which gangs are admitted: one gang of each queue per round.

A rejected gang counts, too, so the round of a gang is its position among all gangs of its queue
that are not admitted yet. Most of them wait, and are not tried in a cycle.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

from ..gangs.gang import Gang
from .scheduling_queue import OrderKey


class AdmissionRounds:
    """The sort keys of the gangs that are not admitted yet, by queue, in order."""

    def __init__(self) -> None:
        """Start without gangs."""
        self._orders: dict[str, list[OrderKey]] = {}
        self._known: dict[str, tuple[Gang, str, OrderKey]] = {}
        """Gangs with their queue and the key that the order of that queue has of them, by key."""
        self._changed: dict[str, tuple[Gang, str | None]] = {}
        """Gangs that are to be added, updated or, without a queue, removed; by key."""
        self._version: object = None

    def observe(self, gang: Gang, queue_name: str | None) -> None:
        """Record that *gang* is not admitted yet to queue *queue_name*, or ``None`` if it is
        not to be admitted; it may have changed."""
        if queue_name is not None or gang.key in self._known:
            self._changed[gang.key] = gang, queue_name
        else:
            self._changed.pop(gang.key, None)

    def update(self, order: Callable[[Gang], OrderKey], version: object) -> None:
        """Update the orders for what has changed; for all gangs if *version* has."""
        if version != self._version:
            self._version = version
            for key, (gang, name, _) in self._known.items():
                self._changed.setdefault(key, (gang, name))
            self._known.clear()
            self._orders.clear()
        for key, (gang, queue_name) in self._changed.items():
            self._set(key, None if queue_name is None else (gang, queue_name, order(gang)))
        self._changed.clear()

    def round_of(self, queue_name: str, order_key: OrderKey) -> int:
        """Return the round of the gang of queue *queue_name* with *order_key*, from 0, as of
        the last update."""
        return bisect_left(self._orders.get(queue_name, ()), order_key)

    def _set(self, key: str, entry: tuple[Gang, str, OrderKey] | None) -> None:
        known = self._known.get(key)
        if known is not None and (entry is None or known[1:] != entry[1:]):
            order = self._orders[known[1]]
            del order[bisect_left(order, known[2])]
            if not order:
                del self._orders[known[1]]
            del self._known[key]
        if entry is not None:
            if key not in self._known:
                insort(self._orders.setdefault(entry[1], []), entry[2])
            self._known[key] = entry
