"""A server whose every byte is written by the test, and what it got."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


INVALID_BODIES = (
    b"content-length: 4\r\n\r\nabc",
    b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
    b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\nx\r\nabc\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    b"transfer-encoding: gzip\r\n\r\nabc",
    b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"content-length: +3\r\n\r\nabc",
    b"content-length: -3\r\n\r\nabc",
    b"connection: upgrade\r\nupgrade: x\r\ncontent-length: 4\r\n\r\nabc",
    b"x: y",
)
"""The last headers and the body of requests that are incomplete or contradict themselves."""


@dataclass(slots=True)
class RawConnection:
    """One connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """The next request, whole.

        Raises:
            asyncio.IncompleteReadError: the client hung up instead.
        """
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        return head + await self.reader.readexactly(int(length or 0))

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)


Behaviour = Callable[[RawConnection], Awaitable[None]]


@dataclass(slots=True)
class RawHttpServer:
    """Serves each connection by the next of *behaviours*, and by the last of them from then on."""

    behaviours: list[Behaviour]
    connections: int = 0
    closed_connections: int = 0
    """Connections that have ended."""
    requests: list[bytes] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behaviour = self.behaviours[min(self.connections, len(self.behaviours) - 1)]
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await behaviour(RawConnection(reader, writer))
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            self.closed_connections += 1

    async def respond_to_all(self, peer: RawConnection) -> None:
        """Respond to every request with an empty object until the client disconnects."""
        while True:
            self.requests.append(await peer.request())
            peer.send(OK)

    async def hang(self, peer: RawConnection) -> None:
        """Read a request, never respond, and wait until the client disconnects."""
        self.requests.append(await peer.request())
        await peer.reader.read()


@contextlib.asynccontextmanager
async def raw_http_server(
    *behaviours: Callable[[RawHttpServer, RawConnection], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[RawHttpServer]:
    """A server on a free port; without *behaviours* it responds to everything."""
    created = RawHttpServer([])
    for behaviour in behaviours or (RawHttpServer.respond_to_all,):

        async def run_behaviour(
            peer: RawConnection,
            behaviour: Callable[[RawHttpServer, RawConnection], Awaitable[None]] = behaviour,
        ) -> None:
            await behaviour(created, peer)

        created.behaviours.append(run_behaviour)
    running: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        task = asyncio.ensure_future(created.serve(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    created.port = listener.sockets[0].getsockname()[1]
    try:
        yield created
    finally:
        listener.close()
        await listener.wait_closed()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in writers:  # a task that was cancelled before it began closed nothing
            # asyncio fails to abort a transport that has closed after its last bytes; uvloop, whose
            # closed transports have no socket, does not.
            connection = writer.get_extra_info("socket")
            if connection is None or connection.fileno() >= 0:
                writer.transport.abort()
