"""GET, LIST and WATCH."""

import asyncio
import random
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence

from ..errors.status import StatusError, expired, not_found
from ..http.negotiation import accepted
from ..http.requests import Json, Request, Response, Target
from ..kinds.info import KindInfo
from ..storage.object_store import Registry, Shelf
from ..storage.slices import PARSED, select, slices
from ..storage.stored_objects import ADDED, Entry, Event, watch_line
from ..storage.watch import Watcher
from .options import EXACT, ReadOptions, make_token, read_options
from .render import Renderer

BOOKMARK_EVERY = 60.0
"""Seconds between bookmarks on a quiet stream."""

BOOKMARK_BEFORE_END = 2.0
"""Seconds before the end of a stream at which its last bookmark comes."""

DEFAULT_TIMEOUT = (1800, 3600)
"""Seconds between which a stream ends that asked for no time."""


class Reader:
    """Answers reads from what is committed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def get(self, request: Request, kind: KindInfo, target: Target) -> Response:
        """One object.

        Raises:
            StatusError: 404; 504 for a version that is still to come.
        """
        renderer = self._renderer(request, kind)
        if version := request.query.get("resourceVersion", ""):
            if not version.isdecimal():
                text = (
                    f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing '
                    f'"{version}": invalid syntax'
                )
                raise StatusError(500, "", text)
            await self._registry.reach(int(version))
        entry = self._registry.shelf(kind).get(target.namespace, target.name)
        if entry is None:
            raise not_found(kind.resource, target.name)
        return renderer.one(entry.data)

    async def collection(self, request: Request, kind: KindInfo, target: Target) -> Response:
        """All objects of a selection, or a page of them.

        Raises:
            StatusError: 400, 410, 422, 504.
        """
        renderer = self._renderer(request, kind)
        options = read_options(request, kind, target, watch=False)
        if options.version:
            await self._registry.reach(options.version)
        shelf = self._registry.shelf(kind)
        selection = options.selection
        limit = 0 if options.version == 0 else options.limit
        # From here on the state is one that no write changes, however many turns it takes.
        state, version = self._state(shelf, options)
        first = _place(state, options)
        entries: Sequence[Entry] = state[first:] if first else state
        entries = await select(entries, selection, limit=limit)
        metadata: Json = {"resourceVersion": str(version)}
        if limit and len(entries) > limit:
            rest = len(entries) - limit
            entries = entries[:limit]
            metadata["continue"] = make_token(version, _key(entries[-1], target))
            shelf.keep(version, selection.namespace, state)
            if not selection.selective:
                metadata["remainingItemCount"] = rest
        return renderer.many([entry.data for entry in entries], metadata)

    def _state(self, shelf: Shelf, options: ReadOptions) -> tuple[list[Entry], int]:
        """The objects of a namespace, or of all, at the version that is asked for."""
        namespace = options.selection.namespace
        if options.after is not None:
            version, key = options.after
            try:
                return self._past(shelf, version, namespace), version
            except StatusError:
                raise self._lost_page(key) from None
        if options.match == EXACT and options.version:
            try:
                return self._past(shelf, options.version, namespace), options.version
            except StatusError:
                text = "The resourceVersion for the provided list is too old."
                raise expired(text) from None
        return shelf.ordered(namespace), self._registry.committed_rv

    def _past(self, shelf: Shelf, version: int, namespace: str) -> list[Entry]:
        if version < self._registry.oldest_rv:
            raise expired(f"too old resource version: {version} ({self._registry.oldest_rv})")
        return shelf.at(version, namespace)

    def _lost_page(self, key: str) -> StatusError:
        token = make_token(self._registry.committed_rv, key)
        text = (
            "The provided continue parameter is too old to display a consistent list result. You "
            "can start a new list without the continue parameter, or use the continue token in "
            "this response to retrieve the remainder of the results."
        )
        error = expired(text)
        error.metadata = {"continue": token}
        return error

    async def watch(self, request: Request, kind: KindInfo, target: Target) -> Response:
        """The changes of a selection, as they happen.

        Raises:
            StatusError: 400, 406, 422.
        """
        form = accepted(request.headers.get("accept", ""), streaming=True)
        renderer = Renderer(kind=kind, form=form, include=request.query.get("includeObject", ""))
        renderer.check()
        options = read_options(request, kind, target, watch=True)
        stream = _Stream(self._registry, self._registry.shelf(kind), renderer, options)
        return Response(stream=stream.lines(), content_type=form.content_type, live=True)

    def _renderer(self, request: Request, kind: KindInfo) -> Renderer:
        form = accepted(request.headers.get("accept", ""))
        return Renderer(kind=kind, form=form, include=request.query.get("includeObject", ""))


def _place(state: list[Entry], options: ReadOptions) -> int:
    """Where the page begins that is asked for."""
    if options.after is None:
        return 0
    space, _, name = options.after[1].rpartition("/")
    last = (space or options.selection.namespace, name)
    return bisect_right(state, last, key=lambda entry: entry.key)


def _key(entry: Entry, target: Target) -> str:
    """What a page token remembers: the name, after its namespace where that is open."""
    if target.namespace or not entry.namespace:
        return f"/{entry.name}"
    return f"{entry.namespace}/{entry.name}"


class _Stream:
    """One watch stream from its first line to its last."""

    def __init__(
        self, registry: Registry, shelf: Shelf, renderer: Renderer, options: ReadOptions
    ) -> None:
        self._registry = registry
        self._shelf = shelf
        self._renderer = renderer
        self._options = options
        self._watcher = Watcher(options.selection)
        self._first = True
        self._bookmark_due = False
        self._ended = False

    async def lines(self) -> AsyncGenerator[bytes]:
        """Pieces of the stream, each one or more lines."""
        options = self._options
        try:
            if options.initial_events and options.version:
                await self._registry.reach(options.version)
            # Nothing is awaited before the watcher is in place.
            initial, replayed = self._begin()
        except StatusError as error:
            yield watch_line("ERROR", error.body())
            return
        leave = self._shelf.hub.add(self._watcher)
        timers = self._set_timers()
        try:
            version = self._registry.committed_rv
            selection = options.selection
            async for entries in slices(initial, PARSED):
                wanted = filter(selection.matches, entries) if selection.selective else entries
                yield b"".join(map(self._added, wanted))
            async for events in slices(replayed, PARSED):
                yield b"".join(map(self._replayed, events))
            if self._tells_end():
                yield self._renderer.bookmark(version, initial_end=True, first=self._first)
                self._first = False
            yield b""
            async for piece in self._live():
                yield piece
        finally:
            leave()
            for timer in timers:
                timer.cancel()

    def _begin(self) -> tuple[list[Entry], list[Event]]:
        """The objects to start with, or the changes after a given version."""
        options = self._options
        if options.initial_events or (options.initial_events is None and not options.version):
            return self._shelf.ordered(options.selection.namespace), []
        return [], self._shelf.since(options.version) if options.version else []

    def _replayed(self, event: Event) -> bytes:
        seen_as = self._watcher.seen_as(event)
        return self._changed(seen_as, event) if seen_as else b""

    def _tells_end(self) -> bool:
        options = self._options
        if not options.bookmarks:
            return False
        return bool(options.initial_events) or (
            options.initial_events is None and options.version is None
        )

    def _added(self, entry: Entry) -> bytes:
        line = watch_line(ADDED, self._renderer.object(entry.data, first=self._first))
        self._first = False
        return line

    def _set_timers(self) -> list[asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        seconds = self._options.timeout or random.randint(*DEFAULT_TIMEOUT)
        timers = [loop.call_later(seconds, self._end)]
        if self._options.bookmarks:
            last = max(seconds - BOOKMARK_BEFORE_END, seconds / 2)
            timers.append(loop.call_later(last, self._want_bookmark))
        return timers

    def _end(self) -> None:
        self._ended = True
        self._watcher.wake()

    def _want_bookmark(self) -> None:
        self._bookmark_due = True
        self._watcher.wake()

    async def _live(self) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        next_bookmark = loop.call_later(BOOKMARK_EVERY, self._want_bookmark)
        try:
            while True:
                if not (self._ended or self._bookmark_due):
                    await self._watcher.wait()
                # All changes up to this version are queued, and more may come while we send.
                version = self._registry.committed_rv
                async for queued in slices(self._watcher.take(), PARSED):
                    yield b"".join(self._changed(*each) for each in queued)
                if self._ended or self._watcher.closed:
                    return
                if self._bookmark_due:
                    if self._options.bookmarks:
                        yield self._renderer.bookmark(version)
                    self._bookmark_due = False
                    next_bookmark.cancel()
                    next_bookmark = loop.call_later(BOOKMARK_EVERY, self._want_bookmark)
        finally:
            next_bookmark.cancel()

    def _changed(self, seen_as: str, event: Event) -> bytes:
        line = self._renderer.line(seen_as, event, first=self._first)
        self._first = False
        return line
