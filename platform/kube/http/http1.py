"""HTTP/1.1 client protocol: one connection with one exchange at a time, and its response.

A request is sent in one write. Its response is either buffered (:attr:`Exchange.response_ready` is
set with the body) or streamed (it is set with the headers, and :meth:`Exchange.read` returns the
body as it arrives). The parser is llhttp in strict mode: duplicate lengths, a length with chunked
encoding, a bare line feed or unsolicited data break the connection.
"""

import asyncio
import socket
from collections.abc import Callable

from httptools import HttpParserError, HttpResponseParser

from ..errors import ConnectionLostError, RequestTimeoutError

MAX_HEAD_SIZE = 256 * 1024
"""Maximum size of a response's headers, give or take one read."""

READ_BUFFER_LIMIT = 512 * 1024
"""Bytes of a streamed response to buffer before reading from the transport is paused, by
default."""

KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES = 30, 10, 6
"""Seconds of silence until TCP probes the server, and between probes; probes without a response
until the connection is broken."""

_SWITCHING_PROTOCOLS = 101


class Exchange:
    """A request in flight and its response."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_connection",
        "_error",
        "_read_waiter",
        "bodiless",
        "buffer_limit",
        "complete",
        "response_ready",
        "retry_after",
        "status",
        "streamed",
        "warnings",
    )

    def __init__(
        self,
        connection: "Connection",
        *,
        streamed: bool,
        bodiless: bool,
        buffer_limit: int = READ_BUFFER_LIMIT,
    ) -> None:
        self.response_ready: asyncio.Future[None] = connection.loop.create_future()
        """Set when the status is known and, unless *streamed*, the body."""
        self.streamed = streamed
        self.buffer_limit = buffer_limit
        """Bytes to buffer of a streamed response before reading is paused."""
        self.bodiless = bodiless
        """The response has no body, regardless of its headers: the request was a HEAD."""
        self.status = 0
        self.retry_after: str | None = None
        self.warnings: tuple[str, ...] = ()
        """Values of the ``Warning`` headers; their bytes are the characters' code points."""
        self.complete = False
        """The response is complete, though the reader may not have read all of it."""
        self._connection = connection
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._error: ConnectionLostError | None = None
        self._read_waiter: asyncio.Future[None] | None = None

    def body(self) -> bytes:
        """Return the unread bytes of the body."""
        chunks = self._chunks
        self._buffered = 0
        if len(chunks) == 1:
            return chunks.pop()
        body = b"".join(chunks)
        chunks.clear()
        return body

    async def read(self) -> bytes:
        """Return the next bytes of a streamed body, empty at its end.

        Raises:
            ConnectionLostError: the connection broke; what was received before has been read.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            self._read_waiter = self._connection.loop.create_future()
            await self._read_waiter
        chunk = self.body()
        if not self.complete:
            self._connection.resume_reading()
        return chunk

    def abort(self) -> None:
        """Discard the rest of the response: close the connection if the response is incomplete."""
        if not self.complete and self._error is None:
            self._connection.abort("response discarded")

    def expire(self) -> None:
        """Fail with RequestTimeoutError, and close the connection, unless it is complete."""
        if not self.complete and self._error is None:
            self._connection.expire()

    # Called by the connection.

    def on_headers(self) -> None:
        """The headers are complete."""
        if self.streamed:
            _resolve(self.response_ready)

    def add_chunk(self, chunk: bytes) -> int:
        """Add a chunk of the body; return the number of buffered bytes."""
        self._chunks.append(chunk)
        self._buffered += len(chunk)
        if self.streamed:
            _resolve(self._read_waiter)
        return self._buffered

    def on_complete(self) -> None:
        """The response is complete."""
        self.complete = True
        _resolve(self.response_ready)
        _resolve(self._read_waiter)

    def fail(self, error: ConnectionLostError) -> None:
        """Fail the exchange."""
        self._error = error
        _resolve(self._read_waiter)
        if not self.response_ready.done():
            self.response_ready.set_exception(error)
            self.response_ready.exception()  # retrieved: the caller may have been cancelled


class Connection(asyncio.Protocol):
    """One connection; methods named ``on_…`` are called by the parser."""

    def __init__(
        self,
        *,
        on_idle: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        """Initialize without connecting.

        Args:
            on_idle: called when a response is complete and another request may follow.
            on_lost: called once, when the connection is closed or unusable.
        """
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        """Set when the transport is closed."""
        self.idle_since = 0.0
        """Loop time at which it became idle; set and read by the pool."""
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._error: ConnectionLostError | None = None
        self._paused = False
        self._in_head = False
        self._head_size = 0
        self._has_body_length = False

    @property
    def connected(self) -> bool:
        """Whether the connection was ever established."""
        return self._transport is not None

    @property
    def usable(self) -> bool:
        """Whether a request may be sent now."""
        transport = self._transport
        return (
            self._exchange is None
            and self._error is None
            and transport is not None
            and not transport.is_closing()
        )

    def send(
        self,
        request: bytes,
        *,
        streamed: bool = False,
        bodiless: bool = False,
        buffer_limit: int = READ_BUFFER_LIMIT,
    ) -> Exchange:
        """Send an encoded request.

        Raises:
            ConnectionLostError: the connection is closed; nothing was sent.
        """
        if self._error is not None:
            raise self._error
        if self._exchange is not None or self._transport is None:
            raise RuntimeError("the connection is in use")
        exchange = self._exchange = Exchange(
            self, streamed=streamed, bodiless=bodiless, buffer_limit=buffer_limit
        )
        self._transport.write(request)
        return exchange

    def abort(self, reason: str) -> None:
        """Close immediately; a pending response fails with ConnectionLostError *reason*."""
        self._fail(ConnectionLostError(reason))

    def expire(self) -> None:
        """Close immediately; a pending response fails with RequestTimeoutError."""
        self._fail(RequestTimeoutError("no data in time"))

    def resume_reading(self) -> None:
        """Resume reading after the reader has emptied the buffer."""
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = transport  # type: ignore[assignment]
        _enable_keepalive(transport.get_extra_info("socket"))
        if self._error is not None:
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        if self._error is not None:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            cause = error.__context__ if isinstance(error.__context__, _ProtocolError) else error
            self.abort(f"malformed HTTP response: {cause}")
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD_SIZE:
                self.abort(f"malformed HTTP response: headers exceed {MAX_HEAD_SIZE} bytes")

    def eof_received(self) -> None:
        """The server closed its side; that completes a response without length or chunks."""
        exchange = self._exchange
        if (
            exchange is not None
            and exchange.status
            and not (self._in_head or self._has_body_length)
        ):
            self._exchange = None
            exchange.on_complete()
        self.abort("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self.abort(f"the connection broke: {exc}" if exc else "the server closed the connection")
        if not self.closed.done():
            self.closed.set_result(None)

    def _fail(self, error: ConnectionLostError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._on_lost(self)
        exchange, self._exchange = self._exchange, None
        if self._transport is not None:
            self._transport.abort()
        if exchange is not None:
            exchange.fail(error)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """A response begins."""
        if self._exchange is None:
            raise _ProtocolError("unsolicited response")
        self._in_head, self._head_size = True, 0
        self._has_body_length = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers are ignored."""
        if not self._in_head:
            return
        name = name.lower()
        if name == b"content-length":
            self._has_body_length = True
        elif name == b"transfer-encoding":
            # As for the parser, the last one determines where the body ends.
            self._has_body_length = value.lower().endswith(b"chunked")
        elif name == b"retry-after" and self._exchange is not None:
            self._exchange.retry_after = value.decode("latin-1")
        elif name == b"warning" and self._exchange is not None:
            self._exchange.warnings += (value.decode("latin-1"),)

    def on_headers_complete(self) -> None:
        """The headers are complete; the body follows."""
        self._in_head = False
        status = self._parser.get_status_code()
        exchange = self._exchange
        if status == _SWITCHING_PROTOCOLS or exchange is None:
            raise _ProtocolError("unexpected protocol switch")
        if status < 200:
            return  # informational: the final response follows
        exchange.status = status
        exchange.on_headers()
        if exchange.bodiless:
            self._finish(exchange, reusable=False)

    def on_body(self, chunk: bytes) -> None:
        """A chunk of the body."""
        exchange = self._exchange
        if exchange is None:
            return  # of a response to HEAD
        buffered = exchange.add_chunk(chunk)
        if exchange.streamed and buffered > exchange.buffer_limit and not self._paused:
            self._paused = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The response is complete."""
        exchange = self._exchange
        if exchange is not None and exchange.status:
            self._finish(exchange, reusable=self._parser.should_keep_alive())

    def _finish(self, exchange: Exchange, *, reusable: bool) -> None:
        self._exchange = None
        exchange.on_complete()
        if not reusable:
            self.abort("the server does not keep the connection alive")
            return
        self.resume_reading()
        self._on_idle(self)


class _ProtocolError(Exception):
    """The server sent what cannot be a response to the request."""


def _enable_keepalive(connected: socket.socket | None) -> None:
    """Detect a dead server while a stream without an idle timeout is open."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def _resolve(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)
