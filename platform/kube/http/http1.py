"""HTTP/1.1 as its client: one connection that asks one thing at a time, and the answers.

A request goes out in one write. Its answer is either gathered (:attr:`Exchange.answered` comes with
the body) or streamed (it comes with the head, and :meth:`Exchange.read` gives the rest as it
arrives). The parser is llhttp at its strictest: a length given twice, a length beside chunks or a
bare line feed break the connection, as does anything that the server says without being asked.
"""

import asyncio
from collections.abc import Callable

from httptools import HttpParserError, HttpResponseParser

from ..errors import ConnectionLostError

HEAD_LIMIT = 256 * 1024
"""Bytes that an answer's head may have, give or take one read."""

HIGH_WATER = 512 * 1024
"""Bytes of a streamed answer that wait for their reader; with more the server is made to wait."""

_SWITCHING = 101


class Exchange:
    """A request under way, and what has come of its answer."""

    __slots__ = (
        "_connection",
        "_error",
        "_pieces",
        "_reader",
        "_waiting",
        "answered",
        "ended",
        "headless",
        "retry_after",
        "status",
        "streamed",
    )

    def __init__(self, connection: "Connection", *, streamed: bool, headless: bool) -> None:
        self.answered: asyncio.Future[None] = connection.loop.create_future()
        """The status is known; unless *streamed*, so is the body."""
        self.streamed = streamed
        self.headless = headless
        """The answer has no body whatever its head says: the request was a HEAD."""
        self.status = 0
        self.retry_after: str | None = None
        self.ended = False
        """All of the answer has come, though not all of it may have been read."""
        self._connection = connection
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._error: ConnectionLostError | None = None
        self._reader: asyncio.Future[None] | None = None

    def body(self) -> bytes:
        """What has come of the body and was not read; it is handed out once."""
        pieces = self._pieces
        self._waiting = 0
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
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self.ended:
                return b""
            self._reader = self._connection.loop.create_future()
            await self._reader
        piece = self.body()
        if not self.ended:
            self._connection.hurry()
        return piece

    def abandon(self) -> None:
        """The rest of the answer is not wanted: hang up, unless all of it is here."""
        if not self.ended and self._error is None:
            self._connection.abort("the answer is not wanted any more")

    # What the connection tells.

    def begin(self) -> None:
        """The head is complete."""
        if self.streamed:
            _resolve(self.answered)

    def add(self, piece: bytes) -> int:
        """Part of the body came; returns how many bytes wait for the reader."""
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self.streamed:
            _resolve(self._reader)
        return self._waiting

    def end(self) -> None:
        """The answer is complete."""
        self.ended = True
        _resolve(self.answered)
        _resolve(self._reader)

    def fail(self, error: ConnectionLostError) -> None:
        """There will be no more of the answer."""
        self._error = error
        _resolve(self._reader)
        if not self.answered.done():
            self.answered.set_exception(error)
            self.answered.exception()  # who asked may have gone away: that is no news


class Connection(asyncio.Protocol):
    """One connection; the methods whose names begin with ``on_`` are called by the parser."""

    def __init__(
        self,
        *,
        freed: Callable[["Connection"], None],
        lost: Callable[["Connection"], None],
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
        self._freed = freed
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._error: ConnectionLostError | None = None
        self._paused = False
        self._in_head = False
        self._head_size = 0
        self._sized = False

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

    def ask(self, request: bytes, *, streamed: bool = False, headless: bool = False) -> Exchange:
        """Send a whole request.

        Raises:
            ConnectionLostError: the connection is gone; nothing was sent.
        """
        if self._error is not None:
            raise self._error
        if self._exchange is not None or self._transport is None:
            raise RuntimeError("the connection is not free")
        exchange = self._exchange = Exchange(self, streamed=streamed, headless=headless)
        self._transport.write(request)
        return exchange

    def abort(self, why: str) -> None:
        """Hang up at once; an answer under way fails with ConnectionLostError *why*."""
        self._break(ConnectionLostError(why))

    def hurry(self) -> None:
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
            cause = error.__context__ if isinstance(error.__context__, _NoAnswerError) else error
            self.abort(f"no HTTP answer: {cause}")
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT:
                self.abort(f"no HTTP answer: its head is longer than {HEAD_LIMIT} bytes")

    def eof_received(self) -> None:
        """The server will say no more; that ends an answer that has no other end."""
        exchange = self._exchange
        if exchange is not None and exchange.status and not (self._in_head or self._sized):
            self._exchange = None
            exchange.end()
        self.abort("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing will come any more."""
        self.abort(f"the connection broke: {exc}" if exc else "the server closed the connection")
        if not self.closed.done():
            self.closed.set_result(None)

    def _break(self, error: ConnectionLostError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._lost(self)
        exchange, self._exchange = self._exchange, None
        if self._transport is not None:
            self._transport.abort()
        if exchange is not None:
            exchange.fail(error)

    # What the parser tells.

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self._exchange is None:
            raise _NoAnswerError("the server spoke without being asked")
        self._in_head, self._head_size = True, 0
        self._sized = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which says nothing to us."""
        if not self._in_head:
            return
        name = name.lower()
        if name == b"content-length":
            self._sized = True
        elif name == b"transfer-encoding":
            # The parser takes the last one's word for where the body ends.
            self._sized = value.lower().endswith(b"chunked")
        elif name == b"retry-after" and self._exchange is not None:
            self._exchange.retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """What comes now is the body."""
        self._in_head = False
        status = self._parser.get_status_code()
        exchange = self._exchange
        if status == _SWITCHING or exchange is None:
            raise _NoAnswerError("the server changes the protocol")
        if status < 200:
            return  # an interim answer: the true one follows
        exchange.status = status
        exchange.begin()
        if exchange.headless:
            self._complete(exchange, reusable=False)

    def on_body(self, piece: bytes) -> None:
        """Part of the body."""
        exchange = self._exchange
        if exchange is None:
            return  # of an answer to HEAD
        waiting = exchange.add(piece)
        if exchange.streamed and waiting > HIGH_WATER and not self._paused:
            self._paused = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        exchange = self._exchange
        if exchange is not None and exchange.status:
            self._complete(exchange, reusable=self._parser.should_keep_alive())

    def _complete(self, exchange: Exchange, *, reusable: bool) -> None:
        self._exchange = None
        exchange.end()
        if not reusable:
            self.abort("the connection was for one answer")
            return
        self.hurry()
        self._freed(self)


class _NoAnswerError(Exception):
    """What the server sends cannot be an answer to what was asked."""


def _resolve(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)
