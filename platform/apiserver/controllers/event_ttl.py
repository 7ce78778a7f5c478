"""Events are kept for an hour after they were last written."""

from collections import deque

from ...model import names
from ..storage.object_store import Shelf
from ..storage.slices import PARSED
from ..storage.stored_objects import DELETED, Event
from ..verbs.options import DeleteOptions
from ..verbs.writes import Written
from .base import Keeper, Tools, call_for

KEEP = 3600.0
"""Seconds."""

LOOK_EVERY = 60.0
"""Seconds between two looks."""

_KEY = "events"


class Sweeper(Keeper):
    """Removes old events; there is one key."""

    name = "events"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._shelf = tools.shelf(names.EVENTS)
        self._written: deque[tuple[float, tuple[str, str], int]] = deque()

    def observe(self, shelf: Shelf, event: Event) -> None:
        """Note when an event was written."""
        if shelf is self._shelf and event.type != DELETED:
            moment = self.queue.clock.monotonic()
            self._written.append((moment, event.entry.key, event.rv))

    def start(self) -> None:
        """Give stored events another hour: their age here is not known."""
        moment = self.queue.clock.monotonic()
        for entry in sorted(self._shelf.entries(), key=lambda each: each.rv):
            self._written.append((moment, entry.key, entry.rv))
        self.queue.add(_KEY)

    async def reconcile(self, key: str) -> float | None:
        """Delete what is too old."""
        limit = self.queue.clock.monotonic() - KEEP
        while self._written and self._written[0][0] <= limit:
            deletions: list[Written] = []
            # Each is looked at when it is deleted: it may be written again at any time.
            while self._written and self._written[0][0] <= limit and len(deletions) < PARSED:
                _, where, rv = self._written.popleft()
                entry = self._shelf.latest(*where)
                if entry is not None and entry.rv == rv:
                    call = call_for(self._shelf.kind, where)
                    deletions.append(self.tools.deleter.delete(call, DeleteOptions()))
            for written in deletions:
                await written.settled()
        return LOOK_EVERY
