"""Streams of exec and attach: stdin, stdout, stderr, sizes of the terminal, and the final status.

On a WebSocket they are channels: the first byte of each message is the channel's number. On SPDY
each is a stream, which the client opens.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ....httpserver.upgrades import UpgradedConnection, UpgradeRequest
from ....httpserver.websocket import WebSocket, choose_protocol, handshake_response, is_websocket
from .inbox import Inbox
from .spdy import SpdyConnection, SpdyStream
from .spdy_headers import SpdyError

STDOUT, STDERR = 1, 2
_STDIN, _ERROR, _RESIZE, _CLOSE = 0, 3, 4, 255
_V1, _V4, _V5 = "channel.k8s.io", "v4.channel.k8s.io", "v5.channel.k8s.io"
"""Version 5 only adds that a client can end its stdin, on WebSockets. In version 1, only there, a
failed command has a message instead of a status, and others have nothing."""

_MAX_SIZE_MESSAGE = 1024
CREATION_TIMEOUT = 30.0
"""Seconds in which a SPDY client must open its streams."""

PING_INTERVAL = 10.0
"""Seconds between pings, without which nothing may be sent to a client that has disconnected."""

Status = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Which streams a client asks for; with a terminal there is no stderr."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


def failure_status(message: str) -> Status:
    """Return the final status of a command that did not run."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {message}",
        "reason": "InternalError",
        "details": {"causes": [{"message": message}]},
        "code": 500,
    }


class StreamsRejectedError(Exception):
    """A request that cannot be served; *status* is that of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class TerminalSize:
    """The size of the client's terminal, of which only the latest counts."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._latest = (0, 0)
        self._text = b""

    def feed(self, data: bytes) -> None:
        """Handle a piece of the client's messages, each a JSON object."""
        self._text += data
        while b"}" in self._text:
            message, _, self._text = self._text.partition(b"}")
            # A malformed size is ignored, as by the kubelet.
            with suppress(ValueError, TypeError, AttributeError):
                size = json.loads(message + b"}")
                width, height = int(size.get("Width", 0)), int(size.get("Height", 0))
                if 0 < width < 1 << 16 and 0 < height < 1 << 16:
                    self._latest = width, height
                    self._changed.set()
        self._text = self._text[-_MAX_SIZE_MESSAGE:]

    async def next(self) -> tuple[int, int]:
        """Return width and height once they have changed."""
        await self._changed.wait()
        self._changed.clear()
        return self._latest


class CommandStreams(ABC):
    """The streams of one command, as the client opened them."""

    def __init__(self, options: StreamOptions) -> None:
        self.options = options
        self.stdin = Inbox()
        self.size = TerminalSize()

    @abstractmethod
    async def write(self, stream: int, data: bytes) -> None:
        """Send output of `STDOUT` or `STDERR`, and wait while the client reads more slowly.

        Raises:
            ConnectionError: the client has disconnected.
        """

    @abstractmethod
    async def finish(self, status: Status) -> None:
        """Send the final status, and the end of the streams."""


Command = Callable[[CommandStreams], Awaitable[Status]]
"""Runs a command with streams; returns its final status. Cancelled if the client disconnects."""


async def serve_command(
    request: UpgradeRequest,
    connection: UpgradedConnection,
    options: StreamOptions,
    command: Command,
) -> None:
    """Upgrade *connection*, and run *command* with the client's streams.

    Raises:
        StreamsRejectedError: nothing was sent.
        ConnectionError: the client has disconnected.
    """
    if not (options.stdin or options.stdout or options.stderr):
        raise StreamsRejectedError(400, "you must specify at least 1 of stdin, stdout, stderr")
    opening: Any
    if is_websocket(request):
        supported = (_V5, _V4, _V1)
        protocol = choose_protocol(request, supported)
        if protocol is None:
            names = ", ".join(supported)
            raise StreamsRejectedError(400, f"the WebSocket offers none of {names}")
        connection.write(handshake_response(request, protocol))
        opening = _open_channels(connection, options, has_status=protocol != _V1)
    else:
        connection.write(spdy_response(request, (_V4,)))
        opening = _open_streams(connection, options)
    async with opening as (streams, disconnected):
        running = asyncio.ensure_future(command(streams))
        try:
            await asyncio.wait({running, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                return
            status = running.result()
            streams.stdin.discard()
            await streams.finish(status)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        # A connection that is closed while its client still sends is reset, and the client would
        # not read the rest. Clients of SPDY also drop what they have received and not read.
        await asyncio.wait({disconnected})


def spdy_response(request: UpgradeRequest, supported: Sequence[str]) -> bytes:
    """Return the response that accepts SPDY with the first of the client's protocols.

    Raises:
        StreamsRejectedError: it asks for another upgrade, or no protocol is supported.
    """
    if "spdy/3.1" not in map(str.lower, request.values("upgrade")):
        raise StreamsRejectedError(400, "unable to upgrade: neither to a WebSocket nor to SPDY/3.1")
    offered = request.values("x-stream-protocol-version")
    protocol = next((each for each in offered if each in supported), None)
    if protocol is None:
        message = f"unable to upgrade: the client supports {offered}, the server {list(supported)}"
        raise StreamsRejectedError(403, message)
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n"
        b"x-stream-protocol-version: %b\r\n\r\n" % protocol.encode()
    )


async def keep_alive(ping: Callable[[], Awaitable[None]]) -> None:
    """Send pings, until cancelled or the connection is lost."""
    while True:
        await asyncio.sleep(PING_INTERVAL)
        await ping()


@asynccontextmanager
async def receiving(
    receive: Awaitable[None], ping: Callable[[], Awaitable[None]]
) -> "AsyncIterator[asyncio.Future[None]]":
    """Receive from a client and ping it for the block; yield what is done when it disconnects."""
    tasks = [asyncio.ensure_future(receive), asyncio.ensure_future(keep_alive(ping))]
    disconnected = asyncio.ensure_future(_wait_first(tasks))
    try:
        yield disconnected
    finally:
        for task in (*tasks, disconnected):
            task.cancel()
        await asyncio.gather(*tasks, disconnected, return_exceptions=True)


async def _wait_first(tasks: "Sequence[asyncio.Future[None]]") -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


# --- WebSocket ------------------------------------------------------------------------------


class _Channels(CommandStreams):
    def __init__(self, options: StreamOptions, websocket: WebSocket, *, has_status: bool) -> None:
        super().__init__(options)
        self._websocket = websocket
        self._has_status = has_status

    async def receive(self) -> None:
        """Receive until the client closes the WebSocket."""
        async for channel, data in self._websocket.channel_pieces():
            if channel == _STDIN and self.options.stdin:
                await self.stdin.put(data)
            elif channel == _RESIZE:
                self.size.feed(data)
            elif channel == _CLOSE and data[:1] == bytes([_STDIN]):
                self.stdin.close()

    async def write(self, stream: int, data: bytes) -> None:
        await self._websocket.send(stream, data)

    async def finish(self, status: Status) -> None:
        if self._has_status:
            await self.write(_ERROR, json.dumps(status).encode())
        elif status["status"] != "Success":
            await self.write(_ERROR, str(status.get("message", "")).encode())
        await self._websocket.close()


@asynccontextmanager
async def _open_channels(
    connection: UpgradedConnection, options: StreamOptions, *, has_status: bool
) -> "AsyncIterator[tuple[CommandStreams, asyncio.Future[None]]]":
    websocket = WebSocket(connection)
    channels = _Channels(options, websocket, has_status=has_status)
    # As the kubelet: the channels are usable once the client has an empty message.
    first = STDOUT if options.stdout else STDERR if options.stderr else _ERROR
    async with receiving(channels.receive(), websocket.ping) as disconnected:
        await channels.write(first, b"")
        yield channels, disconnected


# --- SPDY -----------------------------------------------------------------------------------


class _Streams(CommandStreams):
    def __init__(self, options: StreamOptions) -> None:
        super().__init__(options)
        wanted = {
            "error": True,
            "stdin": options.stdin,
            "stdout": options.stdout,
            "stderr": options.stderr,
            "resize": options.tty,
        }
        self._missing = {name for name, is_wanted in wanted.items() if is_wanted}
        self._streams: dict[str, SpdyStream] = {}
        self.complete = asyncio.Event()

    def accept(self, stream: SpdyStream) -> bool:
        """Handle a new stream of the client."""
        kind = stream.headers.get("streamtype", "")
        if kind not in self._missing:
            return False
        self._missing.remove(kind)
        self._streams[kind] = stream
        if kind == "stdin":
            self.stdin = stream.inbox
        if not self._missing:
            self.complete.set()
        return True

    async def receive_sizes(self) -> None:
        """Pass on the sizes of the terminal."""
        if "resize" in self._streams:
            while data := await self._streams["resize"].inbox.get():
                self.size.feed(data)

    async def write(self, stream: int, data: bytes) -> None:
        await self._streams["stdout" if stream == STDOUT else "stderr"].write(data)

    async def finish(self, status: Status) -> None:
        await self._streams["error"].write(json.dumps(status).encode())
        for stream in self._streams.values():
            await stream.close()


@asynccontextmanager
async def _open_streams(
    connection: UpgradedConnection, options: StreamOptions
) -> "AsyncIterator[tuple[CommandStreams, asyncio.Future[None]]]":
    streams, spdy = _Streams(options), SpdyConnection(connection)
    async with receiving(_receive_spdy(spdy, streams), spdy.ping) as disconnected:
        complete: asyncio.Future[Any] = asyncio.ensure_future(streams.complete.wait())
        waiting: set[asyncio.Future[Any]] = {complete, disconnected}
        await asyncio.wait(waiting, timeout=CREATION_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not complete.done():
            complete.cancel()
            raise ConnectionAbortedError("the client did not open its streams")
        sizes = asyncio.ensure_future(streams.receive_sizes())
        try:
            yield streams, disconnected
        finally:
            sizes.cancel()


async def _receive_spdy(spdy: SpdyConnection, streams: _Streams) -> None:
    with suppress(SpdyError):  # closes the connection
        await spdy.run(streams.accept)
