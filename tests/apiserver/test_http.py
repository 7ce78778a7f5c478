"""The API server's HTTP at byte level, with an application that echoes requests."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from support.polling import wait_for
from support.raw_http_server import INVALID_BODIES

from batholith.httpserver.limits import Limits
from batholith.httpserver.upgrades import UpgradedConnection
from batholith.local.apiserver.http.connections import (
    MAX_BODY_SIZE,
    MAX_HEADER_SIZE,
    Connections,
    HttpRequest,
    HttpResponse,
)

TYPE = b"content-type: text/plain\r\n"


@dataclass
class EchoApp:
    """Returns the request; ``/stream`` streams until the client disconnects."""

    received: list[HttpRequest] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    stream_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, asked: HttpRequest) -> HttpResponse:
        self.received.append(asked)
        self.begun.set()
        if asked.path == "/held":
            await self.held.wait()
        if asked.path == "/stream":
            return HttpResponse(200, TYPE, stream=self._chunks(endless="endless" in asked.headers))
        if asked.path == "/tunnel":
            return HttpResponse(101, b"upgrade: echo\r\n", tunnel=self._echo)
        if asked.path == "/unchanged":
            return HttpResponse(304, b"etag: x\r\n")
        text = f"{asked.method} {asked.path} {asked.query.decode()} {len(asked.body)}"
        return HttpResponse(200, TYPE, text.encode())

    async def _echo(self, upgraded: UpgradedConnection) -> None:
        try:
            while data := await upgraded.read():
                upgraded.write(data)
                await upgraded.drain()
        finally:
            self.stream_ended.set()

    async def _chunks(self, *, endless: bool) -> AsyncGenerator[bytes]:
        try:
            yield b"one"
            yield b""
            yield b"two"
            if endless:
                await asyncio.get_running_loop().create_future()
        finally:
            self.stream_ended.set()


@dataclass
class RawClient:
    """A client that sends raw bytes."""

    echo: EchoApp
    connections: Connections
    listening: socket.socket
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read_head(self) -> str:
        """The head of the next response."""
        async with asyncio.timeout(100):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def read_response(self) -> tuple[str, str]:
        """The next response, which must have a Content-Length."""
        head = await self.read_head()
        length = int(head.partition("content-length: ")[2].partition("\r")[0])
        return head, (await self.reader.readexactly(length)).decode()

    async def read_until_closed(self) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(100):
            return await self.reader.read()


@dataclass
class Clock:
    """A clock that only the test advances."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def authenticates(asked: HttpRequest) -> bool:
    return "anonymous" not in asked.headers


@asynccontextmanager
async def peer(
    *, limits: Limits | None = None, clock: Clock | None = None
) -> AsyncIterator[RawClient]:
    echo = EchoApp()
    connections = Connections(echo, is_authenticated=authenticates, limits=limits, time=clock)
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    connections.listen(listening)
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield RawClient(echo, connections, listening, reader, writer)
    finally:
        writer.close()
        echo.held.set()
        await connections.close(100)


async def test_pipelined_requests_are_handled_in_order() -> None:
    async with peer() as it:
        it.writer.write(
            b"".join(b"GET /%d?a=%d HTTP/1.1\r\nhost: x\r\n\r\n" % (n, n) for n in range(50))
        )
        got = [(await it.read_response())[1] for _ in range(50)]
    assert got == [f"GET /{n} a={n} 0" for n in range(50)]


async def test_a_connection_accepted_during_shutdown_is_closed() -> None:
    """No later code would close such a connection."""
    async with peer() as it:
        for iterations in range(6):
            if iterations:
                listening = socket.create_server(("127.0.0.1", 0))
                it.connections = Connections(it.echo)
                it.connections.listen(listening)
            else:
                listening = it.listening
            # The kernel accepts the connection; the server may be anywhere in accepting it.
            client = socket.create_connection(listening.getsockname())
            for _ in range(iterations):
                await asyncio.sleep(0)
            await it.connections.close(100)
            reader, writer = await asyncio.open_connection(sock=client)
            with suppress(ConnectionError):
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                async with asyncio.timeout(100):
                    assert await reader.read() == b""
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
    assert it.echo.received == []


async def test_a_request_can_arrive_in_single_bytes() -> None:
    async with peer() as it:
        for sign in b"POST /a%20b HTTP/1.1\r\nHost: x\r\nX-Y: Z\r\ncontent-length: 3\r\n\r\nabc":
            it.writer.write(bytes((sign,)))
            await it.writer.drain()
        assert (await it.read_response())[1] == "POST /a b  3"
    assert it.echo.received[0].headers["x-y"] == "Z"
    assert it.echo.received[0].body == b"abc"


async def test_a_chunked_body_is_received_after_100_continue() -> None:
    async with peer() as it:
        it.writer.write(
            b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        assert (await it.read_head()).startswith("HTTP/1.1 100 ")
        it.writer.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert (await it.read_response())[1] == "POST /  5"


async def test_a_body_beyond_the_limit_is_flagged_and_dropped() -> None:
    async with peer() as it:
        it.writer.write(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_SIZE + 1))
        it.writer.write(b"x" * (MAX_BODY_SIZE + 1))
        await it.read_response()
        it.writer.write(b"GET /next HTTP/1.1\r\n\r\n")
        assert (await it.read_response())[1] == "GET /next  0"
    assert [(each.too_large, each.body) for each in it.echo.received] == [(True, b""), (False, b"")]


async def test_a_head_request_gets_no_body() -> None:
    async with peer() as it:
        it.writer.write(b"HEAD / HTTP/1.1\r\n\r\nHEAD /stream HTTP/1.1\r\n\r\n")
        it.writer.write(b"GET /unchanged HTTP/1.1\r\n\r\nGET /last HTTP/1.1\r\n\r\n")
        assert "content-length: 9\r\n" in await it.read_head()
        assert "transfer-encoding: chunked" in await it.read_head()
        unchanged = await it.read_head()
        assert unchanged.startswith("HTTP/1.1 304 ") and "content-length" not in unchanged
        assert (await it.read_response())[1] == "GET /last  0"


async def test_a_stream_is_chunked() -> None:
    async with peer() as it:
        it.writer.write(b"GET /stream HTTP/1.1\r\n\r\nGET /next HTTP/1.1\r\n\r\n")
        assert "transfer-encoding: chunked" in await it.read_head()
        chunks = await it.reader.readuntil(b"0\r\n\r\n")
        assert chunks == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        assert (await it.read_response())[1] == "GET /next  0"


async def test_an_http_1_0_client_gets_a_stream_until_the_connection_closes() -> None:
    async with peer() as it:
        it.writer.write(b"GET /stream HTTP/1.0\r\n\r\n")
        assert "chunked" not in await it.read_head()
        assert await it.read_until_closed() == b"onetwo"


async def test_a_stream_ends_when_its_client_disconnects() -> None:
    async with peer() as it:
        it.writer.write(b"GET /stream HTTP/1.1\r\nendless: 1\r\n\r\n")
        await it.read_head()
        it.writer.close()
        async with asyncio.timeout(100):
            await it.echo.stream_ended.wait()


async def test_the_server_closes_the_connection_on_request() -> None:
    async with peer() as it:
        it.writer.write(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
        head, _ = await it.read_response()
        assert "connection: close" in head
        assert await it.read_until_closed() == b""


async def test_malformed_input_is_rejected_after_earlier_requests() -> None:
    async with peer() as it:
        it.writer.write(b"GET /first HTTP/1.1\r\n\r\nrubbish\r\n\r\n")
        assert (await it.read_response())[1] == "GET /first  0"
        assert (await it.read_until_closed()).startswith(b"HTTP/1.1 400 ")


async def test_an_endless_head_is_rejected() -> None:
    async with peer() as it:
        # Not a byte more than it reads: unread bytes would reset the connection.
        it.writer.write(b"GET / HTTP/1.1\r\nx: ".ljust(MAX_HEADER_SIZE + 1, b"y"))
        assert (await it.read_until_closed()).startswith(b"HTTP/1.1 400 ")
    assert it.echo.received == []


async def test_a_response_in_flight_is_completed_before_shutdown() -> None:
    async with peer() as it:
        it.writer.write(b"GET /held HTTP/1.1\r\n\r\n")
        await it.echo.begun.wait()
        closing = asyncio.create_task(it.connections.close(100))
        await asyncio.sleep(0)
        it.echo.held.set()
        head, text = await it.read_response()
        assert text == "GET /held  0" and "connection: close" in head
        assert await it.read_until_closed() == b""
        await closing


async def test_an_upgrade_request_is_ignored() -> None:
    async with peer() as it:
        it.writer.write(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n?!")
        head, text = await it.read_response()
        assert head.startswith("HTTP/1.1 200 ") and text == "GET /  0"
        assert await it.read_until_closed() == b""


TUNNEL = b"GET /tunnel HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"


async def test_bytes_after_an_upgrade_are_those_of_the_other_protocol() -> None:
    async with peer() as it:
        it.writer.write(TUNNEL)
        head = await it.read_head()
        assert head.startswith("HTTP/1.1 101 Switching Protocols\r\n")
        assert "content-length" not in head and "upgrade: echo" in head
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"\0\xff" * 500_000):
            it.writer.write(text)
            assert await it.reader.readexactly(len(text)) == text
        it.writer.write_eof()
        assert await it.read_until_closed() == b""
        assert len(it.echo.received) == 1


async def test_upgraded_connection_of_a_client_that_does_not_read_is_not_read() -> None:
    async with peer() as it:
        it.writer.write(TUNNEL)
        await it.read_head()
        it.writer.transport.set_write_buffer_limits(high=0)
        sent = 0

        async def write() -> None:
            nonlocal sent
            while True:
                it.writer.write(b"x" * 65_536)
                await it.writer.drain()
                sent += 65_536

        it.reader._transport.pause_reading()  # type: ignore[attr-defined]
        writing = asyncio.ensure_future(write())
        connection = next(iter(it.connections.open))
        await wait_for(lambda: connection.stalled_since is not None)
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 2**19
        writing.cancel()
        it.writer.transport.abort()
        await wait_for(lambda: not it.connections.open)


@pytest.mark.parametrize("by_client", [True, False])
async def test_tunnel_ends_with_its_connection(by_client: bool) -> None:
    async with peer() as it:
        it.writer.write(TUNNEL)
        await it.read_head()
        if by_client:
            it.writer.transport.abort()
        else:
            await it.connections.close(0.01)
        await asyncio.wait_for(it.echo.stream_ended.wait(), 100)


# -- limits


@pytest.mark.parametrize("sent", INVALID_BODIES)
async def test_a_truncated_request_is_not_executed(sent: bytes) -> None:
    async with peer() as it:
        it.writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + sent)
        it.writer.write_eof()
        assert (await it.read_until_closed()).startswith(b"HTTP/1.1 400 ")
        assert it.echo.received == []


async def test_an_unauthenticated_request_is_rejected_before_its_body() -> None:
    async with peer() as it:
        head = b"POST /a HTTP/1.1\r\nanonymous: 1\r\ncontent-length: %d\r\n\r\n"
        it.writer.write(head % MAX_BODY_SIZE)
        assert (await it.read_response())[1] == "POST /a  0"
        it.writer.write(b"x" * MAX_BODY_SIZE + b"GET /next HTTP/1.1\r\n\r\n")
        assert (await it.read_response())[1] == "GET /next  0"
        assert it.connections.buffered_bytes == 0
        assert [each.body for each in it.echo.received] == [b"", b""]


async def test_a_body_beyond_the_limit_is_rejected_before_it_is_received() -> None:
    async with peer() as it:
        head = b"POST / HTTP/1.1\r\ncontent-length: %d\r\nexpect: 100-continue\r\n\r\n"
        it.writer.write(head % (MAX_BODY_SIZE + 1))
        assert "connection: close" in (await it.read_response())[0]
        assert await it.read_until_closed() == b""
    assert [each.too_large for each in it.echo.received] == [True]


async def test_an_endless_rejected_body_is_not_read_forever() -> None:
    async with peer() as it:
        it.writer.write(b"POST / HTTP/1.1\r\nanonymous: 1\r\ntransfer-encoding: chunked\r\n\r\n")
        await it.read_response()
        with suppress(ConnectionError):
            for _ in range(40):
                it.writer.write(b"80000\r\n" + b"x" * 0x80000 + b"\r\n")
                await it.writer.drain()
        with suppress(ConnectionError):
            assert await it.read_until_closed() == b""


async def test_slow_requests_time_out_and_long_responses_do_not() -> None:
    clock = Clock()
    async with peer(clock=clock) as it:
        it.writer.write(b"GET /held HTTP/1.1\r\n\r\n")
        await it.echo.begun.wait()
        clock.now += 10_000
        it.connections.sweep()
        it.echo.held.set()
        assert (await it.read_response())[1] == "GET /held  0"
        it.writer.write(b"POST /slow HTTP/1.1\r\ncontent-length: 9\r\n\r\nx")
        await wait_for(lambda: it.connections.buffered_bytes == 1)
        for number in range(5):
            clock.now += 11
            it.connections.sweep()
            it.writer.write(b"x")
            await wait_for(lambda n=number: it.connections.buffered_bytes == n + 2)  # type: ignore[misc]
        clock.now += 11
        it.connections.sweep()
        assert (await it.read_head()).startswith("HTTP/1.1 408 ")
    assert [each.path for each in it.echo.received] == ["/held"]


async def test_a_stream_does_not_time_out() -> None:
    clock = Clock()
    async with peer(clock=clock, limits=Limits(connections=2)) as it:
        it.writer.write(b"GET /stream HTTP/1.1\r\nendless: 1\r\n\r\n")
        await it.read_head()
        await it.reader.readuntil(b"two\r\n")
        for _ in range(5):
            clock.now += 10_000
            it.connections.sweep()
            _, writer = await asyncio.open_connection(*it.writer.get_extra_info("peername"))
            writer.write(b"GET / HTTP/1.1\r\n")  # half open: only these displace each other
            await wait_for(lambda: len(it.connections) == 2)
            writer.close()
        assert len(it.echo.received) == 1 and not it.echo.stream_ended.is_set()


async def test_queued_bodies_count_towards_the_limit() -> None:
    async with peer(limits=Limits(unfinished_bytes=1000)) as it:
        it.writer.write(b"GET /held HTTP/1.1\r\n\r\n")
        await it.echo.begun.wait()
        it.writer.write(b"POST / HTTP/1.1\r\ncontent-length: 400\r\n\r\n".ljust(440, b"x"))
        await wait_for(lambda: it.connections.buffered_bytes >= 400)
        it.writer.write(b"POST / HTTP/1.1\r\ncontent-length: 700\r\n\r\n".ljust(740, b"x"))
        await wait_for(
            lambda: it.connections.metrics.rejections["apiserver", "unfinished_bytes"] == 1
        )
        it.echo.held.set()
        assert (await it.read_response())[1] == "GET /held  0"
        head, text = await it.read_response()
        assert head.startswith("HTTP/1.1 429 ") and "retry-after: 1\r\n" in head
        assert '"reason":"TooManyRequests"' in text
    assert len(it.echo.received) == 1


async def test_idle_authenticated_connections_outlast_unauthenticated_ones() -> None:
    async with peer(limits=Limits(connections=2)) as it:
        it.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await it.read_response()
        address = it.writer.get_extra_info("peername")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\nanonymous: 1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
        it.writer.write(b"GET /again HTTP/1.1\r\n\r\n")
        assert (await it.read_response())[1] == "GET /again  0"
