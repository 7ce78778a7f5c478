"""Deletes Events an hour after their last write."""

from collections import deque

from ....model import names
from ..storage.resource_store import ResourceStore
from ..storage.slices import PARSED_SLICE_SIZE
from ..storage.stored_objects import DELETED, WatchEvent
from ..verbs.options import DeleteOptions
from ..verbs.planned_writes import WriteResult
from .base import Controller, ControllerContext, internal_request

EVENT_TTL = 3600.0
"""Seconds."""

SWEEP_INTERVAL = 60.0
"""Seconds between two checks."""

_KEY = "events"


class EventTtlController(Controller):
    """Deletes expired Events; has a single key."""

    name = "events"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._events = context.resource_store(names.EVENTS)
        self.observed = (self._events,)
        self._written: deque[tuple[float, tuple[str, str], int]] = deque()

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Record when an Event was written."""
        if event.type != DELETED:
            moment = self.queue.clock.monotonic()
            self._written.append((moment, event.entry.key, event.rv))

    def enqueue_all(self) -> None:
        """Keep stored Events for another hour: the time of their last write is unknown."""
        moment = self.queue.clock.monotonic()
        for entry in sorted(self._events.entries(), key=lambda each: each.rv):
            self._written.append((moment, entry.key, entry.rv))
        self.queue.add(_KEY)

    async def reconcile(self, key: str) -> float | None:
        """Delete expired Events."""
        limit = self.queue.clock.monotonic() - EVENT_TTL
        while self._written and self._written[0][0] <= limit:
            deletions: list[WriteResult] = []
            # Checked again at deletion: it may have been written in between.
            while (
                self._written
                and self._written[0][0] <= limit
                and len(deletions) < PARSED_SLICE_SIZE
            ):
                _, where, rv = self._written.popleft()
                entry = self._events.latest(*where)
                if entry is not None and entry.rv == rv:
                    call = internal_request(self._events.kind, where)
                    deletions.append(self.context.deleter.delete(call, DeleteOptions()))
            for written in deletions:
                await written.committed()
        return SWEEP_INTERVAL
