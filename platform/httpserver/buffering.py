"""Limits in front of a server that has none of its own: uvicorn's or aiohttp's.

A :class:`Front` reads a request to its end before the server gets to know of it, and then hands it
on as one piece with a length. So a request that is cut off is never carried out, the server needs
no memory for requests that do not end, and its parser cannot read them in another way.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from .limits import Limits
from .listener import Guarded, Listener, Phase
from .metrics import ListenerFigures

HEADER_LIMIT = 64 * 1024
"""Bytes of a request's header."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REPLACED = frozenset(
    (b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te")
)
"""Headers about how a request is sent, which is decided here."""

Describe = Callable[[int], tuple[str, bytes]]
"""Content type and body of a refusal."""


class Fronts(Listener):
    """All connections of a server behind."""

    inner: Callable[[], asyncio.Protocol]
    """Makes the protocols of the server behind; to be set before listening."""

    def __init__(
        self,
        *,
        name: str,
        body_limit: int,
        proves: bool = False,
        limits: Limits | None = None,
        figures: ListenerFigures | None = None,
        describe: Describe | None = None,
        time: Callable[[], float] | None = None,
    ) -> None:
        """Prepare to listen.

        Args:
            body_limit: bytes that a request's body may have.
            proves: whether the TLS handshake asks for a certificate.
            describe: what clients read that are refused; plain text by default.
        """
        super().__init__(name=name, limits=limits, figures=figures, time=time)
        self.body_limit = body_limit
        self.proves = proves
        self._describe = describe
        self._by_inner: dict[asyncio.BaseProtocol, Front] = {}

    def make(self) -> "Front":
        """The protocol of a new connection."""
        return Front(self)

    def describe(self, status: int) -> tuple[str, bytes]:
        """See `Listener.describe`."""
        return self._describe(status) if self._describe else super().describe(status)

    def serves(self, inner: asyncio.BaseProtocol, front: "Front | None") -> None:
        """Take note that *inner* serves *front*, or nothing any more."""
        if front is None:
            self._by_inner.pop(inner, None)
        else:
            self._by_inner[inner] = front

    def answered(self, inner: asyncio.BaseProtocol) -> None:
        """The server behind has answered a request."""
        front = self._by_inner.get(inner)
        if front is not None:
            front.answered()


class Front(Guarded):
    """One connection; the methods whose names begin with ``on_`` are called by the parser."""

    listener: Fronts
    transport: asyncio.Transport

    def __init__(self, listener: Fronts) -> None:
        super().__init__(listener)
        self._parser = HttpRequestParser(self)
        self._inner: asyncio.Protocol | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._in_header = self._in_body = False
        self._whole: deque[bytes] = deque()
        """Requests that wait for the one that is being answered."""
        self._answering = False
        self._deaf = False
        self._last_status = 0

    # -- told by the transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and tell the server behind."""
        super().connection_lost(exc)
        self._whole.clear()
        inner, self._inner = self._inner, None
        if inner is not None:
            self.listener.serves(inner, None)
            inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell the server behind."""
        super().pause_writing()
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell the server behind."""
        super().resume_writing()
        if self._inner is not None:
            self._inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._deaf = True  # the request is served as it is; what follows is of no use
        except HttpParserError:
            self.listener.refused("malformed")
            self.refuse(400)
        if self._in_header:
            self._size += len(data)
            if self._size > HEADER_LIMIT:
                self.listener.refused("header_too_large")
                self.refuse(431)
        self._deliver()
        self._settle()

    def eof_received(self) -> bool | None:
        """Refuse a request whose rest will not come; nothing of it is carried out."""
        if not self._deaf and (self._in_header or self._in_body):
            self.listener.refused("truncated")
            self.refuse(400)
        return self._inner.eof_received() if self._inner is not None else None

    # -- told by the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers, self._body, self._size = b"", [], [], 0
        self._in_header = True

    def on_url(self, piece: bytes) -> None:
        """Part of the request's line."""
        self._url += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which nobody here reads."""
        if self._in_header:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """What comes now is the body."""
        self._in_header, self._in_body, self._size = False, True, 0
        headers = {name.lower(): value for name, value in self._headers}
        sent = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        if sent and self._parser.should_upgrade():
            # The parser would take the body for another protocol's.
            self.listener.refused("malformed")
            self.refuse(400)
        elif int(headers.get(b"content-length", b"0")) > self.listener.body_limit:
            self._refuse_body()
        elif headers.get(b"expect", b"").lower() == b"100-continue" and not self._answering:
            self.transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        """Part of the body."""
        if self._deaf:
            return
        self._size += len(piece)
        self._body.append(piece)
        if self._size > self.listener.body_limit:
            self._refuse_body()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._in_body = False
        if self._deaf:
            return
        parser = self._parser
        lines = [
            b"%b %b HTTP/%b\r\n"
            % (parser.get_method(), self._url, parser.get_http_version().encode())
        ]
        sized = False
        for name, value in self._headers:
            kind = name.lower()
            sized = sized or kind in (b"content-length", b"transfer-encoding")
            if kind not in _REPLACED:
                lines.append(b"%b: %b\r\n" % (name, value))
        if sized:
            lines.append(b"content-length: %d\r\n" % self._size)
        self._whole.append(b"".join((*lines, b"\r\n", *self._body)))
        self._headers, self._body = [], []

    def _refuse_body(self) -> None:
        self.listener.refused("body_too_large")
        self.refuse(413)

    # -- the server behind

    def answered(self) -> None:
        """The server behind has answered."""
        self._answering = False
        if self._last_status or self._whole:
            # It may still write the end of its answer, in this turn of the loop.
            self.listener.soon(self._go_on)
        self._settle()

    def _go_on(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        self._deliver()
        if self._last_status and not (self._answering or self._whole):
            self._say_last()
        else:
            self._settle()

    def _deliver(self) -> None:
        """Hand on the next request, if none is being answered."""
        if self._answering:
            if self._whole:
                self.transport.pause_reading()
            return
        if not self._whole:
            return
        inner = self._inner
        if inner is None:
            inner = self._inner = self.listener.inner()
            self.listener.serves(inner, self)
            inner.connection_made(self.transport)
        self._answering = True
        inner.data_received(self._whole.popleft())

    def refuse(self, status: int) -> None:
        """Drop what has come of a request, answer *status* when its turn comes, and close."""
        if self._last_status:
            return
        self._deaf, self._last_status = True, status
        self._in_header = self._in_body = False
        self._headers, self._body = [], []
        if status == 429:
            self._whole.clear()
        if not (self._answering or self._whole):
            self._say_last()

    def _say_last(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self.listener.refusal(self._last_status))
            self.linger()

    def _settle(self) -> None:
        """Begin the phase that the connection is in now, and tell how much it holds."""
        if self._answering:
            phase = Phase.ANSWERING
        elif self._in_header:
            phase = Phase.HEADER
        elif self._in_body:
            phase = Phase.BODY
        elif self._inner is None:
            return  # not even the first request has begun
        else:
            phase = Phase.IDLE
        if phase is not self.phase and self.phase is not Phase.CLOSING:
            self.enter(phase)
        held = sum(map(len, self._whole))
        if self._in_header or self._in_body:
            held += self._size
        if held != self.held:
            self.listener.hold(self, held)
