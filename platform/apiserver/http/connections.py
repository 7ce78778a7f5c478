"""HTTP/1.1 on one connection: requests in, answers out, one after the other.

An answer is written in one piece, so it costs one TLS record and one system call. Each connection
has one task, which lives as long as the connection does.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

from ...httpserver.limits import Limits
from ...httpserver.listener import LimitedConnection, Listener, Phase, explain
from ...httpserver.metrics import ListenerMetrics
from ..errors.status import StatusError, too_large

log = logging.getLogger(__name__)

BODY_LIMIT = 3 * 1024 * 1024
"""Bytes that a request may send."""

HEAD_LIMIT = 64 * 1024
"""Bytes that may come before a request's body."""

_AHEAD = 4
"""Requests that may wait behind the one that is being answered."""

_REASONS = {400: "BadRequest", 408: "Timeout", 429: "TooManyRequests"}
_BODILESS = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {
    each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus
}


class Asked(msgspec.Struct):
    """One request as it came."""

    method: str = ""
    path: str = ""
    """Decoded, without its query."""

    query: bytes = b""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """By lower-case name."""

    body: bytes = b""
    too_large: bool = False
    """The body was longer than BODY_LIMIT, and is not here."""

    keep_alive: bool = True
    chunks: bool = True
    """Whether the client understands an answer in chunks."""


class Reply(msgspec.Struct):
    """An answer: *body* at once, or *stream* piece by piece until it ends."""

    status: int
    headers: bytes
    """Header lines, each with its line end; length and date are added."""

    body: bytes = b""
    stream: AsyncGenerator[bytes] | None = None


Answer = Callable[[Asked], Awaitable[Reply]]
"""Answers a request; must not raise."""


Knows = Callable[[Asked], bool]
"""Whether a request, whose body has not come yet, brings credentials that are good."""


class Connections(Listener):
    """All connections of a server."""

    def __init__(
        self,
        answer: Answer,
        *,
        knows: Knows = lambda _: True,
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
        time: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(name="apiserver", limits=limits, metrics=metrics, time=time)
        self.answer = answer
        self.knows = knows
        self._second = 0
        self._date = b""

    def create_connection(self) -> "Connection":
        """The protocol of a new connection."""
        return Connection(self)

    def error_content(self, status: int) -> tuple[str, bytes]:
        """A ``Status`` object."""
        error = too_large(BODY_LIMIT)
        if status != error.code:
            error = StatusError(status, _REASONS.get(status, ""), explain(status))
        return "application/json", error.body() + b"\n"

    def date(self) -> bytes:
        """The ``Date`` header."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._date

    async def close(self, seconds: float) -> None:
        """Let answers under way finish, for that many *seconds*, and hang up."""
        self.stop()
        works = [each.shut_down() for each in self._open if isinstance(each, Connection)]
        running = [work for work in works if work is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=seconds)
            for work in late:
                work.cancel()
            if late:
                await asyncio.wait(late)
        self.abort_all()


class Connection(LimitedConnection):
    """One connection; the methods whose names begin with ``on_`` are called by the parser."""

    listener: Connections
    transport: asyncio.Transport

    def __init__(self, listener: Connections) -> None:
        super().__init__(listener)
        self._parser = HttpRequestParser(self)
        self._asked = Asked()
        self._url = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._in_head = False
        self._in_body = False
        self._dropping = False
        """The body that comes is not wanted: its request is refused already."""
        self._head_size = 0
        self._last_status = 0
        """Of a refusal that ends the connection."""
        self._deaf = False
        """What still comes is not read."""
        self._queue: deque[Asked] = deque()
        self._queued = 0
        """Bytes of bodies in the queue."""
        self._answering = False
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._streaming = False
        self._closing = False
        self._work: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        super().connection_made(transport)
        if not self.listener.closed:
            self._work = self._loop.create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        """End; a request that is being decided is still carried out, a stream is not."""
        super().connection_lost(exc)
        self._closing = True
        _wake(self._waiter)
        _wake(self._writable)
        if self._streaming and self._work is not None:
            self._work.cancel()

    def shut_down(self) -> "asyncio.Task[None] | None":
        """Take no more requests; returns the task that ends when all is answered."""
        self._closing = True
        _wake(self._waiter)
        return self._work

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        _wake(self._writable)
        self._writable = None

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._deaf = True  # what follows is of another protocol
        except HttpParserError:
            self.listener.count_rejection("malformed")
            self.reject(400)
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT:
                self.listener.count_rejection("header_too_large")
                self.reject(400)
                return
        if self._queue and not (self._in_head or self._in_body or self._answering):
            # The usual case, a whole request; `since` does not matter while it is answered.
            self.phase, self.deadline = Phase.RESPONDING, math.inf
        else:
            self._settle()

    def eof_received(self) -> None:
        """Refuse a request whose rest will not come; nothing of it is carried out."""
        if self._deaf or not (self._in_head or (self._in_body and not self._dropping)):
            return
        self.listener.count_rejection("truncated")
        self._deaf = True
        if not (self._answering or self._queue):
            self.transport.write(self.listener.rejection_response(400))

    def reject(self, status: int) -> None:
        """Drop what has come of a request, and close after *status*, if any, is sent."""
        self._last_status = status
        self._closing = self._deaf = True
        self._in_head = self._in_body = False
        self._pieces = []
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self._queue.clear()
        _wake(self._waiter)

    def _settle(self) -> None:
        """Begin the phase that the connection is in now, and tell how much it holds."""
        if self._answering or self._queue:
            phase = Phase.RESPONDING
        elif self._in_head:
            phase = Phase.HEADER
        elif self._in_body:
            phase = Phase.BODY
        elif self.phase is Phase.HEADER:
            return  # not even the first request has begun
        else:
            phase = Phase.IDLE
        if phase is not self.phase and self.phase is not Phase.CLOSING:
            self.enter_phase(phase)
        held = 0
        if self._in_head or self._in_body or self._answering:
            held = self._queued + (self._head_size if self._in_head else 0)
            if self._in_body and not self._dropping:
                held += self._size
        if held != self.buffered_bytes:
            self.listener.set_buffered_bytes(self, held)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._asked = Asked()
        self._url, self._pieces, self._size = b"", [], 0
        self._in_head, self._head_size = True, 0

    def on_url(self, piece: bytes) -> None:
        """Part of the request's line."""
        self._url += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._asked.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """What comes now is the body."""
        asked, parser = self._asked, self._parser
        self._in_head = False
        asked.method = parser.get_method().decode("ascii")
        url = self._url
        path, _, asked.query = url.partition(b"?")
        if not url.startswith(b"/"):
            parsed = parse_url(url)
            path, asked.query = parsed.path or b"/", parsed.query or b""
        asked.path = path.decode(errors="replace")
        if b"%" in path:
            asked.path = unquote(asked.path)
        asked.chunks = parser.get_http_version() == "1.1"
        asked.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self._judge(asked)

    def _judge(self, asked: Asked) -> None:
        """Answer before the body comes, if it makes no difference, or leave the client to send."""
        length = asked.headers.get("content-length", "0")
        bodiless = length == "0" and "transfer-encoding" not in asked.headers
        if bodiless and self.authenticated:
            return
        known = self.listener.knows(asked)
        if known:
            self.authenticated = True
        if bodiless:
            return
        if self._parser.should_upgrade():  # the parser would take the body for another protocol's
            self.listener.count_rejection("malformed")
            self.reject(400)
            return
        self._in_body = True
        asked.too_large = int(length) > BODY_LIMIT
        expects = asked.headers.get("expect", "").lower() == "100-continue"
        if asked.too_large or not known:
            if expects:  # whether the body comes at all is the client's choice
                asked.keep_alive = False
            self._drop(asked)
        elif expects:
            self.transport.write(_CONTINUE)

    def _drop(self, asked: Asked) -> None:
        """Have a request answered without its body."""
        self._dropping = True
        self._pieces, self._size = [], 0
        self._enqueue(asked)

    def on_body(self, piece: bytes) -> None:
        """Part of the body."""
        self._size += len(piece)
        if self._dropping:
            if self._size > 2 * BODY_LIMIT and not self._deaf:
                self.reject(0)  # a client that does not stop is not waited for
        elif self._size > BODY_LIMIT:
            self._asked.too_large = True
            self._drop(self._asked)
        else:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._in_body = False
        if self._dropping or self._deaf:
            self._dropping = False
            return
        pieces = self._pieces
        self._asked.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._enqueue(self._asked)

    def _enqueue(self, asked: Asked) -> None:
        self._queue.append(asked)
        self._queued += len(asked.body)
        if len(self._queue) > _AHEAD:
            self.transport.pause_reading()
        _wake(self._waiter)

    async def _serve(self) -> None:
        try:
            while (asked := await self._next()) is not None:
                self._answering = True
                reply = await self.listener.answer(asked)
                await self._send(asked, reply)
                self._answering = False
                if not asked.keep_alive:
                    break
                self._settle()
        except BaseException:
            self.close()
            raise
        self._end()

    def _end(self) -> None:
        """Close; a client that still sends gets a little time to read why."""
        if self._last_status:
            self.transport.write(self.listener.rejection_response(self._last_status))
        if self._last_status or self._in_body:
            self._deaf = True
            self.half_close()
        else:
            self.close()

    async def _next(self) -> Asked | None:
        while not self._queue:
            if self._closing:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
            self._waiter = None
        if len(self._queue) > _AHEAD:
            self.transport.resume_reading()
        asked = self._queue.popleft()
        self._queued -= len(asked.body)
        return asked

    async def _send(self, asked: Asked, reply: Reply) -> None:
        parts = [_STATUS_LINES[reply.status], self.listener.date(), reply.headers]
        if self._closing:
            asked.keep_alive = False
        has_body = asked.method != "HEAD" and reply.status not in _BODILESS
        if reply.stream is not None:
            await self._stream(asked, parts, reply.stream)
            return
        if reply.status not in _BODILESS:
            parts.append(b"content-length: %d\r\n" % len(reply.body))
        parts.append(b"\r\n" if asked.keep_alive else b"connection: close\r\n\r\n")
        if has_body:
            parts.append(reply.body)
        self.transport.write(b"".join(parts))
        if self._writable is not None:
            await self._writable

    async def _stream(self, asked: Asked, head: list[bytes], stream: AsyncGenerator[bytes]) -> None:
        """Send pieces until they end; cancelled when the client hangs up."""
        if asked.chunks:
            head.append(b"transfer-encoding: chunked\r\n")
        else:
            asked.keep_alive = False
        head.append(b"\r\n" if asked.keep_alive else b"connection: close\r\n\r\n")
        self.transport.write(b"".join(head))
        if asked.method == "HEAD":
            await stream.aclose()
            return
        self._streaming = True
        try:
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    if piece:
                        chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if asked.chunks else piece
                        self.transport.write(chunk)
                    if self._writable is not None:
                        await self._writable
        except Exception:
            log.exception("a stream broke off")
            asked.keep_alive = False
            return
        finally:
            self._streaming = False
        if asked.chunks:
            self.transport.write(b"0\r\n\r\n")


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
