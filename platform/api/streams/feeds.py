"""Streams of server-sent events about the objects of the informers.

Each kind has a :class:`Feed`: its event handler records changes in the log of the kind, one timer
appends them every 100 ms, and all streams that wait are woken. A :class:`Stream` is one response.
It holds its position in the log and at most one chunk: a client that does not read stays behind,
and is disconnected by the listener after its write timeout.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ...kube.errors import ApiError, ConnectionLostError
from ...kube.informer.informer import Informer
from ...kube.supervision import cancel_and_wait
from ...machinery.clock import Clock, Timer
from ..problems import ProblemError
from .change_log import (
    END,
    MAX_CHANGES,
    ChangeLog,
    Position,
    PositionLostError,
    Row,
    Selection,
    Subscription,
    frame,
)
from .metrics import StreamMetrics

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Row)

FLUSH_INTERVAL = 0.1
"""Seconds for which changes of an object are collected."""
HEARTBEAT_INTERVAL = 15.0
"""Seconds between comments, by which proxies and clients notice that a connection lives."""
CHECK_INTERVAL = 1.0
"""Seconds between checks whether a stream must be authorized again, or its token has expired."""
AUTHORIZATION_INTERVAL = 30.0
"""Seconds after which a stream is authorized again."""
MAX_CONCURRENT_CHECKS = 10

TOO_OLD = (
    "the position in Last-Event-ID is too old or not known here: connect without it to list again"
)


class EndReason(StrEnum):
    """Why a stream ends."""

    SHUTDOWN = "shutdown"
    EXPIRED = "expired"
    FORBIDDEN = "forbidden"
    TOO_SLOW = "too_slow"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Limits of streams."""

    max_streams: int = 800
    """Open streams; fewer than connections, so that other requests are served."""

    max_streams_per_caller: int = 100
    """Open streams of one user."""

    max_changes: int = MAX_CHANGES
    """Changes that are kept for each kind, to resume streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest(Generic[T]):
    """What a client asks for."""

    user: str
    selection: Selection[T]

    last_event_id: str | None
    """The position to resume from."""

    authorize: Callable[[], Awaitable[None]]
    """Checks again that the caller may read the stream.

    Raises:
        ProblemError: 401 or 403 if not.
    """

    expires_at: datetime | None = None
    """When the caller's credentials expire."""


class Feed(Generic[T]):
    """The changes of one kind, and the streams that send them."""

    def __init__(
        self,
        kind: str,
        informer: Informer[Any],
        row: Callable[[Any], T],
        *,
        encode: Callable[[T], bytes],
        clock: Clock,
        metrics: StreamMetrics,
        max_changes: int = MAX_CHANGES,
    ) -> None:
        """Record the changes of *informer*, which the caller runs; *row* converts an object."""
        self.kind = kind
        self.log = ChangeLog(encode, max_changes=max_changes)
        self.streams: set[Stream[T]] = set()
        self._informer = informer
        self._row = row
        self._clock = clock
        self._metrics = metrics
        self._loaded = False
        self._lists = 0
        self._timer: Timer | None = None
        self._changed_at = 0.0
        informer.add_event_handler(self._on_change)

    @property
    def is_ready(self) -> bool:
        """Whether the initial list is complete."""
        if not self._loaded and self._informer.synced:
            self._loaded = True
            self._lists = self._informer.stats().lists
            self.log.load(self._version() or 0)
        return self._loaded

    def flush(self) -> None:
        """Append what was recorded, and wake the streams."""
        if not self.is_ready:
            return
        changed = self.log.has_pending
        self.log.flush(self._version(), has_gap=self._has_gap())
        self._lists = self._informer.stats().lists
        if changed:
            for stream in self.streams:
                stream.on_change(self._changed_at)

    def prepare(self, position: Position) -> None:
        """Prepare the log for a stream that is to continue after *position*."""
        if self._has_gap() or self._version() is None:
            self.log.note_gap()
        elif position.seen > self.log.version:
            self.flush()  # the client may have read from a faster replica

    def _has_gap(self) -> bool:
        return self._lists != self._informer.stats().lists

    def _version(self) -> int | None:
        """Return the version up to which all changes are recorded; None if some may be missing."""
        return int(self._informer.resource_version or 0) or None

    def _on_change(self, old: Any, new: Any) -> None:
        changed = old if new is None else new
        self.log.record(changed.metadata.key, None if new is None else self._row(new))
        self._metrics.changes[self.kind] += 1
        if self._timer is None:
            self._changed_at = self._clock.monotonic()
            self._timer = self._clock.call_later(FLUSH_INTERVAL, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()


class Stream(Generic[T]):
    """One response. It knows what is still to be sent, and whether the stream ends."""

    def __init__(
        self, feed: Feed[T], request: StreamRequest[T], *, clock: Clock, metrics: StreamMetrics
    ) -> None:
        """Begin after the request's position, or with a list.

        Raises:
            PositionLostError: the stream cannot be resumed there.
        """
        after = None
        if request.last_event_id is not None:
            after = Position.parse(request.last_event_id)
            if after is None:
                raise PositionLostError
            feed.prepare(after)
        else:
            feed.flush()  # a list is not older than what the caller has read from the informer
        self.request = request
        self.feed = feed
        self.authorize_at = clock.monotonic() + AUTHORIZATION_INTERVAL
        """When the caller must be authorized again."""
        self._subscription = Subscription(feed.log, request.selection, after=after)
        self._clock = clock
        self._metrics = metrics
        self._wakeup = asyncio.Event()
        self._heartbeat_due = False
        self._behind_since: float | None = None
        self._end: bytes | None = None
        self.end_reason: EndReason | None = None
        """Why the stream ends, or has ended."""

    def on_change(self, changed_at: float) -> None:
        """Send what was appended to the log."""
        if self._behind_since is None:
            self._behind_since = changed_at
        self._wakeup.set()

    def beat(self) -> None:
        """Send a heartbeat, unless events are being sent."""
        self._heartbeat_due = True
        self._wakeup.set()

    def end(self, reason: EndReason, detail: str = "") -> None:
        """End after an event with the reason."""
        if self.end_reason is None:
            self.end_reason = reason
            if reason is not EndReason.DISCONNECTED:
                data = json.dumps({"reason": reason, "detail": detail})
                self._end = frame(END, data.encode())
            self._wakeup.set()

    async def next_chunk(self) -> bytes | None:
        """Wait for what to send next; None at the end."""
        while True:
            if self.end_reason is not None:
                last, self._end = self._end, None
                return last
            try:
                chunk = self._subscription.next_chunk()
            except PositionLostError:
                self.end(EndReason.TOO_SLOW, "the client reads more slowly than objects change")
                continue
            if chunk is not None:
                return chunk
            if self._behind_since is not None:
                self._metrics.observe_lag(self._clock.monotonic() - self._behind_since)
                self._behind_since = None
            if self._heartbeat_due:
                self._heartbeat_due = False
                return self._subscription.heartbeat()
            self._wakeup.clear()
            await self._wakeup.wait()


class Streams:
    """All feeds and open streams of the process."""

    def __init__(self, *, clock: Clock, settings: StreamSettings) -> None:
        self.metrics = StreamMetrics()
        self.metrics.open = self._open_by_kind
        self._clock = clock
        self._settings = settings
        self._feeds: dict[str, Feed[Any]] = {}
        self._users: Counter[str] = Counter()
        self._is_stopping = False

    def add_feed(
        self,
        kind: str,
        informer: Informer[Any],
        row: Callable[[Any], T],
        *,
        encode: Callable[[T], bytes],
    ) -> None:
        """Stream the objects of *informer*."""
        self._feeds[kind] = Feed(
            kind,
            informer,
            row,
            encode=encode,
            clock=self._clock,
            metrics=self.metrics,
            max_changes=self._settings.max_changes,
        )

    def open(self, kind: str, request: StreamRequest[Any]) -> Stream[Any]:
        """Open a stream of an authorized caller; it must be closed.

        Raises:
            ProblemError: 410 if the stream cannot be resumed, 429 if there are too many, 503 if
                the objects are not listed yet, or the server stops.
        """
        feed = self._feeds[kind]
        if self._is_stopping or not feed.is_ready:
            state = "the server stops" if self._is_stopping else f"{kind} are not listed yet"
            raise ProblemError(503, state, retry_after=1)
        if len(self) >= self._settings.max_streams:
            limit = self._settings.max_streams
            raise ProblemError(429, f"all {limit} streams are in use", retry_after=10)
        if self._users[request.user] >= self._settings.max_streams_per_caller:
            limit = self._settings.max_streams_per_caller
            text = f"user {request.user!r} has {limit} streams open, which is the limit"
            raise ProblemError(429, text, retry_after=10)
        try:
            stream = Stream(feed, request, clock=self._clock, metrics=self.metrics)
        except PositionLostError:
            raise ProblemError(410, TOO_OLD) from None
        feed.streams.add(stream)
        self._users[request.user] += 1
        return stream

    def close(self, stream: Stream[Any]) -> None:
        """Forget an ended stream."""
        if stream not in stream.feed.streams:
            return
        stream.feed.streams.discard(stream)
        self.metrics.ended[stream.end_reason or EndReason.DISCONNECTED] += 1
        user = stream.request.user
        self._users[user] -= 1
        if not self._users[user]:
            del self._users[user]

    def __len__(self) -> int:
        """Number of open streams."""
        return self._users.total()

    def stop(self) -> None:
        """End all streams, and open no more."""
        self._is_stopping = True
        for stream in self._all():
            stream.end(EndReason.SHUTDOWN, "the server stops; connect again")

    async def run(self) -> None:
        """Send heartbeats and check the rights of callers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._check_callers())

    def _all(self) -> list[Stream[Any]]:
        return [stream for feed in self._feeds.values() for stream in feed.streams]

    def _open_by_kind(self) -> dict[str, int]:
        return {kind: len(feed.streams) for kind, feed in self._feeds.items()}

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(HEARTBEAT_INTERVAL)
            for feed in self._feeds.values():
                feed.flush()  # positions of quiet streams advance, too
            for stream in self._all():
                stream.beat()

    async def _check_callers(self) -> None:
        limit = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)
        while True:
            await self._clock.sleep(CHECK_INTERVAL)
            now, wall = self._clock.monotonic(), self._clock.now()
            due = []
            for stream in self._all():
                expires_at = stream.request.expires_at
                if expires_at is not None and expires_at <= wall:
                    stream.end(EndReason.EXPIRED, "the credentials of the caller have expired")
                elif stream.authorize_at <= now and stream.end_reason is None:
                    stream.authorize_at = now + AUTHORIZATION_INTERVAL
                    due.append(stream)
            async with asyncio.TaskGroup() as tasks:
                for stream in due:
                    tasks.create_task(_authorize(stream, limit))


async def _authorize(stream: Stream[Any], limit: asyncio.Semaphore) -> None:
    """End a stream that its caller may not read any more.

    While the API server does not respond, streams continue.
    """
    async with limit:
        try:
            await stream.request.authorize()
        except ProblemError as error:
            if error.status == 401:
                stream.end(EndReason.EXPIRED, error.detail)
            elif error.status == 403:
                stream.end(EndReason.FORBIDDEN, error.detail)
            else:
                _log_failure(error)
        except (ApiError, ConnectionLostError) as error:
            _log_failure(error)


def _log_failure(error: Exception) -> None:
    log.debug("cannot authorize stream again, will retry", extra={"error": str(error)})


@dataclass(slots=True)
class _Counted:
    """Sends the body of a response and counts its bytes."""

    send: Send
    metrics: StreamMetrics = field(repr=False)

    async def body(self, chunk: bytes, *, more: bool) -> None:
        await self.send({"type": "http.response.body", "body": chunk, "more_body": more})
        self.metrics.bytes_sent += len(chunk)


class EventStreamResponse(Response):
    """The response of a stream: chunks are sent as they are, shared by all streams."""

    media_type = "text/event-stream"

    def __init__(self, streams: Streams, stream: Stream[Any], *, retry: int) -> None:
        """Send *stream*, which this response closes; clients reconnect after *retry* ms."""
        self.status_code = 200
        self.background = None
        self._streams = streams
        self._stream = stream
        self._retry = retry
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream ends or the client disconnects."""
        stream = self._stream
        counted = _Counted(send, self._streams.metrics)
        watching = asyncio.create_task(_end_at_disconnect(stream, receive))
        try:
            head: Message = {
                "type": "http.response.start",
                "status": 200,
                "headers": self.raw_headers,
            }
            await send(head)
            await counted.body(b"retry: %d\n\n" % self._retry, more=True)
            while (chunk := await stream.next_chunk()) is not None:
                await counted.body(chunk, more=True)
            if stream.end_reason is not EndReason.DISCONNECTED:
                await counted.body(b"", more=False)
        finally:
            self._streams.close(stream)
            await cancel_and_wait(watching)


async def _end_at_disconnect(stream: Stream[Any], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.end(EndReason.DISCONNECTED)
