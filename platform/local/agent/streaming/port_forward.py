"""Port-forward: connections to a pod's ports, over SPDY, SPDY in a WebSocket, and channels.

On SPDY the client opens two streams for each connection: one for data, and one on which it reads
why forwarding failed. With channels, each port of the request is one connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from ....httpserver.upgrades import UpgradedConnection, UpgradeRequest
from ....httpserver.websocket import (
    WebSocket,
    WebSocketBytes,
    choose_protocol,
    handshake_response,
    is_websocket,
)
from ....kube.supervision import cancel_and_wait
from .command_streams import StreamsRejectedError, receiving, spdy_response
from .inbox import Inbox
from .spdy import MAX_STREAMS, ByteStream, SpdyConnection, SpdyStream
from .spdy_headers import SpdyError

_PROTOCOL = "portforward.k8s.io"
_TUNNEL = f"SPDY/3.1+{_PROTOCOL}"
_CHANNELS = "v4.channel.k8s.io"
_MAX_PORTS = 100
"""Ports of one request with channels, of which there are 256."""

_BLOCK = 32 * 1024

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to a port of the pod; raises OSError."""

Read = Callable[[], Awaitable[bytes]]
Write = Callable[[bytes], Awaitable[None]]


async def serve_port_forward(
    request: UpgradeRequest, connection: UpgradedConnection, ports: str, connect: Connect
) -> None:
    """Upgrade *connection*, and forward connections until the client disconnects.

    *ports* are those of the request, which only clients with channels name there.

    Raises:
        StreamsRejectedError: nothing was sent.
        ConnectionError: the client has disconnected.
    """
    if not is_websocket(request):
        connection.write(spdy_response(request, (_PROTOCOL,)))
        await _serve_spdy(connection, connect)
        return
    protocol = choose_protocol(request, (_TUNNEL, _CHANNELS))
    if protocol is None:
        raise StreamsRejectedError(400, f"the WebSocket offers neither {_TUNNEL} nor {_CHANNELS}")
    numbers = _parse_ports(ports) if protocol == _CHANNELS else []
    connection.write(handshake_response(request, protocol))
    websocket = WebSocket(connection)
    if protocol == _TUNNEL:
        await _serve_spdy(WebSocketBytes(websocket), connect)
        await websocket.close()
    else:
        await _serve_channels(websocket, numbers, connect)


def _parse_ports(text: str) -> list[int]:
    try:
        found = [int(port) for port in text.split(",")]
    except ValueError:
        raise StreamsRejectedError(400, f"unable to parse {text!r} as ports") from None
    if len(found) > _MAX_PORTS:
        raise StreamsRejectedError(400, f"more than {_MAX_PORTS} ports")
    for port in found:
        if not 0 < port < 1 << 16:
            raise StreamsRejectedError(400, f"port {port} must be between 1 and 65535")
    return found


async def _copy(
    read: Read, write: Write, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy between a client and a pod until both have sent all.

    Raises:
        OSError: one of them has closed the connection before.
    """

    async def to_pod() -> None:
        while data := await read():
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def to_client() -> None:
        while data := await reader.read(_BLOCK):
            await write(data)
        await write(b"")

    copies = [asyncio.ensure_future(to_pod()), asyncio.ensure_future(to_client())]
    try:
        await asyncio.gather(*copies)
    finally:
        await cancel_and_wait(*copies)
        if any(copy.cancelled() or copy.exception() for copy in copies):
            writer.transport.abort()
        else:
            writer.close()


# --- SPDY -----------------------------------------------------------------------------------


class _Forwarder:
    """The forwarded connections of one client."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._waiting: dict[str, dict[str, SpdyStream]] = {}
        """The streams of a connection of which the other one is missing, by request id and type."""

        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, stream: SpdyStream) -> bool:
        """Handle a new stream of the client."""
        kind, port = stream.headers.get("streamtype", ""), stream.headers.get("port", "")
        valid_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16
        if kind not in ("data", "error") or not valid_port:
            return False
        # Very old clients send no id, and open the streams of a connection one after the other.
        request_id = stream.headers.get("requestid", "")
        if len(self._waiting) > 2 * MAX_STREAMS:
            self._forget_reset_streams()
        pair = self._waiting.setdefault(request_id, {})
        pair = {name: each for name, each in pair.items() if not each.is_reset}
        if kind in pair:
            return False
        pair[kind] = stream
        self._waiting[request_id] = pair
        if len(pair) == 2:
            del self._waiting[request_id]
            work = self._forward(int(port), pair["data"], pair["error"])
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    def _forget_reset_streams(self) -> None:
        for request_id, pair in list(self._waiting.items()):
            if all(stream.is_reset for stream in pair.values()):
                del self._waiting[request_id]

    async def _forward(self, port: int, data: SpdyStream, errors: SpdyStream) -> None:
        async def write(chunk: bytes) -> None:
            await (data.write(chunk) if chunk else data.close())

        with suppress(ConnectionError):  # the client has disconnected
            try:
                reader, writer = await self._connect(port)
            except OSError as error:
                await errors.write(_failure(port, error))
                await data.close()
            else:
                with suppress(OSError):
                    await _copy(data.read, write, reader, writer)
            await errors.close()
            await data.close()
            # The client has read the end of both, and what it still sends has no receiver.
            data.inbox.discard()

    async def close(self) -> None:
        """Close all connections."""
        tasks = list(self._tasks)
        await cancel_and_wait(*tasks)


def _failure(port: int, error: OSError) -> bytes:
    return f"error forwarding port {port} to pod: {error.strerror or error}".encode()


async def _serve_spdy(below: ByteStream, connect: Connect) -> None:
    spdy, forwarder = SpdyConnection(below), _Forwarder(connect)

    async def receive() -> None:
        with suppress(SpdyError):  # closes the connection
            await spdy.run(forwarder.accept)

    try:
        async with receiving(receive(), spdy.ping) as disconnected:
            await asyncio.wait({disconnected})
    finally:
        await forwarder.close()


# --- channels -------------------------------------------------------------------------------


async def _serve_channels(websocket: WebSocket, ports: Sequence[int], connect: Connect) -> None:
    inboxes = [Inbox() for _ in ports]

    async def receive() -> None:
        async for channel, data in websocket.channel_pieces():
            if channel % 2 == 0 and channel // 2 < len(inboxes):
                await inboxes[channel // 2].put(data)

    async def forward_all() -> None:
        await asyncio.gather(
            *(
                _forward_channel(websocket, number, port, inboxes[number], connect)
                for number, port in enumerate(ports)
            )
        )

    async with receiving(receive(), websocket.ping) as disconnected:
        forwards = asyncio.ensure_future(forward_all())
        try:
            await asyncio.wait({forwards, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            await websocket.close()
            await asyncio.wait({disconnected})  # else what it still sends resets the connection
        finally:
            forwards.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await forwards


async def _forward_channel(
    websocket: WebSocket, number: int, port: int, inbox: Inbox, connect: Connect
) -> None:
    """Forward the connection of one port, whose data has channel 2 *number*, its error the next."""
    data_channel, error_channel = 2 * number, 2 * number + 1
    for channel in (data_channel, error_channel):
        await websocket.send(channel, port.to_bytes(2, "little"))

    async def write(chunk: bytes) -> None:
        if chunk:
            await websocket.send(data_channel, chunk)
        else:
            inbox.close()  # this protocol has no end of one direction

    try:
        reader, writer = await connect(port)
    except OSError as error:
        await websocket.send(error_channel, _failure(port, error))
    else:
        with suppress(OSError):
            await _copy(inbox.get, write, reader, writer)
    inbox.discard()
