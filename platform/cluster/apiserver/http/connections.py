"""HTTP/1.1 on one connection: requests in, answers out, one after the other.

An answer is written in one piece, so it costs one TLS record and one system call. Each connection
has one task, which lives as long as the connection does.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

log = logging.getLogger(__name__)

BODY_LIMIT = 3 * 1024 * 1024
"""Bytes that a request may send."""

HEAD_LIMIT = 64 * 1024
"""Bytes that may come before a request's body."""

_AHEAD = 4
"""Requests that may wait behind the one that is being answered."""

_BODILESS = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
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


class Connections:
    """All connections of a server."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.over = False
        """The server hangs up on all, and on who comes now."""

        self._open: set[Connection] = set()
        self._second = 0
        self._date = b""

    def make(self) -> "Connection":
        """The protocol of a new connection."""
        return Connection(self)

    def date(self) -> bytes:
        """The ``Date`` header."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._date

    def joined(self, connection: "Connection") -> None:
        """Take note of a connection."""
        self._open.add(connection)

    def left(self, connection: "Connection") -> None:
        """Forget a connection."""
        self._open.discard(connection)

    async def close(self, seconds: float) -> None:
        """Let answers under way finish, for that many *seconds*, and hang up."""
        self.over = True
        works = [each.shut_down() for each in self._open]
        if works:
            _, late = await asyncio.wait(works, timeout=seconds)
            for work in late:
                work.cancel()
            if late:
                await asyncio.wait(late)
        for connection in list(self._open):
            connection.abort()


class Connection(asyncio.Protocol):
    """One connection; the methods whose names begin with ``on_`` are called by the parser."""

    def __init__(self, all_: Connections) -> None:
        self._all = all_
        self._parser = HttpRequestParser(self)
        self._asked = Asked()
        self._url = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._in_head = False
        self._head_size = 0
        self._bad = False
        self._queue: deque[Asked] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._streaming = False
        self._closing = False
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        if self._all.over:  # it came before the door was shut, and was known too late
            self.abort()
            return
        self._all.joined(self)
        self._work = self._loop.create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        """End; a request that is being decided is still carried out, a stream is not."""
        self._all.left(self)
        self._closing = True
        _wake(self._waiter)
        _wake(self._writable)
        if self._streaming:
            self._work.cancel()

    def shut_down(self) -> "asyncio.Task[None]":
        """Take no more requests; returns the task that ends when all is answered."""
        self._closing = True
        _wake(self._waiter)
        return self._work

    def abort(self) -> None:
        """Hang up without waiting for what the client has not yet read."""
        self._transport.abort()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """The client has caught up."""
        _wake(self._writable)
        self._writable = None

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            return
        except HttpParserError:
            self._refuse()
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT:
                self._refuse()

    def _refuse(self) -> None:
        """Nothing that comes after this can be understood."""
        self._bad = self._closing = True
        self._transport.pause_reading()
        _wake(self._waiter)

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
        if asked.headers.get("expect", "").lower() == "100-continue":
            self._transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        """Part of the body."""
        self._size += len(piece)
        if self._size > BODY_LIMIT:
            self._asked.too_large = True
            self._pieces.clear()
        else:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The request is whole."""
        pieces = self._pieces
        self._asked.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._queue.append(self._asked)
        if len(self._queue) > _AHEAD:
            self._transport.pause_reading()
        _wake(self._waiter)

    async def _serve(self) -> None:
        try:
            while (asked := await self._next()) is not None:
                reply = await self._all.answer(asked)
                await self._send(asked, reply)
                if not asked.keep_alive:
                    break
            if self._bad:
                self._transport.write(_BAD)
        finally:
            self._transport.close()

    async def _next(self) -> Asked | None:
        while not self._queue:
            if self._closing:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
            self._waiter = None
        if len(self._queue) > _AHEAD:
            self._transport.resume_reading()
        return self._queue.popleft()

    async def _send(self, asked: Asked, reply: Reply) -> None:
        parts = [_STATUS_LINES[reply.status], self._all.date(), reply.headers]
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
        self._transport.write(b"".join(parts))
        if self._writable is not None:
            await self._writable

    async def _stream(self, asked: Asked, head: list[bytes], stream: AsyncGenerator[bytes]) -> None:
        """Send pieces until they end; cancelled when the client hangs up."""
        if asked.chunks:
            head.append(b"transfer-encoding: chunked\r\n")
        else:
            asked.keep_alive = False
        head.append(b"\r\n" if asked.keep_alive else b"connection: close\r\n\r\n")
        self._transport.write(b"".join(head))
        if asked.method == "HEAD":
            await stream.aclose()
            return
        self._streaming = True
        try:
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    if piece:
                        chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if asked.chunks else piece
                        self._transport.write(chunk)
                    if self._writable is not None:
                        await self._writable
        except Exception:
            log.exception("a stream broke off")
            asked.keep_alive = False
            return
        finally:
            self._streaming = False
        if asked.chunks:
            self._transport.write(b"0\r\n\r\n")


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
