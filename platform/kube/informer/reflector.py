"""Reflector: list one resource, then watch it, forever.

The list is a watch list (``sendInitialEvents``) where the server supports it, else paginated. A
watch that ends is resumed from the last version received, bookmarks included. A lost connection or
429 keeps the resourceVersion; any other error, notably 410, discards it.

Without a resourceVersion the watch resumes from the server's latest version at once, and a relist
in the background delivers what was missed: in a large cluster that takes half a minute, which new
changes must not wait for. :mod:`.relist` merges the two.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Sequence
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
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
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
"""Initial and maximum delay, before jitter, of reconnects to an unreachable server. They are short
because an attempt is cheap and everything waits for the server."""

VERY_SHORT_WATCH = 1.0
"""A watch that ends within this many seconds without an event counts as a failure."""


_OLDEST_VERSION = re.compile(r"too old resource version: \d+ \((\d+)\)")
"""Error of a server for an expired version, with its oldest one. A server that has just started can
resume from its oldest version, so that only changes that it never had are missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerOptions:
    """Options of an informer."""

    page_size: int = 500
    """Page size of a paginated list."""
    watch_list: bool = True
    """Try a watch list first."""
    watch_list_timeout: float = 10.0
    """Seconds without data after which pages are tried instead: servers that do not support watch
    lists may never end one."""
    idle_timeout: float = WATCH_IDLE_TIMEOUT
    """Seconds without data after which a watch is resumed."""
    watch_timeout: tuple[float, float] = (300.0, 600.0)
    """Range of the random watch timeout, so that not all watches reconnect at once."""
    ordered: bool = False
    """Relist before watching, so that no change precedes a missed one: for resources whose objects
    are processed in order of creation."""
    timing: Timing | None = None
    """Defaults to that of the client."""


@dataclass(slots=True)
class ReflectorStats:
    """Counts of a reflector, for metrics and tests."""

    lists: int = 0
    watches: int = 0
    short_watches: int = 0
    failures: int = 0
    undecodable: int = 0
    """Objects that could not be decoded and were skipped or kept in their previous state."""


class ReflectorStore(RelistTarget[T], Protocol[T]):
    """Store that a reflector updates; the informer's."""

    version: str
    """All changes up to this version are in the store, except those that a due relist will deliver;
    empty if only a list can continue."""
    list_complete: bool
    """Whether no relist is due."""

    def on_list_complete(self, version: str) -> None:
        """The store includes a complete list of *version*."""
        ...

    def apply(self, event_type: str, obj: T) -> None:
        """Apply an ADDED, MODIFIED or DELETED event."""
        ...


class Reflector(Generic[T]):
    """Keeps *store* in sync with the server."""

    def __init__(
        self,
        client: Client,
        scope: codec.ListScope,
        view: type[T],
        store: ReflectorStore[T],
        options: InformerOptions,
        *,
        on_undecodable: Callable[[ObjectMeta, str], None],
    ) -> None:
        self.stats = ReflectorStats()
        self._client = client
        self._scope = scope
        self._store = store
        self._options = options
        self._on_undecodable = on_undecodable
        self._timing = options.timing or client.timing
        self._decode_object = codec.decoder_for(view).decode
        self._decoder = WatchDecoder(view)
        self._use_watch_list = options.watch_list
        self._relist: Relist[T] | None = None
        """The relist concurrent to the current watch, or applied during it."""
        self._relist_task: asyncio.Task[None] | None = None
        self._relists_begun = 0
        self._list_completed = asyncio.Event()
        """Set, and replaced, whenever a list is complete, or the run ends."""
        self._tasks: asyncio.TaskGroup | None = None
        """The tasks of the current run."""
        self._oldest_version = ""
        """Oldest version to watch from, if the server has stated it."""
        self._events_received = 0
        """Events and bookmarks of the current watch."""
        self.refused = asyncio.Event()
        """Set once the server has reported that the resource does not exist, or may not be read."""
        self._failures = FailureLog(self._timing)
        self._log_fields = {
            "resource": scope.resource.plural,
            "api_version": scope.resource.api_version,
            "namespace": scope.namespace,
        }
        self.is_optional = False
        """Whether a cluster may lack the resource, or the right to read it."""

    @property
    def stale_seconds(self) -> float:
        """Seconds since the first failure; 0 while a watch runs and no relist is due."""
        return self._failures.failing_for

    async def run(self) -> None:
        """List and watch until cancelled; failures are logged and retried with backoff."""
        if not self._store.list_complete:
            self._store.version, self._relist = "", None
        async with asyncio.TaskGroup() as self._tasks:
            try:
                await self._list_and_watch_forever(self._tasks)
            finally:
                self._tasks = None
                self._wake_waiters()

    async def relist(self) -> None:
        """List again during the watch; return once a list that began after the call is complete.

        If the reflector does not run, the next run begins with a list.
        """
        wanted, store = self._relists_begun + 1, self._store
        while not (self._relists_begun >= wanted and store.list_complete):
            if self._tasks is None:
                store.list_complete = False
                return
            if store.list_complete:
                store.list_complete = False
                self._relist = self._new_relist()
                self._relist_task = self._tasks.create_task(self._supervise_relist(self._relist))
            await self._list_completed.wait()

    def _wake_waiters(self) -> None:
        self._list_completed.set()
        self._list_completed = asyncio.Event()

    def _new_relist(self) -> Relist[T]:
        self._relists_begun += 1
        return Relist(self._store)

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
                delays, min_delay = backoff, self._on_watch_end(started)
            except (ApiError, ConnectionLostError, DecodeError) as error:
                delays = reconnect if isinstance(error, ConnectionLostError) else backoff
                min_delay = self._on_failure(error, started)
            if min_delay is not None:
                await self._timing.sleep(max(delays.next_delay(), min_delay))

    def _on_watch_end(self, started: float) -> float | None:
        """Return None to resume a watch that the server ended, else the minimum delay."""
        if self._events_received or self._timing.monotonic() - started >= VERY_SHORT_WATCH:
            return None
        self.stats.short_watches += 1
        log.warning("server ended watch immediately", extra=self._log_fields)
        return 0.0

    def _on_failure(self, error: Exception, started: float) -> float | None:
        """Return None to retry at once, else the minimum delay; discard an unusable version."""
        self.stats.failures += 1
        if isinstance(error, (ForbiddenError, NotFoundError)):
            self.refused.set()
        if isinstance(error, ConnectionLostError):
            self._log_failure("watch failed, resuming", error)
            lasted = self._timing.monotonic() - started >= VERY_SHORT_WATCH
            # A resumable watch loses nothing; a server that has sent data is retried at once.
            return None if self._store.version and (self._events_received or lasted) else 0.0
        if isinstance(error, TooManyRequestsError):
            self._log_failure("server is throttling requests", error)
            return error.retry_after or 0.0
        expired = isinstance(error, GoneError)
        message = "resourceVersion expired, relisting" if expired else "watch failed, relisting"
        self._log_failure(message, error)
        return self._discard_resource_version(error)

    def _discard_resource_version(self, error: Exception) -> float | None:
        """Discard the version; return None to relist at once, else the minimum delay."""
        expired = isinstance(error, GoneError) and self._store.list_complete
        oldest = _OLDEST_VERSION.search(str(error)) if expired else None
        self._oldest_version = oldest[1] if oldest else ""
        self._store.version, self._store.list_complete = "", False
        self._relist = None
        if self._relist_task is not None:
            self._relist_task.cancel()
        return None if expired else 0.0

    @property
    def is_absent(self) -> bool:
        """Whether the cluster lacks the resource, and may do so."""
        return self.is_optional and self.refused.is_set() and not self._store.is_synced

    def _log_failure(self, message: str, error: Exception) -> None:
        level = self._failures.level(str(error))
        if level == logging.WARNING and self.is_absent:
            level = logging.DEBUG  # the first failure has been logged
        log.log(level, message, extra={**self._log_fields, "error": str(error)})

    def _log_recovery(self) -> None:
        """Log the end of a failure once the store is, or is about to be, current."""
        if self._store.list_complete and self._failures.is_failing:
            seconds = round(self._failures.recovered(), 1)
            log.info("watch re-established", extra={**self._log_fields, "seconds": seconds})

    async def _resume_from_latest(self, tasks: asyncio.TaskGroup) -> None:
        """Watch from the server's latest version, with a relist in the background."""
        store, self._relist = self._store, self._new_relist()
        store.version = self._oldest_version or await self._latest_resource_version()
        self._relist_task = tasks.create_task(self._supervise_relist(self._relist))
        await self._watch()

    async def _latest_resource_version(self) -> str:
        """Return the server's latest version, without a label selector to evaluate."""
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
        """Retry lists until one is complete."""
        backoff = Backoff(timing=self._timing)
        while True:
            try:
                if not await self._watch_list(relist, keep_watching=False):
                    await self._list_pages(relist)
                return
            except (ApiError, ConnectionLostError, DecodeError) as error:
                self.stats.failures += 1
                self._log_failure("relist failed, retrying", error)
                min_delay = error.retry_after if isinstance(error, ApiError) else None
                await self._timing.sleep(max(backoff.next_delay(), min_delay or 0.0))

    async def _list_and_watch(self) -> None:
        relist = self._new_relist()
        if not await self._watch_list(relist, keep_watching=True):
            await self._list_pages(relist)
            await self._watch()

    async def _watch_list(self, relist: Relist[T], *, keep_watching: bool) -> bool:
        """Request a watch list and, with *keep_watching*, consume the watch that follows.

        Returns False if the list must be paginated.
        """
        if self._use_watch_list:
            try:
                await self._watch_initial_events(relist, keep_watching=keep_watching)
                # An incomplete list means that the server does not support the option.
                self._use_watch_list = relist.is_complete
                return relist.is_complete
            except (InvalidError, BadRequestError, RequestTimeoutError, ServerError) as error:
                if relist.is_complete:
                    raise  # failure of the watch after the list
                self._use_watch_list = isinstance(error, ServerError)
                log.info(
                    "watch list unavailable, listing in pages",
                    extra={**self._log_fields, "error": str(error)},
                )
        return False

    async def _list_pages(self, relist: Relist[T]) -> None:
        """List all pages and apply them.

        The list is of the latest version, not of any cached one (``resourceVersion=0``): servers do
        not paginate the latter, and one response with all objects would block the event loop.
        """
        version = ""
        relist.restart()
        with gc_paused():
            async for page in self._client.list_pages(self._scope, size=self._options.page_size):
                version = version or page.resource_version
                for chunk in _chunks(page.items, YIELD_EVERY):
                    for raw in chunk:
                        self._add_listed(relist, raw)
                    await asyncio.sleep(0)
            await self._complete_list(relist, version)

    def _add_listed(self, relist: Relist[T], raw: msgspec.Raw) -> None:
        try:
            relist.add_listed(self._decode_object(raw))
        except msgspec.MsgspecError as error:
            self._keep_previous(relist, decode_metadata(raw), str(error))

    async def _complete_list(self, relist: Relist[T], version: str) -> None:
        """Apply a complete list."""
        self.stats.lists += 1
        await relist.apply_list(version)
        self._store.on_list_complete(
            max(version, self._store.version, key=lambda one: int(one or 0))
        )
        self._wake_waiters()
        self._log_recovery()

    async def _watch(self) -> None:
        """Watch until the watch ends."""
        if self._relist is not None and self._relist.is_complete:
            self._relist = None  # this watch begins after it
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
        timeout = self._options.watch_list_timeout
        now = asyncio.get_running_loop().time
        relist.restart()
        with _name_list_timeout(path), ExitStack() as first:
            first.enter_context(gc_paused())
            async with (
                asyncio.timeout(timeout) as limit,
                self._client.watch_lines(path, idle_timeout=self._options.idle_timeout) as batches,
            ):
                self.stats.watches += 1
                async for lines in batches:
                    if relist.is_complete:
                        self._apply_events(lines)
                        continue
                    limit.reschedule(now() + timeout)
                    end, version = self._apply_initial_events(lines, relist)
                    if version:
                        limit.reschedule(None)
                        await self._complete_list(relist, version)
                        if not keep_watching:
                            return
                        first.close()
                        self._apply_events(lines[end:])

    def _apply_initial_events(self, lines: Sequence[bytes], relist: Relist[T]) -> tuple[int, str]:
        """Add initial events; return the number of lines and the version once complete."""
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
        """Keep the previous state, if any, of an undecodable object."""
        self._count_undecodable(meta, problem)
        relist.add_undecodable(meta)
        self._on_undecodable(meta, problem)

    def _count_undecodable(self, meta: ObjectMeta, problem: str) -> None:
        self.stats.undecodable += 1
        log.warning(
            "cannot decode object", extra={**self._log_fields, "key": meta.key, "error": problem}
        )

    def _apply_events(self, lines: Sequence[bytes]) -> None:
        """Apply a batch of changes."""
        decode, store = self._decoder.decode, self._store
        for line in lines:
            self._events_received += 1
            try:
                event = decode(line)
            except ObjectDecodeError as error:
                self._skip_undecodable(error)
                continue
            if isinstance(event, WatchEvent):
                if self._should_apply(event.object.metadata):
                    store.apply(event.type, event.object)
                    store.version = event.object.metadata.resource_version
            elif event.resource_version and (
                self._relist is None or self._relist.is_newer_than_list(event.resource_version)
            ):
                store.version = event.resource_version

    def _should_apply(self, meta: ObjectMeta) -> bool:
        """Return whether a change must be applied, recording it for the relist."""
        relist = self._relist
        if relist is None:
            return True
        should_apply = relist.should_apply(meta)
        if should_apply and relist.is_complete:
            self._relist = None  # all further events are newer
        return should_apply

    def _skip_undecodable(self, error: ObjectDecodeError) -> None:
        meta = error.metadata
        self._count_undecodable(meta, str(error))
        if not self._should_apply(meta):
            return
        if error.event_type == "DELETED":
            self._store.delete(meta.key)
        else:
            self._on_undecodable(meta, str(error))
        if meta.resource_version:
            self._store.version = meta.resource_version


@contextmanager
def _name_list_timeout(path: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise RequestTimeoutError(f"{path}: list timed out") from error


def _chunks(items: Sequence[msgspec.Raw], size: int) -> Iterator[Sequence[msgspec.Raw]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
