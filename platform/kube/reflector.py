"""Follows one kind of object on the server: list once, then watch, for ever.

The list comes as the head of a watch where the server offers it (sendInitialEvents), else in
pages. A watch that ends is resumed from the last version seen, bookmarks included. Which failure
leads where: a lost connection or 429 keeps the version, everything else, 410 foremost, lists anew;
a list that is not a first one makes only its differences felt, which is the sink's work.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from ..model.meta import HasMeta, ObjectMeta
from . import wire
from .client import INACTIVITY, Client
from .complaints import Complaints
from .errors import (
    ApiError,
    BadRequestError,
    ConnectionLostError,
    InvalidError,
    RequestTimeoutError,
    ServerError,
    TooManyRequestsError,
    UnreadableAnswerError,
)
from .memory import collection_paused
from .timing import Backoff, Timing
from .watching import Bookmark, EventReader, UnreadableObjectError, WatchEvent, metadata_of

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

SLICE = 200
"""Objects handled before other tasks get a turn: a few milliseconds."""

FIRST_RECONNECT, LONGEST_RECONNECT = 0.05, 1.5
"""Seconds, before jitter, between tries to reach a server that nobody answers at. They are short,
because a try costs next to nothing there, and everything waits for the server to be back."""

SHORT_WATCH = 1.0
"""A watch that ends within so many seconds and brings nothing is taken for a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Settings of a cache that have good defaults."""

    page_size: int = 500
    """Objects a page, when the list comes in pages."""
    streaming: bool = True
    """Ask for the list as the head of a watch first."""
    list_patience: float = 10.0
    """Seconds of silence in such a list after which pages are tried instead: servers that do not
    know the option may just never end it."""
    inactivity: float = INACTIVITY
    """Seconds of silence after which a watch is taken for dead and resumed."""
    watch_seconds: tuple[float, float] = (300.0, 600.0)
    """A watch is asked to last a random time between these, so that not all reconnect at once."""
    timing: Timing | None = None
    """By default that of the client."""


@dataclass(slots=True)
class ReflectorCounts:
    """What happened so far, for figures and tests."""

    lists: int = 0
    watches: int = 0
    short_watches: int = 0
    failures: int = 0
    unreadable: int = 0
    """Objects that did not fit the view and were left out, or kept in their former state."""


class Sink(Protocol[T]):
    """Where a reflector delivers; the cache."""

    version: str
    """Everything up to this version has been delivered; empty before the first list."""

    async def replace(self, found: dict[str, T], version: str) -> None:
        """The server held exactly *found* at *version*."""
        ...

    def apply(self, change: str, obj: T) -> None:
        """One object was ADDED, MODIFIED or DELETED."""
        ...

    def forget(self, key: str) -> None:
        """The object was deleted; its last state is not known."""
        ...

    def get(self, key: str) -> T | None:
        """The object as last delivered."""
        ...


class Reflector(Generic[T]):
    """Keeps *sink* like the server."""

    def __init__(
        self,
        client: Client,
        scope: wire.Scope,
        view: type[T],
        sink: Sink[T],
        options: CacheOptions,
    ) -> None:
        self.counts = ReflectorCounts()
        self._client = client
        self._scope = scope
        self._sink = sink
        self._options = options
        self._timing = options.timing or client.timing
        self._decode = wire.decoder(view).decode
        self._reader = EventReader(view)
        self._streaming = options.streaming
        self._brought = 0
        """Events and bookmarks of the present watch."""
        self._complaints = Complaints(self._timing)
        self._log = {"resource": scope.resource.plural, "namespace": scope.namespace}

    @property
    def out_of_touch(self) -> float:
        """Seconds for which no list or watch has worked; 0 while one does."""
        return self._complaints.lasting

    async def run(self) -> None:
        """Follow the server until cancelled; failures are logged and retried with back-off."""
        backoff = Backoff(timing=self._timing)
        reconnect = Backoff(
            timing=self._timing,
            first=FIRST_RECONNECT,
            cap=LONGEST_RECONNECT,
            jitter=0.3,
            reset_after=10.0,
        )
        while True:
            started = self._timing.monotonic()
            self._brought = 0
            try:
                if not self._sink.version:
                    await self._list_and_watch()
                else:
                    await self._watch()
                pauses, advice = backoff, self._after_end(started)
            except (ApiError, ConnectionLostError, UnreadableAnswerError) as error:
                pauses = reconnect if isinstance(error, ConnectionLostError) else backoff
                advice = self._after_failure(error, started)
            if advice is not None:
                await self._timing.sleep(max(pauses.pause(), advice))

    def _after_end(self, started: float) -> float | None:
        """Judge a watch that the server ended: None to go on at once, else seconds to wait."""
        if self._brought or self._timing.monotonic() - started >= SHORT_WATCH:
            return None
        self.counts.short_watches += 1
        log.warning("the server ended a watch at once", extra=self._log)
        return 0.0

    def _after_failure(self, error: Exception, started: float) -> float | None:
        """Decide whether to list anew; None to go on at once, else the least seconds to wait."""
        self.counts.failures += 1
        if isinstance(error, ConnectionLostError):
            self._tell("watch broken", error)
            lasted = self._timing.monotonic() - started >= SHORT_WATCH
            # With a version in hand nothing is lost; a server that still talks is asked at once.
            return None if self._sink.version and (self._brought or lasted) else 0.0
        if isinstance(error, TooManyRequestsError):
            self._tell("the server is busy", error)
            return error.retry_after or 0.0
        self._tell("will list anew", error)
        self._sink.version = ""
        return 0.0

    def _tell(self, what: str, error: Exception) -> None:
        level = self._complaints.level(str(error))
        log.log(level, what, extra={**self._log, "error": str(error)})

    def _works(self) -> None:
        """What we have is what the server has, or will be in a moment."""
        if self._complaints.pending:
            seconds = round(self._complaints.over(), 1)
            log.info("followed again", extra={**self._log, "seconds": seconds})

    async def _list_and_watch(self) -> None:
        if self._streaming:
            try:
                if await self._watch(listing=True):
                    return
                self._streaming = False  # ended before the list did: it does not know the option
            except (InvalidError, BadRequestError, RequestTimeoutError, ServerError) as error:
                if self._sink.version:
                    raise  # the list was complete: this is the failure of the watch behind it
                self._streaming = isinstance(error, ServerError)
                log.info("listing in pages", extra={**self._log, "error": str(error)})
        await self._list()
        await self._watch()

    async def _list(self) -> None:
        """Read all pages and deliver them.

        The newest version is asked for, not any cached one (``resourceVersion=0``): for that,
        servers ignore the size of a page, and one document of all objects would hold up the loop.
        """
        found: dict[str, T] = {}
        version = ""
        with collection_paused():
            async for page in self._client.pages(self._scope, size=self._options.page_size):
                version = page.resource_version
                for part in _slices(page.items, SLICE):
                    for raw in part:
                        self._collect(found, raw)
                    await asyncio.sleep(0)
            self.counts.lists += 1
            await self._sink.replace(found, version)

    def _collect(self, found: dict[str, T], raw: msgspec.Raw) -> None:
        try:
            obj = self._decode(raw)
        except msgspec.MsgspecError as error:
            self._keep_former(found, metadata_of(raw), str(error))
        else:
            found[obj.metadata.key] = obj

    async def _watch(self, *, listing: bool = False) -> bool:
        """Follow one watch to its end; whether the list at its head (if any) was complete."""
        low, high = self._options.watch_seconds
        path = self._scope.path(
            watch=True,
            allowWatchBookmarks=True,
            timeoutSeconds=int(low + (high - low) * self._timing.random()),
            resourceVersion=self._sink.version,
            sendInitialEvents=listing,
            resourceVersionMatch="NotOlderThan" if listing else "",
        )
        if not listing:
            async with self._client.watch_lines(
                path, inactivity=self._options.inactivity
            ) as batches:
                self.counts.watches += 1
                self._works()
                async for lines in batches:
                    self._take(lines)
            return True
        return await self._watch_after_list(path)

    async def _watch_after_list(self, path: str) -> bool:
        found: dict[str, T] | None = {}
        patience = self._options.list_patience
        now = asyncio.get_running_loop().time
        with _silence_named(path), ExitStack() as first:
            first.enter_context(collection_paused())
            async with (
                asyncio.timeout(patience) as limit,
                self._client.watch_lines(path, inactivity=self._options.inactivity) as batches,
            ):
                self.counts.watches += 1
                async for lines in batches:
                    if found is None:
                        self._take(lines)
                        continue
                    limit.reschedule(now() + patience)
                    end, version = self._take_listed(lines, found)
                    if version:
                        limit.reschedule(None)
                        self.counts.lists += 1
                        await self._sink.replace(found, version)
                        self._works()
                        found = None
                        first.close()
                        self._take(lines[end:])
        return found is None

    def _take_listed(self, lines: Sequence[bytes], found: dict[str, T]) -> tuple[int, str]:
        """Collect lines of a list; (how many were its, its version once it is complete)."""
        for number, line in enumerate(lines, 1):
            try:
                event = self._reader.read(line)
            except UnreadableObjectError as error:
                self._keep_former(found, error.metadata, str(error))
                continue
            if isinstance(event, Bookmark):
                if event.ends_list:
                    return number, event.resource_version
            elif event.type == "DELETED":
                found.pop(event.object.metadata.key, None)
            else:
                found[event.object.metadata.key] = event.object
        return len(lines), ""

    def _keep_former(self, found: dict[str, T], meta: ObjectMeta, problem: str) -> None:
        """Count an object that does not fit; its former state, if any, is better than none."""
        self.counts.unreadable += 1
        log.warning("unreadable object", extra={**self._log, "key": meta.key, "error": problem})
        former = self._sink.get(meta.key)
        if former is not None and former.metadata.uid == meta.uid:
            found[meta.key] = former

    def _take(self, lines: Sequence[bytes]) -> None:
        """Deliver the changes that came together."""
        read, sink = self._reader.read, self._sink
        for line in lines:
            self._brought += 1
            try:
                event = read(line)
            except UnreadableObjectError as error:
                self._pass_over(error)
                continue
            if isinstance(event, WatchEvent):
                sink.apply(event.type, event.object)
                sink.version = event.object.metadata.resource_version
            elif event.resource_version:
                sink.version = event.resource_version

    def _pass_over(self, error: UnreadableObjectError) -> None:
        self.counts.unreadable += 1
        meta = error.metadata
        log.warning("unreadable object", extra={**self._log, "key": meta.key, "error": str(error)})
        if error.change == "DELETED":
            self._sink.forget(meta.key)
        if meta.resource_version:
            self._sink.version = meta.resource_version


@contextmanager
def _silence_named(path: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise RequestTimeoutError(f"{path}: the list did not come to its end") from error


def _slices(items: Sequence[msgspec.Raw], size: int) -> Iterator[Sequence[msgspec.Raw]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
