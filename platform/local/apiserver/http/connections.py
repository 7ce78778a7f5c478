"""HTTP/1.1 on one connection: requests are handled in order, one at a time.

A response is written at once, so it costs one TLS record and one system call. Each connection
has one task, which lives as long as the connection.
"""

import asyncio
import logging
import math
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

from ....httpserver.limits import Limits
from ....httpserver.listener import LimitedConnection, Listener, Phase, explain
from ....httpserver.metrics import ListenerMetrics
from ....httpserver.upgrades import UpgradedConnection
from ....machinery.x509 import Subject
from ..errors.status import StatusError, too_large
from ..media_types import JSON
from .auth import IMPERSONATION_PREFIX, REPEATED_HEADER

log = logging.getLogger(__name__)

MAX_BODY_SIZE = 3 * 1024 * 1024
"""Maximum bytes of a request body."""

MAX_HEADER_SIZE = 64 * 1024
"""Maximum bytes before a request's body."""

_MAX_PIPELINED = 4
"""Requests queued behind the one being handled."""

_REASONS = {400: "BadRequest", 408: "Timeout", 429: "TooManyRequests"}
_LIST_HEADERS = frozenset(("sec-websocket-protocol", "x-stream-protocol-version"))
"""Headers of which a request may have several, one for each item of a list."""
_BODILESS = frozenset(
    (HTTPStatus.SWITCHING_PROTOCOLS, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {
    each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus
}


class AbortHandlerError(Exception):
    """Raised by a handler or its stream: close the connection without the rest of the response.

    The same as ``http.ErrAbortHandler`` in Go; :mod:`batholith.testing` loses responses by it.
    """


class HttpRequest(msgspec.Struct):
    """One received request."""

    method: str = ""
    path: str = ""
    """Decoded, without its query."""

    query: bytes = b""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Names are lowercase."""

    body: bytes = b""
    too_large: bool = False
    """The body exceeds ``MAX_BODY_SIZE``, and is not stored."""

    keep_alive: bool = True
    accepts_chunked: bool = True
    """Whether the client accepts a chunked response."""

    certificate: Subject | None = None
    """Of the client's certificate, which the TLS handshake has verified."""


Tunnel = Callable[[UpgradedConnection], Awaitable[None]]
"""Uses a connection after the response with which the server switched to another protocol."""


class HttpResponse(msgspec.Struct):
    """A response: *body* at once, or the chunks of *stream*; or *tunnel* after status 101."""

    status: int
    headers: bytes
    """Header lines, each with its line end; Content-Length and Date are added."""

    body: bytes = b""
    stream: AsyncGenerator[bytes] | None = None
    tunnel: Tunnel | None = None


RequestHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]
"""Handles a request; must raise nothing but AbortHandlerError."""


CredentialCheck = Callable[[HttpRequest], bool]
"""Returns whether a request, whose body is not received yet, has valid credentials."""


class Connections(Listener):
    """The connections of one listener."""

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
        """Create the protocol of a new connection."""
        return Connection(self)

    def error_content(self, status: int) -> tuple[str, bytes]:
        """Return a ``Status`` object."""
        error = too_large(MAX_BODY_SIZE)
        if status != error.code:
            error = StatusError(status, _REASONS.get(status, ""), explain(status))
        return JSON, error.body() + b"\n"

    def date(self) -> bytes:
        """Return the ``Date`` header."""
        second = int(time.time())
        if second != self._date_second:
            self._date_second = second
            self._date = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._date

    async def close(self, timeout: float) -> None:
        """Finish responses in flight within *timeout* seconds, then close all connections."""
        self.stop()
        works = [each.start_shutdown() for each in self.open if isinstance(each, Connection)]
        running = [work for work in works if work is not None]
        if running:
            _, pending = await asyncio.wait(running, timeout=timeout)
            for work in pending:
                work.cancel()
            if pending:
                await asyncio.wait(pending)
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
        """Skip the body being received: its request is rejected already."""
        self._header_size = 0
        self._last_status = 0
        """Status of a rejection that ends the connection."""
        self._ignoring_input = False
        """Discard further input."""
        self._upgraded: UpgradedConnection | None = None
        self._queue: deque[HttpRequest] = deque()
        self._queued_bytes = 0
        """Bytes of the bodies in the queue."""
        self._handling = False
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._streaming = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._certificate: Subject | None = None
        self._authorization = ""
        """The header that authenticated the last request with a body."""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve."""
        super().connection_made(transport)
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self._certificate = _certificate_of(tls)
        if not self.listener.closed:
            self._task = self._loop.create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop; a request being handled still completes, a stream does not."""
        super().connection_lost(exc)
        self._closing = True
        if self._upgraded is not None:
            self._upgraded.connection_lost()
        _wake(self._waiter)
        _wake(self._writable)
        if self._streaming and self._task is not None:
            self._task.cancel()

    def start_shutdown(self) -> "asyncio.Task[None] | None":
        """Accept no more requests; return the task that ends after the last response."""
        self._closing = True
        _wake(self._waiter)
        return self._task

    def pause_writing(self) -> None:
        """The client reads more slowly than responses are written."""
        super().pause_writing()
        if self._upgraded is not None:
            self._upgraded.pause_writing()
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        super().resume_writing()
        if self._upgraded is not None:
            self._upgraded.resume_writing()
        _wake(self._writable)
        self._writable = None

    def data_received(self, data: bytes) -> None:
        """Parse received data."""
        if self._upgraded is not None:
            self._upgraded.feed_data(data)
            return
        if self._ignoring_input:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._ignoring_input = True  # no protocol permits more before the response
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
            # Usually one complete request; the phase's start is irrelevant while it is handled.
            self.phase, self.deadline = Phase.RESPONDING, math.inf
        else:
            self._update_phase()

    def eof_received(self) -> None:
        """Reject a truncated request; it is not executed."""
        if self._upgraded is not None:
            self._upgraded.feed_eof()
            return
        if self._ignoring_input or not (
            self._in_headers or (self._in_body and not self._discarding_body)
        ):
            return
        self.listener.count_rejection("truncated")
        self._ignoring_input = True
        if not (self._handling or self._queue):
            self.transport.write(self.listener.rejection_response(400))

    def reject(self, status: int) -> None:
        """Drop a partly received request; send *status*, unless it is 0, and close."""
        self._last_status = status
        self._closing = self._ignoring_input = True
        self._in_headers = self._in_body = False
        self._body_chunks = []
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self._queue.clear()
        _wake(self._waiter)

    def _update_phase(self) -> None:
        """Update the phase of the connection and the size of its buffers."""
        if self._handling or self._queue:
            phase = Phase.RESPONDING
        elif self._in_headers:
            phase = Phase.HEADER
        elif self._in_body:
            phase = Phase.BODY
        elif self.phase is Phase.HEADER:
            return  # the first request has not started yet
        else:
            phase = Phase.IDLE
        if phase is not self.phase and self.phase is not Phase.CLOSING:
            self.enter_phase(phase)
        buffered = 0
        if self._in_headers or self._in_body or self._handling:
            buffered = self._queued_bytes + (self._header_size if self._in_headers else 0)
            if self._in_body and not self._discarding_body:
                buffered += self._body_size
        if buffered != self.buffered_bytes:
            self.listener.set_buffered_bytes(self, buffered)

    def on_message_begin(self) -> None:
        """A request starts."""
        self._incoming = HttpRequest(certificate=self._certificate)
        self._url, self._body_chunks, self._body_size = b"", [], 0
        self._in_headers, self._header_size = True, 0

    def on_url(self, piece: bytes) -> None:
        """Append to the request target."""
        self._url += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store one header."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers = self._incoming.headers
        if key in headers and key.startswith(IMPERSONATION_PREFIX):
            text = f"{headers[key]}{REPEATED_HEADER}{text}"
        elif key in headers and key in _LIST_HEADERS:
            text = f"{headers[key]}, {text}"
        headers[key] = text

    def on_headers_complete(self) -> None:
        """The headers are complete; the body follows."""
        request, parser = self._incoming, self._parser
        self._in_headers = False
        request.method = parser.get_method().decode("ascii")
        url = self._url
        path, _, request.query = url.partition(b"?")
        if not url.startswith(b"/"):
            parsed = parse_url(url)
            path, request.query = parsed.path or b"/", parsed.query or b""
        request.path = path.decode(errors="replace")
        if b"%" in path:
            request.path = unquote(request.path)
        request.accepts_chunked = parser.get_http_version() == "1.1"
        request.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        if request.certificate is not None and time.time() > request.certificate.expires_at_unix:
            request.keep_alive = False  # a new connection is opened with a renewed certificate
        self._handle_headers(request)

    def _handle_headers(self, http_request: HttpRequest) -> None:
        """Reject early, or let a client that waits for it send its body."""
        length = http_request.headers.get("content-length", "0")
        bodiless = length == "0" and "transfer-encoding" not in http_request.headers
        if bodiless and self.authenticated:
            return
        authorization = http_request.headers.get("authorization", "")
        # The handler authenticates each request: here it is enough that the header once was valid.
        known = authorization != "" and authorization == self._authorization
        known = known or self.listener.is_authenticated(http_request)
        if known:
            self.authenticated = True
        if bodiless:
            return
        if known:
            self._authorization = authorization
        if self._parser.should_upgrade():  # the parser would not treat the body as this request's
            self.listener.count_rejection("malformed")
            self.reject(400)
            return
        self._in_body = True
        http_request.too_large = int(length) > MAX_BODY_SIZE
        expects = http_request.headers.get("expect", "").lower() == "100-continue"
        if http_request.too_large or not known:
            if expects:  # the client may or may not send the body
                http_request.keep_alive = False
            self._enqueue_without_body(http_request)
        elif expects:
            self.transport.write(_CONTINUE)

    def _enqueue_without_body(self, http_request: HttpRequest) -> None:
        """Queue a request without its body."""
        self._discarding_body = True
        self._body_chunks, self._body_size = [], 0
        self._enqueue(http_request)

    def on_body(self, piece: bytes) -> None:
        """Append to the body."""
        self._body_size += len(piece)
        if self._discarding_body:
            if self._body_size > 2 * MAX_BODY_SIZE and not self._ignoring_input:
                self.reject(0)  # the client sends more than is worth reading
        elif self._body_size > MAX_BODY_SIZE:
            self._incoming.too_large = True
            self._enqueue_without_body(self._incoming)
        else:
            self._body_chunks.append(piece)

    def on_message_complete(self) -> None:
        """The request is complete."""
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
            while (request := await self._next()) is not None:
                self._handling = True
                response = await self.listener.handler(request)
                await self._send(request, response)
                self._handling = False
                if not request.keep_alive:
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
        """Close; a client that still sends gets a little time to read the response."""
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
        request = self._queue.popleft()
        self._queued_bytes -= len(request.body)
        return request

    async def _send(self, http_request: HttpRequest, http_response: HttpResponse) -> None:
        chunks = [_STATUS_LINES[http_response.status], self.listener.date(), http_response.headers]
        if self._closing:
            http_request.keep_alive = False
        has_body = http_request.method != "HEAD" and http_response.status not in _BODILESS
        if http_response.tunnel is not None:
            await self._serve_tunnel(chunks, http_response.tunnel)
            return
        if http_response.stream is not None:
            await self._stream(http_request, chunks, http_response.stream)
            return
        if http_response.status not in _BODILESS:
            chunks.append(b"content-length: %d\r\n" % len(http_response.body))
        chunks.append(b"\r\n" if http_request.keep_alive else b"connection: close\r\n\r\n")
        if has_body:
            chunks.append(http_response.body)
        self.transport.write(b"".join(chunks))
        if self._writable is not None:
            await self._writable

    async def _serve_tunnel(self, head: list[bytes], tunnel: Tunnel) -> None:
        """Switch to another protocol until *tunnel* returns or the client disconnects."""
        upgraded = UpgradedConnection(self.transport)
        self.transport.write(b"".join((*head, b"\r\n")))
        if self.transport.is_closing():
            upgraded.connection_lost()
        self._upgraded = upgraded
        self._streaming = True
        try:
            await tunnel(upgraded)
        except ConnectionError:
            return  # one of the two ends has disconnected
        finally:
            self._streaming = False

    async def _stream(
        self, http_request: HttpRequest, head: list[bytes], stream: AsyncGenerator[bytes]
    ) -> None:
        """Send chunks until the stream ends; cancelled when the client disconnects."""
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
            log.exception("cannot continue a stream")
            http_request.keep_alive = False
            return
        finally:
            self._streaming = False
        if http_request.accepts_chunked:
            self.transport.write(b"0\r\n\r\n")


def _certificate_of(tls: ssl.SSLObject) -> Subject | None:
    """Return the subject of the client's certificate, if it has sent one."""
    der = tls.getpeercert(binary_form=True)
    try:
        return None if der is None else Subject.of(der)
    except ValueError:  # OpenSSL accepts what the parser does not
        return None


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
