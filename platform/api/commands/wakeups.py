"""Wake tasks that wait for a change of one thing, identified by a key."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Wakeups:
    """Events by key; waking a key without listeners costs nothing."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    def wake(self, key: str) -> None:
        """Set the events of *key*."""
        for event in self._events.get(key, ()):
            event.set()

    def wake_all(self) -> None:
        """Set all events."""
        for events in self._events.values():
            for event in events:
                event.set()

    @contextmanager
    def listen(self, *keys: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set at each wake-up of one of *keys*; the listener clears it."""
        event = asyncio.Event()
        for key in keys:
            self._events.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in keys:
                events = self._events[key]
                events.discard(event)
                if not events:
                    del self._events[key]

    def __len__(self) -> int:
        """Number of keys that are waited for."""
        return len(self._events)
