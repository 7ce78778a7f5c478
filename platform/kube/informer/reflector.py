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
from ..client.client import WATCH_IDLE_TIMEOUT, Client
from ..client.watch_decoder import (
    Bookmark,
    ObjectDecodeError,
    WatchDecoder,
    WatchEvent,
    decode_metadata,
)
from ..errors import (
    ApiError,
    BadRequestError,
    ConnectionLostError,
    DecodeError,
    GoneError,
    InvalidError,
    RequestTimeoutError,
    ServerError,
    TooManyRequestsError,
)
from ..gc_tuning import gc_paused
from ..supervision import supervise
from ..timing import Backoff, Timing
from .failure_log import FailureLog
from .relist import YIELD_EVERY, Relist, RelistTarget

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

INITIAL_RECONNECT_DELAY, MAX_RECONNECT_DELAY = 0.05, 1.5
"""Seconds, before jitter, between tries to reach a server that nobody answers at. They are short,
because a try costs next to nothing there, and everything waits for the server to be back."""

VERY_SHORT_WATCH = 1.0
"""A watch that ends within so many seconds and brings nothing is taken for a failure."""


_OLDEST_VERSION = re.compile(r"too old resource version: \d+ \((\d+)\)")
"""How servers refuse to watch from a version, and say from which on they can. A server that began
a moment ago can from its beginning, so that nothing is missed but what nobody can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerOptions:
    """Settings of a cache that have good defaults."""

    page_size: int = 500
    """Objects a page, when the list comes in pages."""
    watch_list: bool = True
    """Ask for the list as the head of a watch first."""
    watch_list_timeout: float = 10.0
    """Seconds of silence in such a list after which pages are tried instead: servers that do not
    know the option may just never end it."""
    idle_timeout: float = WATCH_IDLE_TIMEOUT
    """Seconds of silence after which a watch is taken for dead and resumed."""
    watch_timeout: tuple[float, float] = (300.0, 600.0)
    """A watch is asked to last a random time between these, so that not all reconnect at once."""
    ordered: bool = False
    """Hear of nothing new before all that was missed: for kinds whose objects are obeyed in the
    order in which they were made."""
    timing: Timing | None = None
    """By default that of the client."""


@dataclass(slots=True)
class ReflectorStats:
    """What happened so far, for figures and tests."""

    lists: int = 0
    watches: int = 0
    short_watches: int = 0
    failures: int = 0
    undecodable: int = 0
    """Objects that did not fit the view and were left out, or kept in their former state."""


class ReflectorStore(RelistTarget[T], Protocol[T]):
    """Where a reflector delivers; the cache."""

    version: str
    """Everything up to this version has been delivered, but for what a list is still to tell where
    it is not *whole*; empty where that is all there is."""
    list_complete: bool
    """No list is due."""

    def on_list_complete(self, version: str) -> None:
        """A list is told in full: the sink is whole, and of *version*."""
        ...

    def apply(self, event_type: str, obj: T) -> None:
        """One object was ADDED, MODIFIED or DELETED."""
        ...


class Reflector(Generic[T]):
    """Keeps *sink* like the server."""

    def __init__(
        self,
        client: Client,
        scope: codec.ListScope,
        view: type[T],
        store: ReflectorStore[T],
        options: InformerOptions,
    ) -> None:
        self.stats = ReflectorStats()
        self._client = client
        self._scope = scope
        self._store = store
        self._options = options
        self._timing = options.timing or client.timing
        self._decode_object = codec.decoder_for(view).decode
        self._decoder = WatchDecoder(view)
        self._use_watch_list = options.watch_list
        self._relist: Relist[T] | None = None
        """By a list beside the present watch, or one that was complete in the midst of it."""
        self._relist_task: asyncio.Task[None] | None = None
        self._oldest_version = ""
        """Where a watch can begin, if the server has said so."""
        self._events_received = 0
        """Events and bookmarks of the present watch."""
        self._failures = FailureLog(self._timing)
        self._log_fields = {"resource": scope.resource.plural, "namespace": scope.namespace}

    @property
    def stale_seconds(self) -> float:
        """Seconds since all was known to be told; 0 while a watch follows and no list is due."""
        return self._failures.failing_for

    async def run(self) -> None:
        """Follow the server until cancelled; failures are logged and retried with back-off."""
        if not self._store.list_complete:
            self._store.version, self._relist = "", None
        async with asyncio.TaskGroup() as tasks:
            await self._list_and_watch_forever(tasks)

    async def _list_and_watch_forever(self, tasks: asyncio.TaskGroup) -> None:
        backoff = Backoff(timing=self._timing)
        reconnect = Backoff(
            timing=self._timing,
            initial=INITIAL_RECONNECT_DELAY,
            cap=MAX_RECONNECT_DELAY,
            jitter=0.3,
            reset_after=10.0,
        )
        while True:
            started = self._timing.monotonic()
            self._events_received = 0
            try:
                if self._store.version:
                    await self._watch()
                elif self._store.is_synced and not self._options.ordered:
                    await self._resume_from_latest(tasks)
                else:
                    await self._list_and_watch()
                pauses, advice = backoff, self._on_watch_end(started)
            except (ApiError, ConnectionLostError, DecodeError) as error:
                pauses = reconnect if isinstance(error, ConnectionLostError) else backoff
                advice = self._on_failure(error, started)
            if advice is not None:
                await self._timing.sleep(max(pauses.next_delay(), advice))

    def _on_watch_end(self, started: float) -> float | None:
        """Judge a watch that the server ended: None to go on at once, else seconds to wait."""
        if self._events_received or self._timing.monotonic() - started >= VERY_SHORT_WATCH:
            return None
        self.stats.short_watches += 1
        log.warning("the server ended a watch at once", extra=self._log_fields)
        return 0.0

    def _on_failure(self, error: Exception, started: float) -> float | None:
        """Decide whether to list anew; None to go on at once, else the least seconds to wait."""
        self.stats.failures += 1
        if isinstance(error, ConnectionLostError):
            self._log_failure("watch broken", error)
            lasted = self._timing.monotonic() - started >= VERY_SHORT_WATCH
            # With a version in hand nothing is lost; a server that still talks is asked at once.
            return None if self._store.version and (self._events_received or lasted) else 0.0
        if isinstance(error, TooManyRequestsError):
            self._log_failure("the server is busy", error)
            return error.retry_after or 0.0
        self._log_failure("will list anew", error)
        return self._discard_resource_version(error)

    def _discard_resource_version(self, error: Exception) -> float | None:
        """The version at hand is of no use any more."""
        known = isinstance(error, GoneError) and self._store.list_complete
        told = _OLDEST_VERSION.search(str(error)) if known else None
        self._oldest_version = told[1] if told else ""
        self._store.version, self._store.list_complete = "", False
        self._relist = None
        if self._relist_task is not None:
            self._relist_task.cancel()
        return None if known else 0.0

    def _log_failure(self, message: str, error: Exception) -> None:
        level = self._failures.level(str(error))
        log.log(level, message, extra={**self._log_fields, "error": str(error)})

    def _log_recovery(self) -> None:
        """What we have is what the server has, or will be in a moment."""
        if self._store.list_complete and self._failures.is_failing:
            seconds = round(self._failures.recovered(), 1)
            log.info("followed again", extra={**self._log_fields, "seconds": seconds})

    async def _resume_from_latest(self, tasks: asyncio.TaskGroup) -> None:
        """Follow from the server's present on, with a list beside that tells what was missed."""
        sink, self._relist = self._store, Relist(self._store)
        sink.version = self._oldest_version or await self._latest_resource_version()
        self._relist_task = tasks.create_task(self._supervise_relist(self._relist))
        await self._watch()

    async def _latest_resource_version(self) -> str:
        """The server's present version, for which no object need be looked for by its labels."""
        everything = replace(self._scope, label_selector="")
        async for page in self._client.list_pages(everything, size=1):
            return page.resource_version
        return ""

    async def _supervise_relist(self, relist: Relist[T]) -> None:
        await supervise(
            f"list {self._scope.resource.plural}",
            lambda: self._relist_in_background(relist),
            timing=self._timing,
            may_end=lambda: relist.is_complete,
        )

    async def _relist_in_background(self, relist: Relist[T]) -> None:
        """List until a list is complete."""
        backoff = Backoff(timing=self._timing)
        while True:
            try:
                if not await self._watch_list(relist, keep_watching=False):
                    await self._list_pages(relist)
                return
            except (ApiError, ConnectionLostError, DecodeError) as error:
                self.stats.failures += 1
                self._log_failure("will list again", error)
                advice = error.retry_after if isinstance(error, ApiError) else None
                await self._timing.sleep(max(backoff.next_delay(), advice or 0.0))

    async def _list_and_watch(self) -> None:
        filling = Relist(self._store)
        if not await self._watch_list(filling, keep_watching=True):
            await self._list_pages(filling)
            await self._watch()

    async def _watch_list(self, relist: Relist[T], *, keep_watching: bool) -> bool:
        """Take a list at the head of a watch and, to *stay*, follow that to its end.

        Returns False when the list has to be read in pages.
        """
        if self._use_watch_list:
            try:
                await self._watch_initial_events(relist, keep_watching=keep_watching)
                self._use_watch_list = (
                    relist.is_complete
                )  # else the server does not know the option
                return relist.is_complete
            except (InvalidError, BadRequestError, RequestTimeoutError, ServerError) as error:
                if relist.is_complete:
                    raise  # this is the failure of the watch behind it
                self._use_watch_list = isinstance(error, ServerError)
                log.info("listing in pages", extra={**self._log_fields, "error": str(error)})
        return False

    async def _list_pages(self, relist: Relist[T]) -> None:
        """Read all pages and deliver them.

        The newest version is asked for, not any cached one (``resourceVersion=0``): for that,
        servers ignore the size of a page, and one document of all objects would hold up the loop.
        """
        version = ""
        relist.restart()
        with gc_paused():
            async for page in self._client.list_pages(self._scope, size=self._options.page_size):
                version = version or page.resource_version
                for part in _chunks(page.items, YIELD_EVERY):
                    for raw in part:
                        self._add_listed(relist, raw)
                    await asyncio.sleep(0)
            await self._complete_list(relist, version)

    def _add_listed(self, relist: Relist[T], raw: msgspec.Raw) -> None:
        try:
            relist.add_listed(self._decode_object(raw))
        except msgspec.MsgspecError as error:
            self._keep_previous(relist, decode_metadata(raw), str(error))

    async def _complete_list(self, relist: Relist[T], version: str) -> None:
        """The list was complete: bring its news to the sink."""
        self.stats.lists += 1
        await relist.apply_list(version)
        self._store.on_list_complete(
            max(version, self._store.version, key=lambda one: int(one or 0))
        )
        self._log_recovery()

    async def _watch(self) -> None:
        """Follow one watch to its end."""
        if self._relist is not None and self._relist.is_complete:
            self._relist = None  # this watch begins behind it
        path = self._watch_path(resourceVersion=self._store.version)
        async with self._client.watch_lines(
            path, idle_timeout=self._options.idle_timeout
        ) as batches:
            self.stats.watches += 1
            self._log_recovery()
            async for lines in batches:
                self._apply_events(lines)

    def _watch_path(self, **query: str | bool) -> str:
        low, high = self._options.watch_timeout
        seconds = int(low + (high - low) * self._timing.random())
        return self._scope.path(
            watch=True, allowWatchBookmarks=True, timeoutSeconds=seconds, **query
        )

    async def _watch_initial_events(self, relist: Relist[T], *, keep_watching: bool) -> None:
        path = self._watch_path(sendInitialEvents=True, resourceVersionMatch="NotOlderThan")
        patience = self._options.watch_list_timeout
        now = asyncio.get_running_loop().time
        relist.restart()
        with _name_list_timeout(path), ExitStack() as first:
            first.enter_context(gc_paused())
            async with (
                asyncio.timeout(patience) as limit,
                self._client.watch_lines(path, idle_timeout=self._options.idle_timeout) as batches,
            ):
                self.stats.watches += 1
                async for lines in batches:
                    if relist.is_complete:
                        self._apply_events(lines)
                        continue
                    limit.reschedule(now() + patience)
                    end, version = self._apply_initial_events(lines, relist)
                    if version:
                        limit.reschedule(None)
                        await self._complete_list(relist, version)
                        if not keep_watching:
                            return
                        first.close()
                        self._apply_events(lines[end:])

    def _apply_initial_events(self, lines: Sequence[bytes], relist: Relist[T]) -> tuple[int, str]:
        """Collect lines of a list; (how many were its, its version once it is complete)."""
        for number, line in enumerate(lines, 1):
            try:
                event = self._decoder.decode(line)
            except ObjectDecodeError as error:
                self._keep_previous(relist, error.metadata, str(error))
                continue
            if isinstance(event, Bookmark):
                if event.ends_initial_events:
                    return number, event.resource_version
            elif event.type == "DELETED":
                relist.drop_listed(event.object.metadata.key)
            else:
                relist.add_listed(event.object)
        return len(lines), ""

    def _keep_previous(self, relist: Relist[T], meta: ObjectMeta, problem: str) -> None:
        """Count an object that does not fit; its former state, if any, is better than none."""
        self.stats.undecodable += 1
        log.warning(
            "unreadable object", extra={**self._log_fields, "key": meta.key, "error": problem}
        )
        relist.add_undecodable(meta)

    def _apply_events(self, lines: Sequence[bytes]) -> None:
        """Deliver the changes that came together."""
        read, sink = self._decoder.decode, self._store
        for line in lines:
            self._events_received += 1
            try:
                event = read(line)
            except ObjectDecodeError as error:
                self._skip_undecodable(error)
                continue
            if isinstance(event, WatchEvent):
                if self._should_apply(event.object.metadata):
                    sink.apply(event.type, event.object)
                    sink.version = event.object.metadata.resource_version
            elif event.resource_version and (
                self._relist is None or self._relist.is_newer_than_list(event.resource_version)
            ):
                sink.version = event.resource_version

    def _should_apply(self, meta: ObjectMeta) -> bool:
        """Whether no list has told of that change; it counts as told from now on."""
        filling = self._relist
        if filling is None:
            return True
        news = filling.should_apply(meta)
        if news and filling.is_complete:
            self._relist = None  # what follows is later still
        return news

    def _skip_undecodable(self, error: ObjectDecodeError) -> None:
        self.stats.undecodable += 1
        meta = error.metadata
        log.warning(
            "unreadable object", extra={**self._log_fields, "key": meta.key, "error": str(error)}
        )
        if not self._should_apply(meta):
            return
        if error.event_type == "DELETED":
            self._store.delete(meta.key)
        if meta.resource_version:
            self._store.version = meta.resource_version


@contextmanager
def _name_list_timeout(path: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise RequestTimeoutError(f"{path}: the list did not come to its end") from error


def _chunks(items: Sequence[msgspec.Raw], size: int) -> Iterator[Sequence[msgspec.Raw]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
