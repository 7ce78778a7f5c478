"""SPDY/3.1 of a server whose clients open the streams, as Kubernetes uses it.

Kubernetes' clients send no window updates and ignore those of the server: TCP alone limits what is
in flight. So a stream that is not read stops the others of its connection, once its `Inbox` is
full.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from .inbox import Inbox
from .spdy_headers import HeaderDecoder, HeaderEncoder, SpdyError

VERSION = 3
MAX_STREAMS = 1000
"""Maximum open streams of a connection; a forwarded connection has two."""

MAX_CONTROL_FRAME = 16 * 1024
"""Maximum bytes of a frame other than of data, which is passed on in pieces."""

_CONTROL, _FIN = 0x80000000, 1
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _HEADERS, _WINDOW_UPDATE = (
    1, 2, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
_PROTOCOL_ERROR, _INVALID_STREAM, _REFUSED_STREAM, _CANCEL = 1, 2, 3, 5
_CHUNK = 32 * 1024


class ByteStream(Protocol):
    """A connection below SPDY; see `UpgradedConnection`."""

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end."""
        ...

    def write(self, data: bytes) -> None:
        """Send *data*; to be followed by `drain`."""
        ...

    async def drain(self) -> None:
        """Wait while the peer reads more slowly than is written."""
        ...


class SpdyStream:
    """One stream, which the client has opened."""

    def __init__(self, connection: "SpdyConnection", number: int, headers: dict[str, str]) -> None:
        self.number = number
        self.headers = headers
        self.inbox = Inbox()
        """What the client sends."""

        self.is_reset = False
        """Whether the client or `reset` has ended both directions."""

        self.sent_all = self.received_all = False
        self._connection = connection

    async def read(self) -> bytes:
        """Return the next bytes; empty once the client has sent all.

        Raises:
            ConnectionResetError: the stream is reset.
        """
        data = await self.inbox.get()
        if not data and self.is_reset:
            raise ConnectionResetError("the stream is reset")
        return data

    async def write(self, data: bytes) -> None:
        """Send *data*, and wait while the client reads more slowly.

        Raises:
            ConnectionError: the stream or its connection is closed.
        """
        for start in range(0, len(data), _CHUNK):
            if self.is_reset or self.sent_all:
                raise ConnectionResetError("the stream is closed")
            await self._connection.send_data(self, data[start : start + _CHUNK])

    async def close(self) -> None:
        """Send the end, if it was not sent yet."""
        if not (self.sent_all or self.is_reset):
            self.sent_all = True
            await self._connection.send_data(self, b"", fin=True)

    async def reset(self) -> None:
        """End both directions."""
        if not (self.is_reset or (self.sent_all and self.received_all)):
            await self._connection.send_reset(self.number, _CANCEL)
        self.mark_reset()

    def mark_reset(self) -> None:
        """Register that the stream was reset."""
        self.is_reset = True
        self.inbox.discard()
        self.inbox.close()
        self._connection.forget(self)


Accept = Callable[[SpdyStream], bool]
"""Handles a new stream; returns whether it is accepted."""


class SpdyConnection:
    """The server's end of a connection."""

    def __init__(self, below: ByteStream) -> None:
        self._below = below
        self._buffer = bytearray()
        self._decoder = HeaderDecoder()
        self._encoder = HeaderEncoder()
        self._streams: dict[int, SpdyStream] = {}
        self._last_number = 0
        self._ping_number = 0

    async def run(self, accept: Accept) -> None:
        """Receive until the client closes the connection, and then end all streams.

        Raises:
            SpdyError: the client violates the protocol, or a limit.
            ConnectionError: the connection is lost.
        """
        try:
            while head := await self._receive(8):
                await asyncio.sleep(0)  # a client may send tiny frames for ever
                first, length = int.from_bytes(head[:4], "big"), int.from_bytes(head[5:], "big")
                if not first & _CONTROL:
                    await self._receive_data(first, length, fin=bool(head[4] & _FIN))
                    continue
                if first >> 16 & 0x7FFF != VERSION:
                    raise SpdyError(f"unsupported version {first >> 16 & 0x7FFF}")
                if length > MAX_CONTROL_FRAME:
                    raise SpdyError("a control frame is too large")
                content = await self._receive(length) if length else b""
                if len(content) < length or first & 0xFFFF == _GOAWAY:
                    return
                await self._handle(first & 0xFFFF, content, bool(head[4] & _FIN), accept)
        finally:
            for stream in list(self._streams.values()):
                stream.mark_reset()

    async def _receive(self, size: int) -> bytes:
        """Return *size* bytes; none if the connection ends before."""
        while len(self._buffer) < size and (data := await self._below.read()):
            self._buffer += data
        return self._take(size) if len(self._buffer) >= size else b""

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _receive_data(self, number: int, length: int, *, fin: bool) -> None:
        stream = self._streams.get(number)
        while length:
            if not self._buffer:
                self._buffer += await self._below.read()
                if not self._buffer:
                    return
            data = self._take(length)
            length -= len(data)
            if stream is not None and not stream.received_all:
                await stream.inbox.put(data)
        if stream is not None and fin:
            self._end_input(stream)

    async def _handle(self, kind: int, content: bytes, fin: bool, accept: Accept) -> None:
        if kind == _SYN_STREAM:
            headers = self._decoder.decode(content[10:])
            await self._open(_number(content), headers, fin, accept)
        elif kind in (_SYN_REPLY, _HEADERS):
            self._decoder.decode(content[4:])  # the state of the compression must not be lost
            stream = self._streams.get(_number(content))
            if stream is not None and fin:
                self._end_input(stream)
        elif kind == _RST_STREAM:
            stream = self._streams.get(_number(content))
            if stream is not None:
                stream.mark_reset()
        elif kind == _PING:
            if _number(content) % 2:  # even numbers are those of this end
                self._send(_PING, content[:4])
                await self._below.drain()
        elif kind not in (_SETTINGS, _WINDOW_UPDATE):
            raise SpdyError(f"unknown type {kind} of a frame")

    async def _open(self, number: int, headers: dict[str, str], fin: bool, accept: Accept) -> None:
        if number % 2 == 0 or number <= self._last_number:
            await self.send_reset(number, _PROTOCOL_ERROR)
            return
        self._last_number = number
        stream = SpdyStream(self, number, headers)
        if len(self._streams) >= MAX_STREAMS:
            await self.send_reset(number, _REFUSED_STREAM)
            return
        self._streams[number] = stream
        if fin:
            self._end_input(stream)
        # Before any data of the stream, which clients drop until it is accepted.
        self._send(_SYN_REPLY, number.to_bytes(4, "big") + self._encoder.encode({}))
        if not accept(stream):
            await stream.reset()
        await self._below.drain()

    def _end_input(self, stream: SpdyStream) -> None:
        stream.received_all = True
        stream.inbox.close()
        if stream.sent_all:
            self.forget(stream)

    def _send(self, kind: int, content: bytes) -> None:
        first = _CONTROL | VERSION << 16 | kind
        self._below.write(first.to_bytes(4, "big") + len(content).to_bytes(4, "big") + content)

    async def send_data(self, stream: SpdyStream, data: bytes, *, fin: bool = False) -> None:
        """Send data of a stream."""
        size = len(data) | fin << 24
        self._below.write(stream.number.to_bytes(4, "big") + size.to_bytes(4, "big") + data)
        if fin and stream.received_all:
            self.forget(stream)
        await self._below.drain()

    async def send_reset(self, number: int, code: int) -> None:
        """Reset a stream."""
        self._send(_RST_STREAM, number.to_bytes(4, "big") + code.to_bytes(4, "big"))
        await self._below.drain()

    async def ping(self) -> None:
        """Send a ping: the connection is lost then if the client has disconnected."""
        self._ping_number = (self._ping_number + 2) & 0x7FFFFFFE
        self._send(_PING, self._ping_number.to_bytes(4, "big"))
        await self._below.drain()

    def forget(self, stream: SpdyStream) -> None:
        """Forget a stream that is closed in both directions."""
        self._streams.pop(stream.number, None)


def _number(content: bytes) -> int:
    if len(content) < 4:
        raise SpdyError("a control frame is truncated")
    return int.from_bytes(content[:4], "big") & 0x7FFFFFFF
