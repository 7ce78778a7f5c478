"""Watches: each watcher receives every selected change once, in order.

A change is encoded once for all watchers; each watcher has its own queue of references, and its
task sends the queued changes in one write. Watchers are indexed by their most selective criterion
(one object, one node's pods, one namespace), so that publishing a change costs only the watchers
that it may concern.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from ....model.selectors import FieldRequirement, Selector
from ..kinds.info import KindInfo
from .stored_objects import ADDED, DELETED, MODIFIED, StoredObject, WatchEvent

log = logging.getLogger(__name__)

WATCHER_QUEUE_SIZE = 10_000
"""Changes queued for a slow watcher before its watch is closed (the client resumes or relists)."""

Bucket = tuple[str, str]
_ALL: Bucket = ("", "")


@dataclass(frozen=True, slots=True)
class SelectionPredicate:
    """Selects objects of one resource by namespace, labels and fields."""

    namespace: str = ""
    labels: Selector | None = None
    fields: tuple[FieldRequirement, ...] = ()
    kind: KindInfo | None = None
    """A custom kind, in the version of the request: each has its own field labels."""

    def matches(self, entry: StoredObject) -> bool:
        """Return whether *entry* is selected."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.labels is not None and not self.labels.matches(entry.labels):
            return False
        return all(each.matches(entry.field(each.path, self.kind)) for each in self.fields)

    def without_selectors(self) -> "SelectionPredicate":
        """Return the same selection by namespace and name alone."""
        fields = tuple(each for each in self.fields if each.path.startswith("metadata."))
        return replace(self, labels=None, fields=fields)

    @property
    def has_selectors(self) -> bool:
        """Whether it selects by labels or fields."""
        return self.labels is not None or bool(self.fields)

    def bucket(self) -> Bucket:
        """Index key of a watcher with this predicate."""
        equal = {each.path: each.value for each in self.fields if each.operator == "="}
        if name := equal.get("metadata.name"):
            return "name", name
        if node := equal.get("spec.nodeName"):
            return "node", node
        return ("namespace", self.namespace) if self.namespace else _ALL


class Watcher:
    """One watch: its selection and the changes that it has not sent yet."""

    def __init__(self, selection: SelectionPredicate) -> None:
        self.selection = selection
        self._unfiltered = not (selection.namespace or selection.has_selectors)
        self.closed = False
        """No more changes are queued: the watcher was too slow, or the server is stopping."""
        self._queue: deque[tuple[str, WatchEvent]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def enqueue(self, event: WatchEvent) -> None:
        """Queue *event* if it concerns this watcher."""
        if seen_as := self.event_type_for(event):
            self._add(seen_as, event)

    def event_type_for(self, event: WatchEvent) -> str:
        """Return the type of *event* for this watcher; empty if it does not concern it."""
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
        """Wake :meth:`wait`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """End the watch after the queued changes."""
        self.closed = True
        self.wake()

    async def wait(self) -> None:
        """Wait until a change is queued or :meth:`wake` is called."""
        if self._queue or self.closed:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        self._waiter = None

    def drain(self) -> list[tuple[str, WatchEvent]]:
        """Return the queued changes and clear the queue."""
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
        """Send every change from now on to *watcher*; returns a function that stops this."""
        key = watcher.selection.bucket()
        self._buckets.setdefault(key, {})[watcher] = None
        if self._closed:
            watcher.close()

        def remove() -> None:
            bucket = self._buckets.get(key, {})
            bucket.pop(watcher, None)
            if not bucket:
                self._buckets.pop(key, None)

        return remove

    def publish(self, event: WatchEvent) -> None:
        """Queue *event* at the watchers that it may concern."""
        buckets = self._buckets
        if not buckets:
            return
        entry, previous = event.entry, event.previous
        keys = [_ALL, ("namespace", entry.namespace), ("name", entry.name)]
        keys.append(("node", entry.node))
        if previous is not None and previous.node != entry.node:
            keys.append(("node", previous.node))
        for key in keys:
            if key in buckets:
                for watcher in buckets[key]:
                    try:
                        watcher.enqueue(event)
                    except Exception:
                        # A watch cannot continue with a gap; its client relists.
                        log.exception("cannot queue a change for a watcher, closing the watch")
                        watcher.close()

    def close(self) -> None:
        """End all watches, and those that start later."""
        self._closed = True
        self.end_watches()

    def end_watches(self) -> None:
        """End all watches; their clients may start them again."""
        for bucket in list(self._buckets.values()):
            for watcher in list(bucket):
                watcher.close()
