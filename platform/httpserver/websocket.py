"""WebSockets of a server: the response to the handshake, messages in pieces, keep-alive."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from .upgrades import UpgradedConnection, UpgradeRequest

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_NORMAL_CLOSURE = 1000


def is_websocket(request: UpgradeRequest) -> bool:
    """Return whether a request asks for a WebSocket."""
    return "websocket" in map(str.lower, request.values("upgrade"))


def choose_protocol(request: UpgradeRequest, supported: Sequence[str]) -> str | None:
    """Return the first of the client's protocols that is supported."""
    offered = request.values("sec-websocket-protocol")
    return next((each for each in offered if each in supported), None)


def handshake_response(request: UpgradeRequest, protocol: str) -> bytes:
    """Return the response that accepts a WebSocket."""
    key = next(iter(request.values("sec-websocket-key")), "")
    lines = (b"%b: %b\r\n" % each for each in handshake_headers(key, protocol))
    return b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n" % b"".join(lines)


def handshake_headers(key: str, protocol: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of the response to a handshake with this key; *protocol* may be empty."""
    digest = hashlib.sha1(key.encode("latin-1") + _GUID, usedforsecurity=False).digest()
    headers = [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", base64.b64encode(digest)),
    ]
    return [*headers, (b"sec-websocket-protocol", protocol.encode())] if protocol else headers


class WebSocket:
    """The server's end of a WebSocket after the handshake."""

    def __init__(self, connection: UpgradedConnection) -> None:
        self._connection = connection
        self._protocol = Connection(ConnectionType.SERVER)

    async def pieces(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Yield the pieces of messages, and whether each is its message's last; none at the close.

        A message of any size takes no more memory than what is received at once.

        Raises:
            ConnectionError: the connection is lost.
        """
        while data := await self._connection.read():
            self._protocol.receive_data(data)
            for event in self._protocol.events():
                await asyncio.sleep(0)  # a client may send tiny frames for ever
                if isinstance(event, BytesMessage):
                    yield bytes(event.data), event.message_finished
                elif isinstance(event, TextMessage):
                    yield event.data.encode(), event.message_finished
                elif isinstance(event, Ping):
                    self._connection.write(self._protocol.send(event.response()))
                    await self._connection.drain()
                elif isinstance(event, CloseConnection):
                    await self.close(event)
                    return

    async def channel_pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the pieces of messages with their channel, which is a message's first byte."""
        channel = -1
        async for piece, last in self.pieces():
            data = piece
            if channel < 0 and data:
                channel, data = data[0], data[1:]
            yield channel, data
            if last:
                channel = -1

    async def send(self, channel: int, data: bytes) -> None:
        """Send a message of a channel, and wait while the client reads more slowly."""
        self.write(bytes([channel]) + data)
        await self.drain()

    def write(self, data: bytes) -> None:
        """Send a message; to be followed by `drain`.

        Raises:
            ConnectionResetError: the WebSocket is closed.
        """
        self._write(BytesMessage(data=data))

    def write_text(self, text: str) -> None:
        """Send a message of text; otherwise as `write`."""
        self._write(TextMessage(data=text))

    def _write(self, message: BytesMessage | TextMessage) -> None:
        try:
            self._connection.write(self._protocol.send(message))
        except LocalProtocolError:
            raise ConnectionResetError("the WebSocket is closed") from None

    async def drain(self) -> None:
        """Wait while the client reads more slowly than is written."""
        await self._connection.drain()

    async def ping(self) -> None:
        """Send a ping: the connection is lost then if the client has disconnected.

        None is sent after the closing frame, to which a slow client has not responded yet.
        """
        with suppress(LocalProtocolError):
            self._connection.write(self._protocol.send(Ping()))
        await self.drain()

    async def close(self, received: CloseConnection | None = None) -> None:
        """Send the closing frame, or the response to the *received* one."""
        event = CloseConnection(code=_NORMAL_CLOSURE) if received is None else received.response()
        try:
            self._connection.write(self._protocol.send(event))
        except LocalProtocolError:
            return  # both ends have closed it
        await self.drain()


class WebSocketBytes:
    """The messages of a WebSocket as a stream of bytes: SPDY in a tunnel."""

    def __init__(self, websocket: WebSocket) -> None:
        self._pieces = websocket.pieces()
        self.write = websocket.write
        self.drain = websocket.drain

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end."""
        async for piece, _ in self._pieces:
            if piece:
                return piece
        return b""
