"""Follows one kind of object on the server: list once, then watch, for ever.

The list comes as the head of a watch where the server offers it (sendInitialEvents), else in
pages. A watch that ends is resumed from the last version seen, bookmarks included. Which failure
leads where: a lost connection or 429 keeps the version, everything else, 410 foremost, loses it.

Who has lost its place goes on from the server's present at once, with a list beside that tells what
was missed: in a big cluster that takes half a minute, and what happens meanwhile is not to wait for
it. See :mod:`.filling` for how the two are brought together.
"""

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import msgspec

from ...model.meta import HasMeta, ObjectMeta
from ..client import codec
from ..client.client import INACTIVITY, Client
from ..client.watch_decoder import (
    Bookmark,
    EventReader,
    UnreadableObjectError,
    WatchEvent,
    metadata_of,
)
from ..errors import (
    ApiError,
    BadRequestError,
    ConnectionLostError,
    GoneError,
    InvalidError,
    RequestTimeoutError,
    ServerError,
    TooManyRequestsError,
    UnreadableAnswerError,
)
from ..gc_tuning import collection_paused
from ..supervision import supervise
from ..timing import Backoff, Timing
from .failure_log import Complaints
from .relist import SLICE, Filling, Held

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

FIRST_RECONNECT, LONGEST_RECONNECT = 0.05, 1.5
"""Seconds, before jitter, between tries to reach a server that nobody answers at. They are short,
because a try costs next to nothing there, and everything waits for the server to be back."""

SHORT_WATCH = 1.0
"""A watch that ends within so many seconds and brings nothing is taken for a failure."""


_OLDEST = re.compile(r"too old resource version: \d+ \((\d+)\)")
"""How servers refuse to watch from a version, and say from which on they can. A server that began
a moment ago can from its beginning, so that nothing is missed but what nobody can tell."""


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
    in_order: bool = False
    """Hear of nothing new before all that was missed: for kinds whose objects are obeyed in the
    order in which they were made."""
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


class Sink(Held[T], Protocol[T]):
    """Where a reflector delivers; the cache."""

    version: str
    """Everything up to this version has been delivered, but for what a list is still to tell where
    it is not *whole*; empty where that is all there is."""
    whole: bool
    """No list is due."""

    def filled(self, version: str) -> None:
        """A list is told in full: the sink is whole, and of *version*."""
        ...

    def apply(self, change: str, obj: T) -> None:
        """One object was ADDED, MODIFIED or DELETED."""
        ...


class Reflector(Generic[T]):
    """Keeps *sink* like the server."""

    def __init__(
        self,
        client: Client,
        scope: codec.Scope,
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
        self._decode = codec.decoder(view).decode
        self._reader = EventReader(view)
        self._streaming = options.streaming
        self._filling: Filling[T] | None = None
        """By a list beside the present watch, or one that was complete in the midst of it."""
        self._beside: asyncio.Task[None] | None = None
        self._oldest = ""
        """Where a watch can begin, if the server has said so."""
        self._brought = 0
        """Events and bookmarks of the present watch."""
        self._complaints = Complaints(self._timing)
        self._log = {"resource": scope.resource.plural, "namespace": scope.namespace}

    @property
    def out_of_touch(self) -> float:
        """Seconds since all was known to be told; 0 while a watch follows and no list is due."""
        return self._complaints.lasting

    async def run(self) -> None:
        """Follow the server until cancelled; failures are logged and retried with back-off."""
        if not self._sink.whole:
            self._sink.version, self._filling = "", None
        async with asyncio.TaskGroup() as tasks:
            await self._follow(tasks)

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
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
                if self._sink.version:
                    await self._watch()
                elif self._sink.is_synced and not self._options.in_order:
                    await self._rejoin(tasks)
                else:
                    await self._list_and_watch()
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
        return self._lose_place(error)

    def _lose_place(self, error: Exception) -> float | None:
        """The version at hand is of no use any more."""
        known = isinstance(error, GoneError) and self._sink.whole
        told = _OLDEST.search(str(error)) if known else None
        self._oldest = told[1] if told else ""
        self._sink.version, self._sink.whole = "", False
        self._filling = None
        if self._beside is not None:
            self._beside.cancel()
        return None if known else 0.0

    def _tell(self, what: str, error: Exception) -> None:
        level = self._complaints.level(str(error))
        log.log(level, what, extra={**self._log, "error": str(error)})

    def _works(self) -> None:
        """What we have is what the server has, or will be in a moment."""
        if self._sink.whole and self._complaints.pending:
            seconds = round(self._complaints.over(), 1)
            log.info("followed again", extra={**self._log, "seconds": seconds})

    async def _rejoin(self, tasks: asyncio.TaskGroup) -> None:
        """Follow from the server's present on, with a list beside that tells what was missed."""
        sink, self._filling = self._sink, Filling(self._sink)
        sink.version = self._oldest or await self._ask_present()
        self._beside = tasks.create_task(self._supervise_list(self._filling))
        await self._watch()

    async def _ask_present(self) -> str:
        """The server's present version, for which no object need be looked for by its labels."""
        everything = replace(self._scope, label_selector="")
        async for page in self._client.pages(everything, size=1):
            return page.resource_version
        return ""

    async def _supervise_list(self, filling: Filling[T]) -> None:
        await supervise(
            f"list {self._scope.resource.plural}",
            lambda: self._list_beside(filling),
            timing=self._timing,
            may_end=lambda: filling.complete,
        )

    async def _list_beside(self, filling: Filling[T]) -> None:
        """List until a list is complete."""
        backoff = Backoff(timing=self._timing)
        while True:
            try:
                if not await self._stream_list(filling, stay=False):
                    await self._list(filling)
                return
            except (ApiError, ConnectionLostError, UnreadableAnswerError) as error:
                self.counts.failures += 1
                self._tell("will list again", error)
                advice = error.retry_after if isinstance(error, ApiError) else None
                await self._timing.sleep(max(backoff.pause(), advice or 0.0))

    async def _list_and_watch(self) -> None:
        filling = Filling(self._sink)
        if not await self._stream_list(filling, stay=True):
            await self._list(filling)
            await self._watch()

    async def _stream_list(self, filling: Filling[T], *, stay: bool) -> bool:
        """Take a list at the head of a watch and, to *stay*, follow that to its end.

        Returns False when the list has to be read in pages.
        """
        if self._streaming:
            try:
                await self._watch_after_list(filling, stay=stay)
                self._streaming = filling.complete  # else the server does not know the option
                return filling.complete
            except (InvalidError, BadRequestError, RequestTimeoutError, ServerError) as error:
                if filling.complete:
                    raise  # this is the failure of the watch behind it
                self._streaming = isinstance(error, ServerError)
                log.info("listing in pages", extra={**self._log, "error": str(error)})
        return False

    async def _list(self, filling: Filling[T]) -> None:
        """Read all pages and deliver them.

        The newest version is asked for, not any cached one (``resourceVersion=0``): for that,
        servers ignore the size of a page, and one document of all objects would hold up the loop.
        """
        version = ""
        filling.restart()
        with collection_paused():
            async for page in self._client.pages(self._scope, size=self._options.page_size):
                version = version or page.resource_version
                for part in _slices(page.items, SLICE):
                    for raw in part:
                        self._collect(filling, raw)
                    await asyncio.sleep(0)
            await self._fill(filling, version)

    def _collect(self, filling: Filling[T], raw: msgspec.Raw) -> None:
        try:
            filling.listed(self._decode(raw))
        except msgspec.MsgspecError as error:
            self._keep_former(filling, metadata_of(raw), str(error))

    async def _fill(self, filling: Filling[T], version: str) -> None:
        """The list was complete: bring its news to the sink."""
        self.counts.lists += 1
        await filling.finish(version)
        self._sink.filled(max(version, self._sink.version, key=lambda one: int(one or 0)))
        self._works()

    async def _watch(self) -> None:
        """Follow one watch to its end."""
        if self._filling is not None and self._filling.complete:
            self._filling = None  # this watch begins behind it
        path = self._watch_path(resourceVersion=self._sink.version)
        async with self._client.watch_lines(path, inactivity=self._options.inactivity) as batches:
            self.counts.watches += 1
            self._works()
            async for lines in batches:
                self._take(lines)

    def _watch_path(self, **query: str | bool) -> str:
        low, high = self._options.watch_seconds
        seconds = int(low + (high - low) * self._timing.random())
        return self._scope.path(
            watch=True, allowWatchBookmarks=True, timeoutSeconds=seconds, **query
        )

    async def _watch_after_list(self, filling: Filling[T], *, stay: bool) -> None:
        path = self._watch_path(sendInitialEvents=True, resourceVersionMatch="NotOlderThan")
        patience = self._options.list_patience
        now = asyncio.get_running_loop().time
        filling.restart()
        with _silence_named(path), ExitStack() as first:
            first.enter_context(collection_paused())
            async with (
                asyncio.timeout(patience) as limit,
                self._client.watch_lines(path, inactivity=self._options.inactivity) as batches,
            ):
                self.counts.watches += 1
                async for lines in batches:
                    if filling.complete:
                        self._take(lines)
                        continue
                    limit.reschedule(now() + patience)
                    end, version = self._take_listed(lines, filling)
                    if version:
                        limit.reschedule(None)
                        await self._fill(filling, version)
                        if not stay:
                            return
                        first.close()
                        self._take(lines[end:])

    def _take_listed(self, lines: Sequence[bytes], filling: Filling[T]) -> tuple[int, str]:
        """Collect lines of a list; (how many were its, its version once it is complete)."""
        for number, line in enumerate(lines, 1):
            try:
                event = self._reader.read(line)
            except UnreadableObjectError as error:
                self._keep_former(filling, error.metadata, str(error))
                continue
            if isinstance(event, Bookmark):
                if event.ends_list:
                    return number, event.resource_version
            elif event.type == "DELETED":
                filling.unlisted(event.object.metadata.key)
            else:
                filling.listed(event.object)
        return len(lines), ""

    def _keep_former(self, filling: Filling[T], meta: ObjectMeta, problem: str) -> None:
        """Count an object that does not fit; its former state, if any, is better than none."""
        self.counts.unreadable += 1
        log.warning("unreadable object", extra={**self._log, "key": meta.key, "error": problem})
        filling.listed_unreadable(meta)

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
                if self._is_news(event.object.metadata):
                    sink.apply(event.type, event.object)
                    sink.version = event.object.metadata.resource_version
            elif event.resource_version and (
                self._filling is None or self._filling.goes_beyond(event.resource_version)
            ):
                sink.version = event.resource_version

    def _is_news(self, meta: ObjectMeta) -> bool:
        """Whether no list has told of that change; it counts as told from now on."""
        filling = self._filling
        if filling is None:
            return True
        news = filling.takes(meta)
        if news and filling.complete:
            self._filling = None  # what follows is later still
        return news

    def _pass_over(self, error: UnreadableObjectError) -> None:
        self.counts.unreadable += 1
        meta = error.metadata
        log.warning("unreadable object", extra={**self._log, "key": meta.key, "error": str(error)})
        if not self._is_news(meta):
            return
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
