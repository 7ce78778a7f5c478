"""Limits of a listener for unauthenticated clients."""

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop
from support.polling import wait_for
from support.raw_http_server import INVALID_BODIES

from batholith.httpserver.buffering import BufferingConnection, BufferingListener
from batholith.httpserver.limits import Limits, LimitsError
from batholith.httpserver.upgrades import UpgradedConnection, UpgradeRequest
from batholith.local.supervisor import pki

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
BODY_LIMIT = 1000


class EchoProtocol(asyncio.Protocol):
    """Backend without limits that handles each chunk it receives as a request."""

    def __init__(self, world: "ListenerWorld") -> None:
        self.world = world

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.world.received.append(data)
        if b"/held" in data:
            self.world.holding.append(self.respond)
        else:
            self.respond()

    def respond(self) -> None:
        self.transport.write(OK)
        self.world.fronts.on_response_sent(self)


class CountingFronts(BufferingListener):
    """Counts connections."""

    connection_count = 0

    def create_connection(self) -> BufferingConnection:
        self.connection_count += 1
        return super().create_connection()


@dataclass
class ListenerWorld:
    fronts: CountingFronts
    address: tuple[str, int]
    now: float = 0.0
    received: list[bytes] = field(default_factory=list)
    holding: list[Callable[[], None]] = field(default_factory=list)
    clients: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self, sent: bytes = b"") -> asyncio.StreamReader:
        """A client that has sent data and is accepted by the server."""
        number = self.fronts.connection_count
        self.now += 0.01
        reader, writer = await asyncio.open_connection(*self.address)
        self.clients.append(writer)
        writer.write(sent)
        await wait_for(lambda: self.fronts.connection_count > number or reader.at_eof())
        return reader

    async def idle(self) -> asyncio.StreamReader:
        """A client whose request gets a response."""
        reader = await self.connect(GET)
        assert await reader.readexactly(len(OK)) == OK
        return reader

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.fronts.sweep()

    @property
    def assert_refused(self) -> dict[str, int]:
        return {reason: count for (_, reason), count in self.fronts.metrics.rejections.items()}


@contextlib.asynccontextmanager
async def serving(
    limits: Limits | None = None, *, tls: ssl.SSLContext | None = None, proves: bool = False
) -> AsyncIterator[ListenerWorld]:
    listening = socket.create_server(("127.0.0.1", 0))
    world: ListenerWorld
    fronts = CountingFronts(
        name="tests",
        body_limit=BODY_LIMIT,
        limits=limits,
        client_cert_required=proves,
        time=lambda: world.now,
    )
    fronts.backend_factory = lambda: EchoProtocol(world)
    world = ListenerWorld(fronts, listening.getsockname())
    fronts.listen(listening, tls=tls)
    try:
        yield world
    finally:
        for writer in world.clients:
            writer.transport.abort()
        fronts.stop()
        fronts.abort_all()
        await wait_for(lambda: len(fronts) == 0)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection without a response."""
    async with asyncio.timeout(100):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    return True


# -- sending


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_response_does_not_wait_for_the_client_to_acknowledge(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """With Nagle's algorithm the first one after a TLS handshake is 40 ms late."""

    async def nodelay() -> int:
        async with serving() as it:
            await it.idle()
            (connection,) = it.fronts.open
            assert connection.transport is not None
            accepted = connection.transport.get_extra_info("socket")
            option: int = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            return option

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(nodelay()) != 0


# -- time


async def test_header_timeout_closes_the_connection() -> None:
    async with serving() as it:
        silent = await it.connect()
        dripping = await it.connect(b"GET / HTTP/1.1\r\n")
        for _ in range(15):
            it.clients[1].write(b"x: y\r\n")
            it.pass_time(2)
        assert await is_closed(silent) and await is_closed(dripping)
        assert it.assert_refused == {"header_timeout": 2} and it.received == []


async def test_body_timeout_returns_408() -> None:
    async with serving() as it:
        reader = await it.connect(b"POST / HTTP/1.1\r\ncontent-length: 900\r\n\r\nx")
        for number in range(20):
            it.clients[0].write(b"x")
            await wait_for(lambda n=number: it.fronts.buffered_bytes == n + 2)  # type: ignore[misc]
            it.pass_time(2.9)
        assert len(it.fronts) == 1
        it.pass_time(2.9)
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        assert it.assert_refused == {"body_timeout": 1} and it.received == []


async def test_idle_timeout_exceeds_that_of_clients() -> None:
    """The clients' own idle timeouts (Go 90 s, Batholith 60 s) expire first."""
    async with serving() as it:
        reader = await it.idle()
        it.pass_time(179)
        it.clients[0].write(GET)
        assert await reader.readexactly(len(OK)) == OK
        it.pass_time(179)
        assert len(it.fronts) == 1
        it.pass_time(2)
        assert await is_closed(reader)
        assert it.assert_refused == {"idle_timeout": 1}


async def test_long_response_is_not_limited() -> None:
    async with serving() as it:
        reader = await it.connect(b"GET /held HTTP/1.1\r\n\r\n")
        await wait_for(lambda: bool(it.holding))
        it.pass_time(100_000)
        it.holding.pop()()
        assert await reader.readexactly(len(OK)) == OK
        assert it.assert_refused == {}


async def test_deadlines_are_extended_after_the_process_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as it:
        reader = await it.connect(b"GET / HTTP/1.1\r\n")
        it.now += 1000  # stopped, or its loop was stuck
        it.fronts._on_sweep_timer()
        it.clients[0].write(b"\r\n")
        assert await reader.readexactly(len(OK)) == OK


async def test_unread_response_of_an_unauthenticated_client_times_out() -> None:
    async with serving() as it:
        reader = await it.idle()
        (front,) = it.fronts.open
        front.pause_writing()
        it.pass_time(59)
        assert len(it.fronts) == 1
        it.pass_time(2)
        assert await is_closed(reader)
        assert it.assert_refused == {"write_timeout": 1}


# -- connections


async def test_oldest_connection_without_request_is_evicted_at_the_limit() -> None:
    async with serving(Limits(connections=3)) as it:
        idle, first, second = await it.idle(), await it.connect(b"GET"), await it.connect()
        for closed in (first, second, idle):
            it.now += 1
            reader, writer = await asyncio.open_connection(*it.address)
            it.clients.append(writer)
            writer.write(GET)
            assert await reader.readexactly(len(OK)) == OK
            assert await is_closed(closed)
        assert it.assert_refused == {"evicted": 3}


async def test_connections_with_requests_in_flight_are_kept_at_the_limit() -> None:
    async with serving(Limits(connections=2)) as it:
        busy = [await it.connect(b"GET /held HTTP/1.1\r\n\r\n") for _ in range(2)]
        await wait_for(lambda: len(it.holding) == 2)
        rejected = await it.connect(GET)
        assert await is_closed(rejected)
        assert it.assert_refused == {"connections": 1}
        for respond in it.holding:
            respond()
        for reader in busy:
            assert await reader.readexactly(len(OK)) == OK


async def test_a_thousand_incomplete_requests_do_not_block_other_clients() -> None:
    """More than the connection limit, repeatedly; regular requests are interleaved."""
    async with serving(Limits(connections=50)) as it:
        for _ in range(20):
            for _ in range(10):
                _, writer = await asyncio.open_connection(*it.address)
                it.clients.append(writer)
                writer.write(b"GET / HTTP/1.1\r\n")
            await it.idle()
        assert len(it.fronts) <= 50


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_handshake_timeout_closes_the_connection(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    keys = pki.ensure(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys.server.certificate, keys.server.key)
    client = ssl.create_default_context(cafile=str(keys.ca))

    async def ask(it: ListenerWorld) -> None:
        reader, writer = await asyncio.open_connection(*it.address, ssl=client)
        writer.write(GET)
        assert await reader.readexactly(len(OK)) == OK
        it.clients.append(writer)

    async def talk() -> None:
        async with serving(Limits(connections=3), tls=server, proves=True) as it:
            half_open = [await it.connect(b"\x16\x03\x01") for _ in range(3)]
            await ask(it)
            assert await is_closed(half_open[0])
            it.pass_time(31)
            assert await is_closed(half_open[1]) and await is_closed(half_open[2])
            assert it.assert_refused == {"evicted": 1, "handshake_timeout": 2}
            rubbish = await it.connect(b"GET / HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(100):
                with contextlib.suppress(ConnectionError):
                    await rubbish.read()
            await wait_for(lambda: it.assert_refused.get("handshake") == 1)
            await ask(it)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(talk())


async def test_one_listener_serves_tls_and_a_unix_socket_without(tmp_path: Path) -> None:
    keys = pki.ensure(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys.server.certificate, keys.server.key)
    client = ssl.create_default_context(cafile=str(keys.ca))
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as local:
        local.bind(str(path))
        async with serving(tls=server) as it:
            it.fronts.listen(local)
            for streams in (
                await asyncio.open_connection(*it.address, ssl=client),
                await asyncio.open_unix_connection(path),
            ):
                reader, writer = streams
                it.clients.append(writer)
                writer.write(GET)
                assert await reader.readexactly(len(OK)) == OK
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_unix_connection(path)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_listener_recovers_from_descriptor_exhaustion(
    loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        async with serving() as it:
            clients = [socket.create_connection(it.address) for _ in range(5)]
            for each in clients:
                each.sendall(GET)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            highest = max(each.fileno() for each in clients)
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
            try:
                await wait_for(lambda: it.assert_refused.get("descriptors", 0) > 1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await it.idle()
            for each in clients:
                each.close()
        lines = [each for each in caplog.records if each.message == "cannot accept connections"]
        assert len(lines) == 1

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(talk())


# -- memory


async def test_largest_incomplete_body_is_rejected_at_the_byte_limit() -> None:
    async with serving(Limits(unfinished_bytes=2000)) as it:
        head = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n"
        large = await it.connect(head % 1000 + b"x" * 900)
        await wait_for(lambda: it.fronts.buffered_bytes == 900)
        small = await it.connect(head % 600 + b"x" * 500)
        await wait_for(lambda: it.fronts.buffered_bytes == 1400)
        other = await it.connect(head % 1000 + b"x" * 700)
        refusal = await large.read()
        assert refusal.startswith(b"HTTP/1.1 429 ") and b"retry-after: 1\r\n" in refusal
        assert it.fronts.buffered_bytes == 1200 and it.received == []
        it.clients[1].write(b"x" * 100)
        it.clients[2].write(b"x" * 300)
        for reader in (small, other):
            assert await reader.readexactly(len(OK)) == OK
        assert it.fronts.buffered_bytes == 0
        assert it.assert_refused == {"unfinished_bytes": 1}


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\ncontent-length: 1001\r\nexpect: 100-continue\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001,
    ],
)
async def test_too_large_body_is_rejected_before_its_end(sent: bytes) -> None:
    async with serving() as it:
        reader = await it.connect(sent)
        async with asyncio.timeout(100):
            assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        assert it.received == [] and it.assert_refused == {"body_too_large": 1}


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nx: ".ljust(70_000, b"y"),
        b"GET / HTTP/1.1\r\nx: ".ljust(70_000, b"y") + b"\r\n\r\n",
        b"GET /".ljust(70_000, b"y") + b" HTTP/1.1\r\n\r\n",
    ],
)
async def test_too_large_header_is_rejected(sent: bytes) -> None:
    async with serving() as it:
        reader = await it.connect(sent)
        async with asyncio.timeout(100):
            assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        assert it.assert_refused == {"header_too_large": 1}


# -- complete requests


@pytest.mark.parametrize("sent", INVALID_BODIES)
async def test_incomplete_request_is_not_served(sent: bytes) -> None:
    async with serving() as it:
        reader = await it.connect(b"POST / HTTP/1.1\r\nhost: x\r\n" + sent)
        it.clients[0].write_eof()
        async with asyncio.timeout(100):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        assert it.received == []
        assert sum(it.assert_refused.values()) == 1 and it.assert_refused.keys() <= {
            "truncated",
            "malformed",
        }


async def test_request_is_forwarded_in_one_piece_with_a_length() -> None:
    async with serving() as it:
        reader = await it.connect()
        sent = (
            b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nX-Y: Z\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for sign in sent:
            it.clients[0].write(bytes((sign,)))
            await it.clients[0].drain()
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for sign in b"3\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\r\n":
            it.clients[0].write(bytes((sign,)))
            await it.clients[0].drain()
        assert await reader.readuntil(OK) == OK
    head = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nX-Y: Z\r\ncontent-length: 5\r\n\r\n"
    assert it.received == [head + b"abcde"]


async def test_pipelined_requests_are_served_in_order() -> None:
    async with serving() as it:
        reader = await it.connect(b"GET /held HTTP/1.1\r\n\r\n" + GET * 20 + b"rubbish\r\n\r\n")
        await wait_for(lambda: bool(it.holding))
        assert len(it.received) == 1
        it.holding.pop()()
        assert await reader.readexactly(21 * len(OK)) == OK * 21
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_upgrade_header_is_not_forwarded() -> None:
    async with serving() as it:
        sent = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n?!"
        assert await (await it.connect(sent)).readexactly(len(OK)) == OK
        assert it.received == [b"GET / HTTP/1.1\r\nconnection: upgrade\r\n\r\n"]


UPGRADE = b"GET /x?y=1 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: echo\r\nA: 1\r\nA: 2, 3\r\n\r\n"


async def echo_once(request: UpgradeRequest, connection: UpgradedConnection) -> None:
    """Switch protocols, and send back what is received first."""
    connection.write(f"{request.method} {request.target} {request.values('a')} ".encode())
    connection.write(await connection.read())


async def test_upgraded_connection_belongs_to_its_handler() -> None:
    async with serving() as it:
        it.fronts.upgrade_handler = echo_once
        reader = await it.connect(UPGRADE + b"early")
        assert await reader.read() == b"GET /x?y=1 ['1', '2', '3'] early"
        assert it.received == []


async def test_upgrade_behind_another_request_is_rejected() -> None:
    async with serving() as it:
        it.fronts.upgrade_handler = echo_once
        reader = await it.connect(b"GET /held HTTP/1.1\r\n\r\n" + UPGRADE + b"early")
        await wait_for(lambda: bool(it.holding))
        it.holding.pop()()
        assert await reader.readexactly(len(OK)) == OK
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_handler_of_a_client_that_disconnects_is_cancelled() -> None:
    ended = asyncio.Event()

    async def wait(request: UpgradeRequest, connection: UpgradedConnection) -> None:
        try:
            connection.write(b"ready")
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with serving() as it:
        it.fronts.upgrade_handler = wait
        reader = await it.connect(UPGRADE)
        assert await reader.readexactly(5) == b"ready"
        it.clients[-1].transport.abort()
        await asyncio.wait_for(ended.wait(), 100)


# -- options


def test_limits_are_parsed() -> None:
    text = "connections=5, header-timeout=1m30s,unfinished-bytes=16Mi"
    found = Limits.parse(text, base=Limits(idle_timeout=7))
    want = Limits(
        connections=5, header_timeout=90, idle_timeout=7, unfinished_bytes=16 * 1024 * 1024
    )
    assert found == want


@pytest.mark.parametrize(
    "text", ["x=1", "connections", "connections=x", "connections=0", "idle-timeout=-1s", "a"]
)
def test_invalid_limit_is_named_in_the_error(text: str) -> None:
    with pytest.raises(LimitsError, match=text.partition("=")[0]):
        Limits.parse(text)


def test_connection_limit_is_bounded_by_file_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        assert Limits().max_connections == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
