"""Watch streams: every change once, in order, to everybody who asked for it.

A change is encoded once for all watchers; each watcher has a queue of its own that holds
references, and its task sends what has gathered in one piece. Watchers are found by the most
selective thing they ask for (one object, one node's pods, one namespace), so a change costs the
watchers that it concerns and not all that there are.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...model.selectors import FieldRequirement, Selector
from .stored_objects import ADDED, DELETED, MODIFIED, StoredObject, WatchEvent

log = logging.getLogger(__name__)

WATCHER_QUEUE_SIZE = 10_000
"""Changes that may wait for a slow watcher before it is cut off (it resumes or relists)."""

Bucket = tuple[str, str]
_ALL: Bucket = ("", "")


@dataclass(frozen=True, slots=True)
class SelectionPredicate:
    """Which objects of a resource a reader wants."""

    namespace: str = ""
    labels: Selector | None = None
    fields: tuple[FieldRequirement, ...] = ()

    def matches(self, entry: StoredObject) -> bool:
        """Whether *entry* is wanted."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.labels is not None and not self.labels.matches(entry.labels):
            return False
        return all(each.matches(entry.field(each.path)) for each in self.fields)

    @property
    def has_selectors(self) -> bool:
        """Whether it looks at more than the namespace."""
        return self.labels is not None or bool(self.fields)

    def bucket(self) -> Bucket:
        """Where a watcher with this selection waits."""
        equal = {each.path: each.value for each in self.fields if each.operator == "="}
        if name := equal.get("metadata.name"):
            return "name", name
        if node := equal.get("spec.nodeName"):
            return "node", node
        return ("namespace", self.namespace) if self.namespace else _ALL


class Watcher:
    """One watch stream's place: what it wants and what it has not sent yet."""

    def __init__(self, selection: SelectionPredicate) -> None:
        self.selection = selection
        self._unfiltered = not (selection.namespace or selection.has_selectors)
        self.closed = False
        """Nothing more will come: the watcher was too slow, or the server ends."""
        self._queue: deque[tuple[str, WatchEvent]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def enqueue(self, event: WatchEvent) -> None:
        """Queue *event* as this watcher is to see it, if at all."""
        if seen_as := self.event_type_for(event):
            self._add(seen_as, event)

    def event_type_for(self, event: WatchEvent) -> str:
        """What *event* is to this watcher; empty if it does not concern it."""
        if self._unfiltered:
            return event.type
        selection = self.selection
        after = event.type != DELETED and selection.matches(event.entry)
        before = event.previous is not None and selection.matches(event.previous)
        if after:
            return MODIFIED if before else ADDED
        return DELETED if before else ""

    def _add(self, event_type: str, event: WatchEvent) -> None:
        if len(self._queue) >= WATCHER_QUEUE_SIZE:
            self.close()
        if not self.closed:
            self._queue.append((event_type, event))
            self.wake()

    def wake(self) -> None:
        """Let :meth:`remaining_delay` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """End the stream after what is queued."""
        self.closed = True
        self.wake()

    async def wait(self) -> None:
        """Return when something is queued, or somebody called :meth:`wake`."""
        if self._queue or self.closed:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        self._waiter = None

    def drain(self) -> list[tuple[str, WatchEvent]]:
        """All that is queued."""
        taken = list(self._queue)
        self._queue.clear()
        return taken


class Broadcaster:
    """The watchers of one resource."""

    def __init__(self) -> None:
        self._buckets: dict[Bucket, dict[Watcher, None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, watcher: Watcher) -> Callable[[], None]:
        """Tell *watcher* of every change from now on; returns how to stop that."""
        place = watcher.selection.bucket()
        self._buckets.setdefault(place, {})[watcher] = None
        if self._closed:
            watcher.close()

        def remove() -> None:
            bucket = self._buckets.get(place, {})
            bucket.pop(watcher, None)
            if not bucket:
                self._buckets.pop(place, None)

        return remove

    def publish(self, event: WatchEvent) -> None:
        """Tell the watchers that *event* may concern."""
        buckets = self._buckets
        if not buckets:
            return
        entry, previous = event.entry, event.previous
        places = [_ALL, ("namespace", entry.namespace), ("name", entry.name)]
        places.append(("node", entry.node))
        if previous is not None and previous.node != entry.node:
            places.append(("node", previous.node))
        for place in places:
            if place in buckets:
                for watcher in buckets[place]:
                    try:
                        watcher.enqueue(event)
                    except Exception:
                        # It cannot go on with a gap; its client lists again.
                        log.exception("cannot tell a watcher of a change")
                        watcher.close()

    def close(self) -> None:
        """End all streams, and those that still begin."""
        self._closed = True
        for bucket in list(self._buckets.values()):
            for watcher in list(bucket):
                watcher.close()
