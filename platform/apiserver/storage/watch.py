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
from .stored_objects import ADDED, DELETED, MODIFIED, Entry, Event

log = logging.getLogger(__name__)

QUEUE = 10_000
"""Changes that may wait for a slow watcher before it is cut off (it resumes or relists)."""

Bucket = tuple[str, str]
_ALL: Bucket = ("", "")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource a reader wants."""

    namespace: str = ""
    labels: Selector | None = None
    fields: tuple[FieldRequirement, ...] = ()

    def matches(self, entry: Entry) -> bool:
        """Whether *entry* is wanted."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.labels is not None and not self.labels.matches(entry.labels):
            return False
        return all(each.matches(entry.field(each.path)) for each in self.fields)

    @property
    def selective(self) -> bool:
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

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._takes_all = not (selection.namespace or selection.selective)
        self.closed = False
        """Nothing more will come: the watcher was too slow, or the server ends."""
        self._queue: deque[tuple[str, Event]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def see(self, event: Event) -> None:
        """Queue *event* as this watcher is to see it, if at all."""
        if seen_as := self.seen_as(event):
            self._add(seen_as, event)

    def seen_as(self, event: Event) -> str:
        """What *event* is to this watcher; empty if it does not concern it."""
        if self._takes_all:
            return event.type
        selection = self.selection
        after = event.type != DELETED and selection.matches(event.entry)
        before = event.previous is not None and selection.matches(event.previous)
        if after:
            return MODIFIED if before else ADDED
        return DELETED if before else ""

    def _add(self, seen_as: str, event: Event) -> None:
        if len(self._queue) >= QUEUE:
            self.close()
        if not self.closed:
            self._queue.append((seen_as, event))
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

    def take(self) -> list[tuple[str, Event]]:
        """All that is queued."""
        taken = list(self._queue)
        self._queue.clear()
        return taken


class Hub:
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

        def leave() -> None:
            bucket = self._buckets.get(place, {})
            bucket.pop(watcher, None)
            if not bucket:
                self._buckets.pop(place, None)

        return leave

    def publish(self, event: Event) -> None:
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
                        watcher.see(event)
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
