"""GET, LIST and WATCH."""

import asyncio
import random
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence

from ..errors.status import StatusError, expired, not_found
from ..http.negotiation import negotiate
from ..http.requests import Json, ObjectPath, Request, Response
from ..kinds.info import KindInfo
from ..storage.object_store import ObjectStore
from ..storage.resource_store import ResourceStore
from ..storage.slices import PARSED_SLICE_SIZE, select, slices
from ..storage.stored_objects import ADDED, StoredObject, WatchEvent, watch_line
from ..storage.watch import Watcher
from .conversions import Converter
from .options import (
    EXACT,
    ReadOptions,
    encode_continue,
    invalid_version,
    read_options,
)
from .render import Renderer, renderer_for

BOOKMARK_INTERVAL = 60.0
"""Seconds between bookmarks on an idle watch."""

BOOKMARK_BEFORE_END = 2.0
"""Seconds between the last bookmark of a watch and its end."""

BURST_CHANGES = 3
"""Changes in one message of a watch from which on the next message is delayed."""

DELAY_STEP, MAX_DELAY = 0.002, 0.02
"""Seconds by which this delay grows with each such message, and its maximum: in a burst, fewer and
longer messages cost less here and in each client. It is halved after others."""

DEFAULT_TIMEOUT_RANGE = (1800, 3600)
"""Range of seconds after which a watch without a timeout ends."""


class Reader:
    """Handles reads of the committed state."""

    def __init__(self, store: ObjectStore, converter: Converter) -> None:
        self._store = store
        self._converter = converter

    async def get(self, request: Request, kind: KindInfo, object_path: ObjectPath) -> Response:
        """Return one object.

        Raises:
            StatusError: 404; 500, it cannot be converted; 504, the version is not committed yet.
        """
        renderer = self._renderer(request, kind)
        if version := request.query.get("resourceVersion", ""):
            if not version.isdecimal():
                raise StatusError(500, "", invalid_version(version))
            await self._store.wait_until_fresh(int(version))
        entry = self._store.resource_store(kind).get(object_path.namespace, object_path.name)
        if entry is None:
            raise not_found(kind.resource, object_path.name)
        (entry,) = await self._converter.in_version_of(kind, [entry])
        return renderer.render_object(renderer.content(entry))

    async def list_objects(
        self, request: Request, kind: KindInfo, object_path: ObjectPath
    ) -> Response:
        """Return the selected objects, or a page of them.

        Raises:
            StatusError: 400, 410, 422, 500, 504.
        """
        renderer = self._renderer(request, kind)
        options = read_options(request, kind, object_path, watch=False)
        if options.resource_version:
            await self._store.wait_until_fresh(options.resource_version)
        resource_store = self._store.resource_store(kind)
        selection = options.selection
        limit = 0 if options.resource_version == 0 else options.limit
        # From here on the state is immutable, so the event loop may run other tasks in between.
        state, version = self._snapshot(resource_store, options)
        first = _page_start(state, options)
        entries: Sequence[StoredObject] = state[first:] if first else state
        if selection.has_selectors:
            entries = await self._converter.in_version_of(kind, entries)
        entries = await select(entries, selection, limit=limit)
        metadata: Json = {"resourceVersion": str(version)}
        if limit and len(entries) > limit:
            rest = len(entries) - limit
            entries = entries[:limit]
            metadata["continue"] = encode_continue(version, _continue_key(entries[-1], object_path))
            resource_store.keep_snapshot(version, selection.namespace, state)
            if not selection.has_selectors:
                metadata["remainingItemCount"] = rest
        entries = await self._converter.in_version_of(kind, entries)
        return renderer.render_list(entries, metadata)

    def _snapshot(
        self, resource_store: ResourceStore, options: ReadOptions
    ) -> tuple[list[StoredObject], int]:
        """Return the objects of a namespace, or of all, at the requested version."""
        namespace = options.selection.namespace
        if options.continue_from is not None:
            version, key = options.continue_from
            try:
                return self._objects_at(resource_store, version, namespace), version
            except StatusError:
                raise self._continue_expired(key) from None
        if options.resource_version_match == EXACT and options.resource_version:
            try:
                return self._objects_at(
                    resource_store, options.resource_version, namespace
                ), options.resource_version
            except StatusError:
                text = "The resourceVersion for the provided list is too old."
                raise expired(text) from None
        return resource_store.ordered(namespace), self._store.committed_rv

    def _objects_at(
        self, resource_store: ResourceStore, version: int, namespace: str
    ) -> list[StoredObject]:
        if version < self._store.oldest_rv:
            raise expired(f"too old resource version: {version} ({self._store.oldest_rv})")
        return resource_store.objects_at(version, namespace)

    def _continue_expired(self, key: str) -> StatusError:
        token = encode_continue(self._store.committed_rv, key)
        text = (
            "The provided continue parameter is too old to display a consistent list result. You "
            "can start a new list without the continue parameter, or use the continue token in "
            "this response to retrieve the remainder of the results."
        )
        error = expired(text)
        error.metadata = {"continue": token}
        return error

    async def watch(self, request: Request, kind: KindInfo, object_path: ObjectPath) -> Response:
        """Stream the changes of the selected objects.

        Raises:
            StatusError: 400, 406, 422.
        """
        form = negotiate(request.headers.get("accept", ""), streaming=True)
        renderer = renderer_for(request, kind, form)
        renderer.check()
        options = read_options(request, kind, object_path, watch=True)
        stream = _WatchStream(
            self._store, self._store.resource_store(kind), renderer, options, self._converter
        )
        return Response(stream=stream.lines(), content_type=form.content_type, is_watch=True)

    def _renderer(self, request: Request, kind: KindInfo) -> Renderer:
        form = negotiate(request.headers.get("accept", ""))
        return renderer_for(request, kind, form)


def _page_start(state: list[StoredObject], options: ReadOptions) -> int:
    """Return the index at which the requested page starts."""
    if options.continue_from is None:
        return 0
    space, _, name = options.continue_from[1].rpartition("/")
    last = (space or options.selection.namespace, name)
    return bisect_right(state, last, key=lambda entry: entry.key)


def _continue_key(entry: StoredObject, object_path: ObjectPath) -> str:
    """Return the key in a continue token: the name, after its namespace in a list of all."""
    if object_path.namespace or not entry.namespace:
        return f"/{entry.name}"
    return f"{entry.namespace}/{entry.name}"


class _WatchStream:
    """One watch stream."""

    def __init__(
        self,
        store: ObjectStore,
        resource_store: ResourceStore,
        renderer: Renderer,
        options: ReadOptions,
        converter: Converter,
    ) -> None:
        self._store = store
        self._converter = converter
        self._resource_store = resource_store
        self._renderer = renderer
        self._options = options
        self._as_stored = renderer.is_as_stored
        self._converts = renderer.kind.conversion_webhook is not None
        self._selects = Watcher(options.selection)
        # Webhooks may change labels, so what they convert is selected afterwards.
        self._watcher = (
            Watcher(options.selection.without_selectors()) if self._converts else self._selects
        )
        self._first = True
        self._bookmark_due = False
        self._expired = False

    async def lines(self) -> AsyncGenerator[bytes]:
        """Yield chunks of the stream, each one or more lines."""
        options = self._options
        try:
            if options.send_initial_events and options.resource_version:
                await self._store.wait_until_fresh(options.resource_version)
            # Nothing is awaited before the watcher is registered.
            initial, replayed = self._initial_state()
        except StatusError as error:
            yield watch_line("ERROR", error.body())
            return
        leave = self._resource_store.broadcaster.add(self._watcher)
        timers = self._set_timers()
        try:
            version = self._store.committed_rv
            selection = options.selection
            async for entries in slices(initial, PARSED_SLICE_SIZE):
                shown = await self._converter.in_version_of(self._renderer.kind, entries)
                selected = filter(selection.matches, shown) if selection.has_selectors else shown
                yield b"".join(map(self._added_line, selected))
            async for events in slices(replayed, PARSED_SLICE_SIZE):
                yield await self._event_lines(events)
            if self._sends_initial_events_end():
                yield self._renderer.bookmark(version, initial_end=True, first=self._first)
                self._first = False
            yield b""
            async for piece in self._live_events():
                yield piece
        except StatusError as error:  # an object cannot be converted: the client has to start again
            yield watch_line("ERROR", error.body())
        finally:
            leave()
            for timer in timers:
                timer.cancel()

    def _initial_state(self) -> tuple[list[StoredObject], list[WatchEvent]]:
        """Return the initial objects, or the changes after the requested version.

        Raises:
            StatusError: 410, the version has expired, or is of a state that has been replaced.
        """
        options, newest = self._options, self._store.committed_rv
        if (options.resource_version or 0) > newest:
            # Only a restored backup can be older than a version that a client knows.
            raise expired(f"resource version {options.resource_version} is newer than {newest}")
        if options.send_initial_events or (
            options.send_initial_events is None and not options.resource_version
        ):
            return self._resource_store.ordered(options.selection.namespace), []
        return [], self._resource_store.events_since(
            options.resource_version
        ) if options.resource_version else []

    async def _event_lines(self, events: Sequence[WatchEvent]) -> bytes:
        """Return the lines of those of *events* that concern the client, in their order.

        Raises:
            StatusError: 500, an object cannot be converted.
        """
        if self._converts:
            events = await self._converter.events_in_version_of(self._renderer.kind, events)
        seen = ((self._selects.event_type_for(event), event) for event in events)
        return b"".join(self._event_line(seen_as, event) for seen_as, event in seen if seen_as)

    def _sends_initial_events_end(self) -> bool:
        options = self._options
        if not options.bookmarks:
            return False
        return bool(options.send_initial_events) or (
            options.send_initial_events is None and options.resource_version is None
        )

    def _added_line(self, entry: StoredObject) -> bytes:
        data = self._renderer.content(entry)
        line = watch_line(ADDED, self._renderer.object(data, first=self._first))
        self._first = False
        return line

    def _set_timers(self) -> list[asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        seconds = self._options.timeout or random.randint(*DEFAULT_TIMEOUT_RANGE)
        timers = [loop.call_later(seconds, self._expire)]
        if self._options.bookmarks:
            last = max(seconds - BOOKMARK_BEFORE_END, seconds / 2)
            timers.append(loop.call_later(last, self._request_bookmark))
        return timers

    def _expire(self) -> None:
        self._expired = True
        self._watcher.wake()

    def _request_bookmark(self) -> None:
        self._bookmark_due = True
        self._watcher.wake()

    async def _live_events(self) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        next_bookmark = loop.call_later(BOOKMARK_INTERVAL, self._request_bookmark)
        delay = 0.0
        try:
            while True:
                if not (self._expired or self._bookmark_due):
                    await self._watcher.wait()
                # All changes up to this version are queued, and more may be queued while we send.
                version = self._store.committed_rv
                changes = self._watcher.drain()
                async for queued in slices(changes, PARSED_SLICE_SIZE):
                    if self._converts:
                        yield await self._event_lines([event for _, event in queued])
                    else:
                        yield b"".join(self._event_line(*each) for each in queued)
                if self._expired or self._watcher.closed:
                    return
                if self._bookmark_due:
                    if self._options.bookmarks:
                        yield self._renderer.bookmark(version)
                    self._bookmark_due = False
                    next_bookmark.cancel()
                    next_bookmark = loop.call_later(BOOKMARK_INTERVAL, self._request_bookmark)
                delay = next_delay(delay, len(changes))
                if delay:
                    await asyncio.sleep(delay)
        finally:
            next_bookmark.cancel()

    def _event_line(self, event_type: str, event: WatchEvent) -> bytes:
        kind = self._renderer.kind
        # Custom objects may be stored in a former storage version.
        if self._as_stored and (not kind.custom or event.is_in(kind.resource.api_version)):
            # Encoded once for all watchers.
            return event.line(event_type, full=self._renderer.managed_fields)
        line = self._renderer.line(event_type, event, first=self._first)
        self._first = False
        return line


def next_delay(delay: float, changes: int) -> float:
    """Return the seconds to wait after a message with *changes*; *delay* is the last one."""
    if changes >= BURST_CHANGES:
        return min(delay + DELAY_STEP, MAX_DELAY)
    return delay / 2 if delay > DELAY_STEP else 0.0
