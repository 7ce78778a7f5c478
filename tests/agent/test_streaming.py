"""SPDY and WebSockets of exec and port-forward, with hostile clients."""

import asyncio
import json
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.polling import wait_for
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong

from batholith.httpserver.upgrades import UpgradedConnection, UpgradeRequest
from batholith.local.agent.streaming import spdy
from batholith.local.agent.streaming.command_streams import (
    STDOUT,
    CommandStreams,
    Status,
    StreamOptions,
    StreamsRejectedError,
    TerminalSize,
    serve_command,
)
from batholith.local.agent.streaming.inbox import Inbox
from batholith.local.agent.streaming.port_forward import serve_port_forward
from batholith.local.agent.streaming.spdy import SpdyConnection, SpdyStream
from batholith.local.agent.streaming.spdy_headers import (
    DICTIONARY,
    MAX_HEADERS,
    HeaderDecoder,
    HeaderEncoder,
    SpdyError,
)
from batholith.machinery.testing import run_ready_tasks

FIN = 1
SUCCESS: Status = {"status": "Success"}


class FakeTransport(asyncio.Transport):
    """The transport of a client that reads when a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reading = True
        self.closed = False
        self.high_water = 2**30
        self.on_high_water: Callable[[], None] = lambda: None

    def write(self, data: Any) -> None:
        self.sent += bytes(data)
        if len(self.sent) > self.high_water:
            self.on_high_water()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True


class Wire:
    """A connection whose peer is the test."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.connection = UpgradedConnection(self.transport)
        self.transport.on_high_water = self.connection.pause_writing

    def receive(self, data: bytes) -> None:
        self.connection.feed_data(data)


def control(kind: int, content: bytes, flags: int = 0) -> bytes:
    first = 0x80000000 | 3 << 16 | kind
    return first.to_bytes(4, "big") + (flags << 24 | len(content)).to_bytes(4, "big") + content


def data_frame(number: int, data: bytes, flags: int = 0) -> bytes:
    return number.to_bytes(4, "big") + (flags << 24 | len(data)).to_bytes(4, "big") + data


class SpdyClient:
    """Frames of a client, with its state of compression."""

    def __init__(self) -> None:
        self.encoder = HeaderEncoder()

    def open(self, number: int, headers: dict[str, str], flags: int = 0) -> bytes:
        block = self.encoder.encode(headers)
        return control(1, number.to_bytes(4, "big") + bytes(6) + block, flags)


def frames(text: bytes) -> list[tuple[int, int, int, bytes]]:
    """The frames in *text*: kind or 0 for data, stream, flags, content."""
    found = []
    while text:
        first, size = int.from_bytes(text[:4], "big"), int.from_bytes(text[4:8], "big")
        flags, length = size >> 24, size & 0xFFFFFF
        content, text = text[8 : 8 + length], text[8 + length :]
        if first & 0x80000000:
            found.append((first & 0xFFFF, int.from_bytes(content[:4], "big"), flags, content[4:]))
        else:
            found.append((0, first, flags, content))
    return found


async def run_spdy(
    wire: Wire, *pieces: bytes, accept: Callable[[SpdyStream], bool] = lambda _: True
) -> list[tuple[int, int, int, bytes]]:
    """Frames with which a server responses *pieces*, after which the client disconnects."""
    for piece in pieces:
        wire.receive(piece)
    wire.connection.feed_eof()
    await SpdyConnection(wire.connection).run(accept)
    return frames(wire.transport.sent)


def test_dictionary_is_the_specification_s() -> None:
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


@given(st.lists(st.dictionaries(st.text("abc-", min_size=1), st.text("xyz 1"), max_size=5)))
def test_headers_survive_their_encoding(blocks: list[dict[str, str]]) -> None:
    encoder, decoder = HeaderEncoder(), HeaderDecoder()
    assert [decoder.decode(encoder.encode(each)) for each in blocks] == blocks


@given(
    data=st.binary(max_size=200),
    cuts=st.lists(st.integers(1, 40), max_size=20),
    reset=st.booleans(),
)
def test_streams_get_their_data_however_it_arrives(
    data: bytes, cuts: list[int], reset: bool
) -> None:
    async def exchange() -> tuple[bytes, list[SpdyStream]]:
        wire, client = Wire(), SpdyClient()
        streams: list[SpdyStream] = []
        text = client.open(1, {"a": "b"}) + client.open(3, {"c": "d"})
        text += data_frame(1, data[:100]) + data_frame(9, b"unknown") + data_frame(3, b"other")
        text += data_frame(1, data[100:], FIN) + data_frame(1, b"late")
        text += control(3, (3).to_bytes(4, "big") + bytes(4)) if reset else b""
        for cut in cuts:
            wire.receive(text[:cut])
            text = text[cut:]
        wire.receive(text)

        def accept(stream: SpdyStream) -> bool:
            streams.append(stream)
            return True

        running = asyncio.ensure_future(SpdyConnection(wire.connection).run(accept))
        await wait_for(lambda: len(streams) == 2)
        received = b""
        while piece := await streams[0].inbox.get():
            received += piece
        wire.connection.feed_eof()
        await running
        return received, streams

    received, streams = asyncio.run(exchange())
    assert received == data
    assert [stream.headers for stream in streams] == [{"a": "b"}, {"c": "d"}]
    assert streams[1].is_reset


async def test_streams_are_confirmed_before_their_data() -> None:
    wire, client = Wire(), SpdyClient()
    streams: list[SpdyStream] = []
    wire.receive(client.open(1, {}, FIN))

    def accept(stream: SpdyStream) -> bool:
        streams.append(stream)
        return True

    running = asyncio.ensure_future(SpdyConnection(wire.connection).run(accept))
    await wait_for(lambda: streams)
    await streams[0].write(b"x" * 40_000)
    await streams[0].close()
    wire.connection.feed_eof()
    await running
    sent = frames(wire.transport.sent)
    assert [(kind, number) for kind, number, _, _ in sent[:2]] == [(2, 1), (0, 1)]
    assert b"".join(content for kind, _, _, content in sent if kind == 0) == b"x" * 40_000
    assert sent[-1][2] == FIN


async def test_pings_of_the_client_are_returned_and_its_answers_are_not() -> None:
    responses = await run_spdy(
        Wire(), control(6, (7).to_bytes(4, "big")), control(6, (2).to_bytes(4, "big"))
    )
    assert responses == [(6, 7, 0, b"")]


async def test_streams_are_refused_beyond_their_number_and_with_used_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spdy, "MAX_STREAMS", 2)
    client = SpdyClient()
    responses = await run_spdy(Wire(), *(client.open(number, {}) for number in (1, 3, 3, 4, 5)))
    assert [(kind, number, content) for kind, number, _, content in responses if kind == 3] == [
        (3, 3, bytes([0, 0, 0, 1])),
        (3, 4, bytes([0, 0, 0, 1])),
        (3, 5, bytes([0, 0, 0, 3])),
    ]


async def test_closed_streams_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spdy, "MAX_STREAMS", 2)
    client, pieces = SpdyClient(), []
    for number in range(1, 21, 2):
        pieces += [client.open(number, {}), control(3, number.to_bytes(4, "big") + bytes(4))]
    responses = await run_spdy(Wire(), *pieces)
    assert [kind for kind, _, _, _ in responses] == [2] * 10


def _compressed(block: bytes) -> bytes:
    compressor = zlib.compressobj(zdict=DICTIONARY)
    return compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)


HOSTILE = {
    "other version": b"\x80\x02\x00\x01" + bytes(4),
    "large control frame": control(4, b"")[:4] + (spdy.MAX_CONTROL_FRAME + 1).to_bytes(4, "big"),
    "unknown frame": control(77, bytes(4)),
    "short frame": control(3, b"x"),
    "headers that are not compressed": control(1, bytes(10) + b"\xff\xff\xff"),
    "large headers": SpdyClient().open(1, {"a": "b" * MAX_HEADERS}),
    "headers that end early": control(1, bytes(10) + _compressed(b"\0\0\0\x02\0\0\0\x01a")),
    "more headers than there are": control(1, bytes(10) + _compressed(b"\xff" * 4)),
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_violations_of_spdy_end_the_connection(text: bytes) -> None:
    with pytest.raises(SpdyError):
        await run_spdy(Wire(), text)


@given(st.binary(max_size=300))
def test_random_bytes_end_a_connection_without_another_error(text: bytes) -> None:
    async def run() -> None:
        with suppress(SpdyError):
            await run_spdy(Wire(), text)

    asyncio.run(run())


async def test_unread_stream_stops_its_connection() -> None:
    wire, client = Wire(), SpdyClient()
    running = asyncio.ensure_future(SpdyConnection(wire.connection).run(lambda _: True))
    wire.receive(client.open(1, {}))
    received = 0
    tracemalloc.start()
    try:
        for _ in range(1000):
            if not wire.transport.reading:
                break
            wire.receive(data_frame(1, b"x" * 32_768))
            received += 32_768
            await run_ready_tasks()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not wire.transport.reading
    assert received < 2**20
    assert peak < 2**21
    running.cancel()


async def test_inbox_that_is_discarded_blocks_nobody() -> None:
    inbox = Inbox()
    await inbox.put(b"x" * 2**20)
    waiting = asyncio.ensure_future(inbox.put(b"more"))
    await run_ready_tasks()
    assert not waiting.done()
    inbox.discard()
    await waiting
    await inbox.put(b"x" * 2**20)
    await inbox.put(b"x")


def request(**headers: str) -> UpgradeRequest:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return UpgradeRequest(method="GET", target="/exec/a/b/c", headers=pairs)


WEBSOCKET = request(
    upgrade="websocket",
    sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",
    sec_websocket_protocol="x, v5.channel.k8s.io",
)


class WebSocketClient:
    """The client of a command on a wire."""

    def __init__(self, options: StreamOptions, command: Any) -> None:
        self.wire = Wire()
        self.protocol = Connection(ConnectionType.CLIENT)
        serving = serve_command(WEBSOCKET, self.wire.connection, options, command)
        self.serving = asyncio.ensure_future(serving)

    def send(self, event: Event) -> None:
        self.wire.receive(self.protocol.send(event))

    async def events(self) -> list[Event]:
        """What was received after the handshake."""
        await wait_for(lambda: b"\r\n\r\n" in self.wire.transport.sent)
        head, _, rest = self.wire.transport.sent.partition(b"\r\n\r\n")
        assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
        protocol = Connection(ConnectionType.CLIENT)
        protocol.receive_data(rest)
        return list(protocol.events())


async def test_client_that_never_reads_stops_the_command() -> None:
    written = 0

    async def write_forever(streams: CommandStreams) -> Status:
        nonlocal written
        while True:
            written += 1000
            await streams.write(STDOUT, b"x" * 1000)

    client = WebSocketClient(StreamOptions(stdout=True), write_forever)
    client.wire.transport.high_water = 64 * 1024
    await run_ready_tasks()
    assert 64 * 1024 < written < 66 * 1024
    assert len(client.wire.transport.sent) < 67 * 1024
    client.wire.connection.connection_lost()
    with pytest.raises(ConnectionError):
        await client.serving


async def test_command_is_cancelled_when_its_client_closes_the_websocket() -> None:
    ended = asyncio.Event()

    async def wait(streams: CommandStreams) -> Status:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return SUCCESS

    client = WebSocketClient(StreamOptions(stdout=True), wait)
    await run_ready_tasks()
    client.send(CloseConnection(code=1000))
    await client.serving
    assert ended.is_set()


async def test_messages_in_pieces_are_the_input_of_the_command() -> None:
    received = b""

    async def read(streams: CommandStreams) -> Status:
        nonlocal received
        while data := await streams.stdin.get():
            received += data
        return SUCCESS

    client = WebSocketClient(StreamOptions(stdin=True), read)
    client.send(BytesMessage(data=b"\0one ", message_finished=False))
    client.send(Ping(payload=b"p"))
    client.send(BytesMessage(data=b"two ", message_finished=True))
    client.send(BytesMessage(data=b""))
    client.send(BytesMessage(data=b"\7unknown"))
    client.send(BytesMessage(data=b"\0three"))
    client.send(BytesMessage(data=b"\xff\0"))
    await wait_for(lambda: b"Success" in client.wire.transport.sent)
    assert received == b"one two three"
    events = await client.events()
    assert any(isinstance(event, Pong) and bytes(event.payload) == b"p" for event in events)
    messages = [bytes(event.data) for event in events if isinstance(event, BytesMessage)]
    assert messages == [b"\3", b"\3" + json.dumps(SUCCESS).encode()]
    client.wire.connection.feed_eof()
    await client.serving


async def pass_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all timers of the event loop expire that are due within an hour."""
    loop = asyncio.get_running_loop()
    later = loop.time() + 3600
    monkeypatch.setattr(loop, "time", lambda: later)
    await run_ready_tasks()


async def succeed(streams: CommandStreams) -> Status:
    return SUCCESS


async def test_websocket_stays_open_until_a_slow_client_has_read_the_closing_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = WebSocketClient(StreamOptions(stdout=True), succeed)
    await wait_for(lambda: b"Success" in client.wire.transport.sent)
    await pass_an_hour(monkeypatch)
    assert not client.serving.done()
    client.send(CloseConnection(code=1000))
    await client.serving


async def test_spdy_connection_stays_open_until_a_slow_client_has_read_the_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, client = Wire(), SpdyClient()
    asked = request(upgrade="SPDY/3.1", x_stream_protocol_version="v4.channel.k8s.io")
    for number, kind in enumerate(("error", "stdout")):
        wire.receive(client.open(2 * number + 1, {"streamtype": kind}))
    options = StreamOptions(stdout=True)
    serving = asyncio.ensure_future(serve_command(asked, wire.connection, options, succeed))
    await wait_for(lambda: b"Success" in wire.transport.sent)
    await pass_an_hour(monkeypatch)
    assert not serving.done()
    wire.connection.feed_eof()
    await serving


async def test_forwarding_stays_open_until_a_slow_client_has_read_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise ConnectionRefusedError(111, "refused")

    wire = Wire()
    asked = request(upgrade="websocket", sec_websocket_protocol="v4.channel.k8s.io")
    serving = asyncio.ensure_future(serve_port_forward(asked, wire.connection, "80", connect))
    await wait_for(lambda: b"refused" in wire.transport.sent)
    await pass_an_hour(monkeypatch)
    assert not serving.done()
    wire.receive(Connection(ConnectionType.CLIENT).send(CloseConnection(code=1000)))
    await serving


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request(upgrade="websocket", sec_websocket_protocol="other"), 400),
        (request(upgrade="SPDY/3.1", x_stream_protocol_version="other"), 403),
        (request(upgrade="h2c"), 400),
    ],
)
async def test_unsupported_protocols_are_rejected(asked: UpgradeRequest, status: int) -> None:
    async def unused(streams: CommandStreams) -> Status:
        raise AssertionError

    wire = Wire()
    with pytest.raises(StreamsRejectedError) as caught:
        await serve_command(asked, wire.connection, StreamOptions(stdout=True), unused)
    assert caught.value.status == status
    assert wire.transport.sent == b""


async def test_only_the_latest_size_counts_and_malformed_ones_do_not() -> None:
    size = TerminalSize()
    size.feed(b'{"Width": 1, "Height": 2}{"Width": 30, "Hei')
    size.feed(b'ght": 40}\n{"Width": 70000, "Height": 1}{"Width": "x"}[]}{}')
    assert await size.next() == (30, 40)
    size.feed(b"x" * 10_000)
    size.feed(b'}{"Width": 5, "Height": 6}')
    assert await size.next() == (5, 6)


async def forward(*streams: dict[str, str]) -> tuple[list[int], list[tuple[int, int, int, bytes]]]:
    """Open *streams* of port-forward; return the ports that were connected to, and responses."""
    connected: list[int] = []

    async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connected.append(port)
        raise ConnectionRefusedError(111, "refused")

    wire, client = Wire(), SpdyClient()
    asked = request(upgrade="SPDY/3.1", x_stream_protocol_version="portforward.k8s.io")
    serving = asyncio.ensure_future(serve_port_forward(asked, wire.connection, "", connect))
    for number, headers in enumerate(streams):
        wire.receive(client.open(2 * number + 1, headers))
    await run_ready_tasks()
    wire.connection.feed_eof()
    await serving
    return connected, frames(wire.transport.sent.partition(b"\r\n\r\n")[2])


def pair(port: str, request_id: str) -> list[dict[str, str]]:
    common = {"port": port, "requestid": request_id}
    return [{"streamtype": kind, **common} for kind in ("error", "data")]


async def test_connections_are_told_apart_by_their_id() -> None:
    one, two = pair("80", "1"), pair("81", "2")
    connected, responses = await forward(one[0], two[0], two[1], one[1])
    assert connected == [81, 80]
    errors = {number: content for kind, number, _, content in responses if kind == 0 and content}
    assert errors == {
        1: b"error forwarding port 80 to pod: refused",
        3: b"error forwarding port 81 to pod: refused",
    }


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "", "٣", "1" * 5000])
async def test_streams_with_invalid_ports_are_refused(port: str) -> None:
    connected, responses = await forward(*pair(port.encode().decode("latin-1"), "1"))
    assert connected == []
    assert [kind for kind, _, _, _ in responses] == [2, 3, 2, 3]


async def test_streams_of_no_type_or_of_the_same_one_are_refused() -> None:
    error = pair("80", "1")[0]
    connected, responses = await forward({"port": "80"}, error, error)
    assert connected == []
    assert [number for kind, number, _, _ in responses if kind == 3] == [1, 5]


@pytest.mark.parametrize("ports", ["", "x", "0", "80,70000", ",".join(["80"] * 101)])
async def test_invalid_ports_of_channels_are_rejected(ports: str) -> None:
    async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise AssertionError

    asked = request(upgrade="websocket", sec_websocket_protocol="v4.channel.k8s.io")
    wire = Wire()
    with pytest.raises(StreamsRejectedError) as caught:
        await serve_port_forward(asked, wire.connection, ports, connect)
    assert caught.value.status == 400
    assert wire.transport.sent == b""
