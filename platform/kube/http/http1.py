"""HTTP/1.1 as its client: one connection that asks one thing at a time, and the answers.

A request goes out in one write. Its answer is either gathered (:attr:`Exchange.answered` comes with
the body) or streamed (it comes with the head, and :meth:`Exchange.decode_job` gives the rest as it
arrives). The parser is llhttp at its strictest: a length given twice, a length beside chunks or a
bare line feed break the connection, as does anything that the server says without being asked.
"""

import asyncio
from collections.abc import Callable

from httptools import HttpParserError, HttpResponseParser

from ..errors import ConnectionLostError

MAX_HEAD_SIZE = 256 * 1024
"""Bytes that an answer's head may have, give or take one read."""

READ_BUFFER_LIMIT = 512 * 1024
"""Bytes of a streamed answer that wait for their reader; with more the server is made to wait."""

_SWITCHING_PROTOCOLS = 101


class Exchange:
    """A request under way, and what has come of its answer."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_connection",
        "_error",
        "_read_waiter",
        "bodiless",
        "complete",
        "response_ready",
        "retry_after",
        "status",
        "streamed",
    )

    def __init__(self, connection: "Connection", *, streamed: bool, bodiless: bool) -> None:
        self.response_ready: asyncio.Future[None] = connection.loop.create_future()
        """The status is known; unless *streamed*, so is the body."""
        self.streamed = streamed
        self.bodiless = bodiless
        """The answer has no body whatever its head says: the request was a HEAD."""
        self.status = 0
        self.retry_after: str | None = None
        self.complete = False
        """All of the answer has come, though not all of it may have been read."""
        self._connection = connection
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._error: ConnectionLostError | None = None
        self._read_waiter: asyncio.Future[None] | None = None

    def body(self) -> bytes:
        """What has come of the body and was not read; it is handed out once."""
        pieces = self._chunks
        self._buffered = 0
        if len(pieces) == 1:
            return pieces.pop()
        whole = b"".join(pieces)
        pieces.clear()
        return whole

    async def read(self) -> bytes:
        """The next bytes of a streamed body, however many there are; none at its end.

        Raises:
            ConnectionLostError: the connection broke before the end; what came before was given.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            self._read_waiter = self._connection.loop.create_future()
            await self._read_waiter
        piece = self.body()
        if not self.complete:
            self._connection.resume_reading()
        return piece

    def abort(self) -> None:
        """The rest of the answer is not wanted: hang up, unless all of it is here."""
        if not self.complete and self._error is None:
            self._connection.abort("the answer is not wanted any more")

    # What the connection tells.

    def on_headers(self) -> None:
        """The head is complete."""
        if self.streamed:
            _resolve(self.response_ready)

    def add_chunk(self, chunk: bytes) -> int:
        """Part of the body came; returns how many bytes wait for the reader."""
        self._chunks.append(chunk)
        self._buffered += len(chunk)
        if self.streamed:
            _resolve(self._read_waiter)
        return self._buffered

    def on_complete(self) -> None:
        """The answer is complete."""
        self.complete = True
        _resolve(self.response_ready)
        _resolve(self._read_waiter)

    def fail(self, error: ConnectionLostError) -> None:
        """There will be no more of the answer."""
        self._error = error
        _resolve(self._read_waiter)
        if not self.response_ready.done():
            self.response_ready.set_exception(error)
            self.response_ready.exception()  # who asked may have gone away: that is no news


class Connection(asyncio.Protocol):
    """One connection; the methods whose names begin with ``on_`` are called by the parser."""

    def __init__(
        self,
        *,
        on_idle: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        """Prepare a connection.

        Args:
            freed: called when an answer is complete and another request may follow.
            lost: called once, when the connection is gone or no longer of use.
        """
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        """The transport is gone."""
        self.idle_since = 0.0
        """Loop time at which it became free; the pool's to set and read."""
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
        """Whether it ever got through to the server."""
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

    def send(self, request: bytes, *, streamed: bool = False, bodiless: bool = False) -> Exchange:
        """Send a whole request.

        Raises:
            ConnectionLostError: the connection is gone; nothing was sent.
        """
        if self._error is not None:
            raise self._error
        if self._exchange is not None or self._transport is None:
            raise RuntimeError("the connection is not free")
        exchange = self._exchange = Exchange(self, streamed=streamed, bodiless=bodiless)
        self._transport.write(request)
        return exchange

    def abort(self, reason: str) -> None:
        """Hang up at once; an answer under way fails with ConnectionLostError *why*."""
        self._fail(ConnectionLostError(reason))

    def resume_reading(self) -> None:
        """The reader has caught up."""
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of the way out."""
        self._transport = transport  # type: ignore[assignment]
        if self._error is not None:
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._error is not None:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            cause = error.__context__ if isinstance(error.__context__, _ProtocolError) else error
            self.abort(f"no HTTP answer: {cause}")
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD_SIZE:
                self.abort(f"no HTTP answer: its head is longer than {MAX_HEAD_SIZE} bytes")

    def eof_received(self) -> None:
        """The server will say no more; that ends an answer that has no other end."""
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
        """Nothing will come any more."""
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

    # What the parser tells.

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self._exchange is None:
            raise _ProtocolError("the server spoke without being asked")
        self._in_head, self._head_size = True, 0
        self._has_body_length = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which says nothing to us."""
        if not self._in_head:
            return
        name = name.lower()
        if name == b"content-length":
            self._has_body_length = True
        elif name == b"transfer-encoding":
            # The parser takes the last one's word for where the body ends.
            self._has_body_length = value.lower().endswith(b"chunked")
        elif name == b"retry-after" and self._exchange is not None:
            self._exchange.retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """What comes now is the body."""
        self._in_head = False
        status = self._parser.get_status_code()
        exchange = self._exchange
        if status == _SWITCHING_PROTOCOLS or exchange is None:
            raise _ProtocolError("the server changes the protocol")
        if status < 200:
            return  # an interim answer: the true one follows
        exchange.status = status
        exchange.on_headers()
        if exchange.bodiless:
            self._finish(exchange, reusable=False)

    def on_body(self, chunk: bytes) -> None:
        """Part of the body."""
        exchange = self._exchange
        if exchange is None:
            return  # of an answer to HEAD
        waiting = exchange.add_chunk(chunk)
        if exchange.streamed and waiting > READ_BUFFER_LIMIT and not self._paused:
            self._paused = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        exchange = self._exchange
        if exchange is not None and exchange.status:
            self._finish(exchange, reusable=self._parser.should_keep_alive())

    def _finish(self, exchange: Exchange, *, reusable: bool) -> None:
        self._exchange = None
        exchange.on_complete()
        if not reusable:
            self.abort("the connection was for one answer")
            return
        self.resume_reading()
        self._on_idle(self)


class _ProtocolError(Exception):
    """What the server sends cannot be an answer to what was asked."""


def _resolve(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)
