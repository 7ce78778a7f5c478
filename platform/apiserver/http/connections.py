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

MAX_BODY_SIZE = 3 * 1024 * 1024
"""Bytes that a request may send."""

MAX_HEADER_SIZE = 64 * 1024
"""Bytes that may come before a request's body."""

_MAX_PIPELINED = 4
"""Requests that may wait behind the one that is being answered."""

_REASONS = {400: "BadRequest", 408: "Timeout", 429: "TooManyRequests"}
_BODILESS = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {
    each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus
}


class AbortHandlerError(Exception):
    """Raised by a handler or its stream: close the connection without the rest of the response.

    The same as ``http.ErrAbortHandler`` in Go; :mod:`batholith.testing` loses responses by it.
    """


class HttpRequest(msgspec.Struct):
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
    accepts_chunked: bool = True
    """Whether the client understands an answer in chunks."""


class HttpResponse(msgspec.Struct):
    """An answer: *body* at once, or *stream* piece by piece until it ends."""

    status: int
    headers: bytes
    """Header lines, each with its line end; length and date are added."""

    body: bytes = b""
    stream: AsyncGenerator[bytes] | None = None


RequestHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]
"""Answers a request; must raise nothing but AbortHandlerError."""


CredentialCheck = Callable[[HttpRequest], bool]
"""Whether a request, whose body has not come yet, brings credentials that are good."""


class Connections(Listener):
    """All connections of a server."""

    def __init__(
        self,
        handler: RequestHandler,
        *,
        is_authenticated: CredentialCheck = lambda _: True,
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
        time: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(name="apiserver", limits=limits, metrics=metrics, time=time)
        self.handler = handler
        self.is_authenticated = is_authenticated
        self._date_second = 0
        self._date = b""

    def create_connection(self) -> "Connection":
        """The protocol of a new connection."""
        return Connection(self)

    def error_content(self, status: int) -> tuple[str, bytes]:
        """A ``Status`` object."""
        error = too_large(MAX_BODY_SIZE)
        if status != error.code:
            error = StatusError(status, _REASONS.get(status, ""), explain(status))
        return "application/json", error.body() + b"\n"

    def date(self) -> bytes:
        """The ``Date`` header."""
        second = int(time.time())
        if second != self._date_second:
            self._date_second = second
            self._date = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._date

    async def close(self, timeout: float) -> None:
        """Let answers under way finish, for that many *seconds*, and hang up."""
        self.stop()
        works = [each.start_shutdown() for each in self._open if isinstance(each, Connection)]
        running = [work for work in works if work is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=timeout)
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
        self._incoming = HttpRequest()
        self._url = b""
        self._body_chunks: list[bytes] = []
        self._body_size = 0
        self._in_headers = False
        self._in_body = False
        self._discarding_body = False
        """The body that comes is not wanted: its request is refused already."""
        self._header_size = 0
        self._last_status = 0
        """Of a refusal that ends the connection."""
        self._ignoring_input = False
        """What still comes is not read."""
        self._queue: deque[HttpRequest] = deque()
        self._queued_bytes = 0
        """Bytes of bodies in the queue."""
        self._handling = False
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._streaming = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        super().connection_made(transport)
        if not self.listener.closed:
            self._task = self._loop.create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        """End; a request that is being decided is still carried out, a stream is not."""
        super().connection_lost(exc)
        self._closing = True
        _wake(self._waiter)
        _wake(self._writable)
        if self._streaming and self._task is not None:
            self._task.cancel()

    def start_shutdown(self) -> "asyncio.Task[None] | None":
        """Take no more requests; returns the task that ends when all is answered."""
        self._closing = True
        _wake(self._waiter)
        return self._task

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
        if self._ignoring_input:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._ignoring_input = True  # what follows is of another protocol
        except HttpParserError:
            self.listener.count_rejection("malformed")
            self.reject(400)
            return
        if self._in_headers:
            self._header_size += len(data)
            if self._header_size > MAX_HEADER_SIZE:
                self.listener.count_rejection("header_too_large")
                self.reject(400)
                return
        if self._queue and not (self._in_headers or self._in_body or self._handling):
            # The usual case, a whole request; `since` does not matter while it is answered.
            self.phase, self.deadline = Phase.RESPONDING, math.inf
        else:
            self._update_phase()

    def eof_received(self) -> None:
        """Refuse a request whose rest will not come; nothing of it is carried out."""
        if self._ignoring_input or not (
            self._in_headers or (self._in_body and not self._discarding_body)
        ):
            return
        self.listener.count_rejection("truncated")
        self._ignoring_input = True
        if not (self._handling or self._queue):
            self.transport.write(self.listener.rejection_response(400))

    def reject(self, status: int) -> None:
        """Drop what has come of a request, and close after *status*, if any, is sent."""
        self._last_status = status
        self._closing = self._ignoring_input = True
        self._in_headers = self._in_body = False
        self._body_chunks = []
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self._queue.clear()
        _wake(self._waiter)

    def _update_phase(self) -> None:
        """Begin the phase that the connection is in now, and tell how much it holds."""
        if self._handling or self._queue:
            phase = Phase.RESPONDING
        elif self._in_headers:
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
        if self._in_headers or self._in_body or self._handling:
            held = self._queued_bytes + (self._header_size if self._in_headers else 0)
            if self._in_body and not self._discarding_body:
                held += self._body_size
        if held != self.buffered_bytes:
            self.listener.set_buffered_bytes(self, held)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._incoming = HttpRequest()
        self._url, self._body_chunks, self._body_size = b"", [], 0
        self._in_headers, self._header_size = True, 0

    def on_url(self, piece: bytes) -> None:
        """Part of the request's line."""
        self._url += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._incoming.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """What comes now is the body."""
        asked, parser = self._incoming, self._parser
        self._in_headers = False
        asked.method = parser.get_method().decode("ascii")
        url = self._url
        path, _, asked.query = url.partition(b"?")
        if not url.startswith(b"/"):
            parsed = parse_url(url)
            path, asked.query = parsed.path or b"/", parsed.query or b""
        asked.path = path.decode(errors="replace")
        if b"%" in path:
            asked.path = unquote(asked.path)
        asked.accepts_chunked = parser.get_http_version() == "1.1"
        asked.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self._handle_headers(asked)

    def _handle_headers(self, http_request: HttpRequest) -> None:
        """Answer before the body comes, if it makes no difference, or leave the client to send."""
        length = http_request.headers.get("content-length", "0")
        bodiless = length == "0" and "transfer-encoding" not in http_request.headers
        if bodiless and self.authenticated:
            return
        known = self.listener.is_authenticated(http_request)
        if known:
            self.authenticated = True
        if bodiless:
            return
        if self._parser.should_upgrade():  # the parser would take the body for another protocol's
            self.listener.count_rejection("malformed")
            self.reject(400)
            return
        self._in_body = True
        http_request.too_large = int(length) > MAX_BODY_SIZE
        expects = http_request.headers.get("expect", "").lower() == "100-continue"
        if http_request.too_large or not known:
            if expects:  # whether the body comes at all is the client's choice
                http_request.keep_alive = False
            self._enqueue_without_body(http_request)
        elif expects:
            self.transport.write(_CONTINUE)

    def _enqueue_without_body(self, http_request: HttpRequest) -> None:
        """Have a request answered without its body."""
        self._discarding_body = True
        self._body_chunks, self._body_size = [], 0
        self._enqueue(http_request)

    def on_body(self, piece: bytes) -> None:
        """Part of the body."""
        self._body_size += len(piece)
        if self._discarding_body:
            if self._body_size > 2 * MAX_BODY_SIZE and not self._ignoring_input:
                self.reject(0)  # a client that does not stop is not waited for
        elif self._body_size > MAX_BODY_SIZE:
            self._incoming.too_large = True
            self._enqueue_without_body(self._incoming)
        else:
            self._body_chunks.append(piece)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._in_body = False
        if self._discarding_body or self._ignoring_input:
            self._discarding_body = False
            return
        pieces = self._body_chunks
        self._incoming.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._body_chunks = []
        self._enqueue(self._incoming)

    def _enqueue(self, http_request: HttpRequest) -> None:
        self._queue.append(http_request)
        self._queued_bytes += len(http_request.body)
        if len(self._queue) > _MAX_PIPELINED:
            self.transport.pause_reading()
        _wake(self._waiter)

    async def _serve(self) -> None:
        try:
            while (asked := await self._next()) is not None:
                self._handling = True
                reply = await self.listener.handler(asked)
                await self._send(asked, reply)
                self._handling = False
                if not asked.keep_alive:
                    break
                self._update_phase()
        except AbortHandlerError:
            self.close()
            return
        except BaseException:
            self.close()
            raise
        self._finish()

    def _finish(self) -> None:
        """Close; a client that still sends gets a little time to read why."""
        if self._last_status:
            self.transport.write(self.listener.rejection_response(self._last_status))
        if self._last_status or self._in_body:
            self._ignoring_input = True
            self.half_close()
        else:
            self.close()

    async def _next(self) -> HttpRequest | None:
        while not self._queue:
            if self._closing:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
            self._waiter = None
        if len(self._queue) > _MAX_PIPELINED:
            self.transport.resume_reading()
        asked = self._queue.popleft()
        self._queued_bytes -= len(asked.body)
        return asked

    async def _send(self, http_request: HttpRequest, http_response: HttpResponse) -> None:
        parts = [_STATUS_LINES[http_response.status], self.listener.date(), http_response.headers]
        if self._closing:
            http_request.keep_alive = False
        has_body = http_request.method != "HEAD" and http_response.status not in _BODILESS
        if http_response.stream is not None:
            await self._stream(http_request, parts, http_response.stream)
            return
        if http_response.status not in _BODILESS:
            parts.append(b"content-length: %d\r\n" % len(http_response.body))
        parts.append(b"\r\n" if http_request.keep_alive else b"connection: close\r\n\r\n")
        if has_body:
            parts.append(http_response.body)
        self.transport.write(b"".join(parts))
        if self._writable is not None:
            await self._writable

    async def _stream(
        self, http_request: HttpRequest, head: list[bytes], stream: AsyncGenerator[bytes]
    ) -> None:
        """Send pieces until they end; cancelled when the client hangs up."""
        if http_request.accepts_chunked:
            head.append(b"transfer-encoding: chunked\r\n")
        else:
            http_request.keep_alive = False
        head.append(b"\r\n" if http_request.keep_alive else b"connection: close\r\n\r\n")
        self.transport.write(b"".join(head))
        if http_request.method == "HEAD":
            await stream.aclose()
            return
        self._streaming = True
        try:
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    if piece:
                        chunk = (
                            b"%x\r\n%b\r\n" % (len(piece), piece)
                            if http_request.accepts_chunked
                            else piece
                        )
                        self.transport.write(chunk)
                    if self._writable is not None:
                        await self._writable
        except AbortHandlerError:
            raise
        except Exception:
            log.exception("a stream broke off")
            http_request.keep_alive = False
            return
        finally:
            self._streaming = False
        if http_request.accepts_chunked:
            self.transport.write(b"0\r\n\r\n")


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
