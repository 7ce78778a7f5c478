"""Probes of the gRPC health service, with a server that speaks as much HTTP/2 as they need."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from batholith.local.agent.pods.grpc_health import GrpcHealthError, check_health
from batholith.local.agent.pods.handlers import HandlerError, HandlerTarget, run_handler
from batholith.local.agent.runtime.runs import RunDir
from batholith.local.agent.state.core_types import Container, GrpcAction, LifecycleHandler
from batholith.machinery.clock import SystemClock

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING = 0, 1, 3, 4, 6
Frame = tuple[int, int, bytes]
"""Type, flags and payload."""

FIRST: Frame = (SETTINGS, 0, b"\0\x03\0\0\0\x64")
STATUS_200: Frame = (HEADERS, 4, b"\x88")
TRAILERS: Frame = (HEADERS, 5, b"\x00\x0bgrpc-status\x010")


def message(*body: int) -> bytes:
    return b"\0" + len(body).to_bytes(4, "big") + bytes(body)


def response(data: bytes) -> list[Frame]:
    return [FIRST, STATUS_200, (DATA, 0, data), TRAILERS]


class Server:
    """Sends frames, and keeps those that it receives."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames = frames
        self.received: list[tuple[int, int, int, bytes]] = []
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        for kind, flags, payload in self.frames:
            stream = 0 if kind in (SETTINGS, PING) else 1
            head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
            writer.write(head + stream.to_bytes(4, "big") + payload)
        if not self.frames:
            writer.close()
        try:
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                stream = int.from_bytes(head[5:], "big")
                self.received.append((head[3], head[4], stream, payload))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
        writer.close()


@asynccontextmanager
async def serving(frames: Sequence[Frame]) -> AsyncIterator[tuple[Server, int]]:
    server = Server(frames)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listening:
        yield server, listening.sockets[0].getsockname()[1]


async def test_a_serving_service_is_healthy_and_its_name_is_sent() -> None:
    async with serving([(PING, 0, b"12345678"), *response(message(8, 1))]) as (server, port):
        await check_health("127.0.0.1", port, "app")
        await server.closed.wait()
    frames = {(kind, flags, stream): payload for kind, flags, stream, payload in server.received}
    assert frames[DATA, 1, 1] == message(0x0A, 3, *b"app")
    headers = frames[HEADERS, 4, 1]
    for text in (b"/grpc.health.v1.Health/Check", b"application/grpc", b"127.0.0.1:%d" % port):
        assert bytes([len(text)]) + text in headers
    assert frames[SETTINGS, 1, 0] == b""
    assert frames[PING, 1, 0] == b"12345678"


async def test_padded_and_divided_data_is_one_message() -> None:
    data = message(8, 1)
    frames = [
        FIRST, STATUS_200, (DATA, 8, b"\x02" + data[:3] + b"\0\0"), (DATA, 0, data[3:]), TRAILERS,
    ]  # fmt: skip
    async with serving(frames) as (_, port):
        await check_health("127.0.0.1", port, "")


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        (response(message(8, 2)), 'service unhealthy .responded with "NOT_SERVING"'),
        (response(message(8, 3)), "SERVICE_UNKNOWN"),
        (response(message()), "UNKNOWN"),
        ([FIRST, TRAILERS], "no health service of gRPC"),
        ([FIRST, (RESET, 0, b"\0\0\0\x07")], "rejected the call"),
        ([], "closed the connection"),
        ([(DATA, 0, b"\0" * 20_000)], "does not speak HTTP/2"),
        ([FIRST] * 200, "does not speak HTTP/2"),
        (response(b"\x01" + message(8, 1)[1:]), "compressed or incomplete"),
        (response(b"\0\0\0\0\x7f\x08\x01"), "compressed or incomplete"),
    ],
)
async def test_every_other_response_is_a_failure(frames: list[Frame], error: str) -> None:
    async with serving(frames) as (_, port):
        with pytest.raises(GrpcHealthError, match=error):
            await check_health("127.0.0.1", port, "")


async def test_a_long_name_is_sent_as_a_whole() -> None:
    async with serving(response(message(8, 1))) as (server, port):
        await check_health("127.0.0.1", port, "x" * 300)
        await server.closed.wait()
    (data,) = [payload for kind, _, _, payload in server.received if kind == DATA]
    assert data == message(0x0A, 0xAC, 0x02, *b"x" * 300)


async def test_a_probe_reports_why_the_service_is_unhealthy(tmp_path: Path) -> None:
    def probe(port: int) -> tuple[LifecycleHandler, HandlerTarget]:
        target = HandlerTarget(
            container=Container(), run=RunDir(tmp_path), ip="127.0.0.1", clock=SystemClock()
        )
        return LifecycleHandler(grpc=GrpcAction(port=port, service="app")), target

    async with serving(response(message(8, 1))) as (_, port):
        await run_handler(*probe(port), timeout=10)
    async with serving(response(message(8, 2))) as (_, port):
        with pytest.raises(HandlerError, match="NOT_SERVING"):
            await run_handler(*probe(port), timeout=10)


async def test_a_closed_port_is_an_error() -> None:
    async with serving([]) as (_, port):
        pass
    with pytest.raises(OSError, match=str(port)):
        await check_health("127.0.0.1", port, "")
