"""One HTTP/1.1 connection, byte by byte: responses in any chunks, and malformed ones."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.kube.errors import ConnectionLostError
from batholith.kube.http.http1 import MAX_HEAD_SIZE, READ_BUFFER_LIMIT, Connection, Exchange

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKS = (
    OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;note=x\r\nlo\r\n0\r\nLate: t\r\n\r\n"
)
UNTIL_END = OK + b"Content-Type: text/plain\r\n\r\nhello"
BUSY = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-AFTER: 7\r\nContent-Length: 4\r\n"
    b"X-Long: " + b"v" * 300 + b"\r\n\r\nwait"
)


class FakeTransport(asyncio.Transport):
    """The server's end of the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reading = True
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@dataclass(slots=True)
class ConnectionHarness:
    """A connection, its peer, and the callbacks to its owner."""

    transport: FakeTransport = field(default_factory=FakeTransport)
    freed: int = 0
    lost: int = 0
    connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        def freed(_: Connection) -> None:
            self.freed += 1

        def lost(_: Connection) -> None:
            self.lost += 1

        self.connection = Connection(on_idle=freed, on_lost=lost)
        self.connection.connection_made(self.transport)

    def send(self, *, streamed: bool = False, bodiless: bool = False) -> Exchange:
        return self.connection.send(b"GET / HTTP/1.1\r\n\r\n", streamed=streamed, bodiless=bodiless)

    def receive(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if piece:
                self.connection.data_received(piece)

    def lose(self, error: Exception | None = None) -> None:
        self.connection.connection_lost(error)

    @property
    def reusable(self) -> bool:
        return self.freed == 1 and self.lost == 0 and self.connection.usable


async def rest(exchange: Exchange) -> bytes:
    whole = b""
    while piece := await exchange.read():
        whole += piece
    return whole


def cuts(raw: bytes) -> list[list[bytes]]:
    """*raw* in two chunks, split at every position, and in chunks of one byte."""
    return [[raw[:at], raw[at:]] for at in range(len(raw) + 1)] + [
        [raw[at : at + 1] for at in range(len(raw))]
    ]


SIZED = [
    (LENGTH, 200, b"hello", None),
    (CHUNKS, 200, b"hello", None),
    (BUSY, 429, b"wait", "7"),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH, 200, b"hello", None),
    (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + CHUNKS, 200, b"hello", None),
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", None),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", None),
    (OK + b"Content-Length: 0\r\n\r\n", 200, b"", None),
]


@pytest.mark.parametrize(("raw", "status", "body", "retry_after"), SIZED)
async def test_response_is_independent_of_chunking(
    raw: bytes, status: int, body: bytes, retry_after: str | None
) -> None:
    for pieces in cuts(raw):
        line = ConnectionHarness()
        exchange = line.send()
        line.receive(pieces)
        await exchange.response_ready
        assert (exchange.status, exchange.body(), exchange.retry_after) == (
            status,
            body,
            retry_after,
        )
        assert line.reusable


@pytest.mark.parametrize(("raw", "status", "body", "retry_after"), SIZED)
async def test_streamed_response_is_read_as_it_arrives(
    raw: bytes, status: int, body: bytes, retry_after: str | None
) -> None:
    for pieces in cuts(raw):
        line = ConnectionHarness()
        exchange = line.send(streamed=True)
        reading = asyncio.create_task(rest(exchange))
        for piece in pieces:
            line.receive([piece])
            await asyncio.sleep(0)
        await exchange.response_ready
        assert (exchange.status, exchange.retry_after) == (status, retry_after)
        assert await reading == body
        assert line.reusable


async def test_status_of_a_stream_is_known_before_its_body() -> None:
    line = ConnectionHarness()
    exchange = line.send(streamed=True)
    line.receive([OK + b"Transfer-Encoding: chunked\r\n\r\n"])
    await exchange.response_ready
    assert exchange.status == 200
    reading = asyncio.create_task(exchange.read())
    await asyncio.sleep(0)
    line.receive([b"2\r\nab\r\n", b"1\r\nc\r\n"])
    assert await reading == b"abc"
    assert not exchange.complete


@pytest.mark.parametrize("raw", [each[0] for each in SIZED])
@pytest.mark.parametrize("streamed", [False, True])
async def test_close_before_the_end_of_a_response_raises_connection_lost(
    raw: bytes, streamed: bool
) -> None:
    for at in range(len(raw)):
        for half_close in (True, False):
            line = ConnectionHarness()
            exchange = line.send(streamed=streamed)
            line.receive([raw[:at]])
            if half_close:
                line.connection.eof_received()
            line.lose()
            with pytest.raises(ConnectionLostError):
                await exchange.response_ready
                await rest(exchange)
            assert line.lost == 1
            assert not line.connection.usable


async def test_stream_returns_received_bytes_before_the_error() -> None:
    line = ConnectionHarness()
    exchange = line.send(streamed=True)
    line.receive([OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"])
    line.lose(OSError("cable pulled"))
    assert await exchange.read() == b"ab"
    with pytest.raises(ConnectionLostError, match="cable pulled"):
        await exchange.read()


async def test_close_completes_a_response_without_length() -> None:
    for pieces in cuts(UNTIL_END):
        line = ConnectionHarness()
        exchange = line.send()
        line.receive(pieces)
        assert not exchange.response_ready.done()
        line.connection.eof_received()
        await exchange.response_ready
        assert exchange.body() == b"hello"
        assert line.lost == 1
    line = ConnectionHarness()
    exchange = line.send()
    line.receive([UNTIL_END])
    line.lose(OSError("reset"))
    with pytest.raises(ConnectionLostError, match="reset"):
        await exchange.response_ready


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
async def test_connection_without_keep_alive_is_not_reused(raw: bytes) -> None:
    line = ConnectionHarness()
    exchange = line.send()
    line.receive([raw])
    await exchange.response_ready
    assert exchange.body() == b"hello"
    assert (line.freed, line.lost, line.transport.aborted) == (0, 1, True)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "Expected HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "protocol"),
        (OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Content-Length"),
        (OK + b"Content-Length: -5\r\n\r\nhello", "Content-Length"),
        (OK + b"Content-Length: 99999999999999999999\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "CR"),
        (OK + b"A: b\r\n c\r\nContent-Length: 5\r\n\r\nhello", "whitespace"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "chunk|LF|CR"),
    ],
)
async def test_malformed_response_breaks_the_connection(raw: bytes, why: str) -> None:
    for pieces in ([raw], [raw[at : at + 1] for at in range(len(raw))]):
        line = ConnectionHarness()
        exchange = line.send()
        line.receive(pieces)
        with pytest.raises(ConnectionLostError, match=why):
            await exchange.response_ready
        assert (line.lost, line.transport.aborted) == (1, True)


async def test_warnings_are_those_of_the_response() -> None:
    line = ConnectionHarness()
    exchange = line.send()
    line.receive([OK + b'Warning: 299 - "a"\r\nwarning: 299 - "\xc3\xa4"\r\n' + LENGTH[len(OK) :]])
    await exchange.response_ready
    assert exchange.warnings == ('299 - "a"', '299 - "\xc3\xa4"')
    following = line.send()
    line.receive([LENGTH])
    await following.response_ready
    assert following.warnings == ()


async def test_unsolicited_response_is_not_assigned_to_a_request() -> None:
    """Otherwise an unsolicited response would be used for the next request."""
    line = ConnectionHarness()
    line.receive([LENGTH])
    assert (line.lost, line.connection.usable) == (1, False)

    line = ConnectionHarness()
    exchange = line.send()
    line.receive([LENGTH + CHUNKS])
    await exchange.response_ready
    assert exchange.body() == b"hello"
    assert (line.lost, line.connection.usable) == (1, False)
    with pytest.raises(ConnectionLostError, match="unsolicited response"):
        line.send()


async def test_unlimited_headers_break_the_connection() -> None:
    line = ConnectionHarness()
    exchange = line.send()
    line.receive([OK])
    for _ in range(MAX_HEAD_SIZE // 8000 + 1):
        line.receive([b"X-More: " + b"m" * 8000 + b"\r\n"])
    with pytest.raises(ConnectionLostError, match="headers exceed"):
        await exchange.response_ready


async def test_large_headers_below_the_limit_are_read() -> None:
    line = ConnectionHarness()
    exchange = line.send()
    line.receive([OK, b"X-Big: " + b"m" * (MAX_HEAD_SIZE // 2) + b"\r\n", LENGTH.removeprefix(OK)])
    await exchange.response_ready
    assert exchange.body() == b"hello"


async def test_head_response_ends_with_its_headers() -> None:
    line = ConnectionHarness()
    exchange = line.send(bodiless=True)
    line.receive([OK + b"Content-Length: 5\r\n\r\n"])
    await exchange.response_ready
    assert (exchange.status, exchange.body()) == (200, b"")
    assert (line.lost, line.transport.aborted) == (1, True)


async def test_slow_reader_pauses_reading_from_the_server() -> None:
    line = ConnectionHarness()
    exchange = line.send(streamed=True)
    piece = b"x" * 65536
    line.receive([OK + b"Transfer-Encoding: chunked\r\n\r\n"])
    sent = 0
    while line.transport.reading:
        line.receive([b"%x\r\n%s\r\n" % (len(piece), piece)])
        sent += len(piece)
        assert sent <= READ_BUFFER_LIMIT + len(piece)
    assert len(await exchange.read()) == sent
    assert line.transport.reading
    line.receive([b"0\r\n\r\n"])
    assert await exchange.read() == b""
    assert line.reusable


async def test_buffered_response_never_pauses_reading() -> None:
    line = ConnectionHarness()
    exchange = line.send()
    body = b"x" * (3 * READ_BUFFER_LIMIT)
    line.receive([OK + b"Content-Length: %d\r\n\r\n" % len(body), body])
    await exchange.response_ready
    assert line.transport.reading
    assert exchange.body() == body


async def test_discarding_an_incomplete_response_closes_the_connection() -> None:
    line = ConnectionHarness()
    exchange = line.send()
    exchange.abort()
    assert (line.lost, line.transport.aborted) == (1, True)
    with pytest.raises(ConnectionLostError):
        await exchange.response_ready

    line = ConnectionHarness()
    exchange = line.send(streamed=True)
    line.receive([LENGTH])
    exchange.abort()
    assert line.reusable


async def test_slow_reader_of_a_complete_response_does_not_affect_the_next() -> None:
    line = ConnectionHarness()
    old = line.send(streamed=True)
    line.receive([LENGTH])
    new = line.send(streamed=True)
    line.receive(
        [
            OK + b"Content-Length: %d\r\n\r\n" % (2 * READ_BUFFER_LIMIT),
            b"y" * (READ_BUFFER_LIMIT + 1),
        ]
    )
    assert not line.transport.reading
    assert await rest(old) == b"hello"
    assert not line.transport.reading
    assert len(await new.read()) == READ_BUFFER_LIMIT + 1
    assert line.transport.reading


async def test_connection_rejects_concurrent_requests() -> None:
    line = ConnectionHarness()
    line.send()
    with pytest.raises(RuntimeError, match="in use"):
        line.send()


async def test_connection_aborted_while_connecting_is_closed() -> None:
    connection = Connection(on_idle=lambda _: None, on_lost=lambda _: None)
    connection.abort("never mind")
    wire = FakeTransport()
    connection.connection_made(wire)
    assert wire.aborted


@st.composite
def chunked_bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A body, and its chunked encoding."""
    chunks = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=8))
    raw = b"".join(
        draw(st.sampled_from([b"%x\r\n%s\r\n", b"%X;a=b\r\n%s\r\n", b"000%x\r\n%s\r\n"]))
        % (len(chunk), chunk)
        for chunk in chunks
    )
    return b"".join(chunks), raw + b"0\r\n\r\n"


@settings(deadline=None, max_examples=examples(150))
@given(bodies=st.lists(chunked_bodies(), min_size=1, max_size=3), data=st.data())
def test_chunked_body_is_reassembled_from_any_segments(
    bodies: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    async def check() -> None:
        line = ConnectionHarness()
        for body, chunked in bodies:
            streamed = data.draw(st.booleans())
            exchange = line.send(streamed=streamed)
            raw = OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked
            cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=12))
            edges = [0, *sorted(cuts), len(raw)]
            line.receive(raw[start:end] for start, end in pairwise(edges))
            await exchange.response_ready
            assert (await rest(exchange) if streamed else exchange.body()) == body
        assert line.freed == len(bodies)
        assert line.lost == 0

    asyncio.run(check())


@settings(deadline=None, max_examples=examples(300))
@given(noise=st.binary(max_size=200), at=st.integers(0, len(CHUNKS)))
def test_random_bytes_give_a_response_or_connection_lost(noise: bytes, at: int) -> None:
    async def check() -> None:
        line = ConnectionHarness()
        exchange = line.send(streamed=True)
        line.receive([CHUNKS[:at], noise])
        line.lose()
        try:
            await exchange.response_ready
            await rest(exchange)
        except ConnectionLostError:
            pass
        assert line.lost == 1

    asyncio.run(check())
