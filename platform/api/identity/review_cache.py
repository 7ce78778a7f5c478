"""Caches of reviews: bounded, each entry with its own validity, one review per question at a time.

Positive and negative results have separate caches, so that many rejections evict no permission.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...machinery.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """The latest *size* entries; expired ones are kept until they are evicted."""

    def __init__(self, size: int, clock: Clock) -> None:
        self._size = size
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        """Number of entries, expired ones included."""
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        """Whether there is an entry, even an expired one."""
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Return the value of *key* unless it is expired."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and entry[0] > self._clock.monotonic() else None

    def put(self, key: K, value: V, *, seconds: float) -> None:
        """Keep *value* for *seconds*; evict the oldest entry if there are too many."""
        self._entries[key] = (self._clock.monotonic() + seconds, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def discard(self, key: K) -> None:
        """Remove *key*, if it is there."""
        self._entries.pop(key, None)


@dataclass(slots=True)
class _Flight(Generic[V]):
    task: "asyncio.Task[V]"
    waiters: int = 0


class SingleFlight(Generic[K, V]):
    """Shares one call between all who ask for the same key at the same time.

    An error is raised to all of them. The call is cancelled once all waiters are.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    async def run(self, key: K, call: Callable[[], Awaitable[V]]) -> V:
        """Return what *call*, or the call for *key* in progress, returns."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(_run(call)))
            flight.task.add_done_callback(lambda _: self._land(key, flight))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._land(key, flight)
                flight.task.cancel()

    def _land(self, key: K, flight: _Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


async def _run(call: Callable[[], Awaitable[V]]) -> V:
    return await call()
