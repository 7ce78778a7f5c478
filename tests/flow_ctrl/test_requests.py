"""Requests of probes, to servers that behave and to others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from batholith.flow_ctrl.requests import RequestError, connect, http_get
from batholith.model.flow import HttpGetProbe, HttpHeader

HOST = "127.0.0.1"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler, host: str = HOST) -> AsyncIterator[int]:
    """A server for the length of the block; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass  # the client has enough
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, 0)
    async with server:
        port: int = server.sockets[0].getsockname()[1]
        yield port


class HttpServer:
    """Sends the same bytes for each request, and keeps what it received."""

    def __init__(self, response: bytes) -> None:
        self.response = response
        self.received: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(self.response)
        await writer.drain()


async def get(response: bytes, **probe: object) -> HttpServer:
    server = HttpServer(response)
    async with listening(server) as port:
        given = HttpGetProbe(port=port, **probe)  # type: ignore[arg-type]
        await http_get(HOST, given, timeout=5)
    return server


@pytest.mark.parametrize("status", [200, 204, 399])
async def test_a_status_below_400_passes(status: int) -> None:
    await get(b"HTTP/1.1 %d Fine\r\nContent-Length: 0\r\n\r\n" % status)


async def test_a_redirect_passes_and_is_not_followed() -> None:
    server = await get(b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\n\r\n")
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [100, 400, 404, 503])
async def test_another_status_fails(status: int) -> None:
    with pytest.raises(RequestError, match=f"status {status}"):
        await get(b"HTTP/1.1 %d No\r\n\r\n" % status)


async def test_path_and_header_are_sent() -> None:
    header = HttpHeader(name="host", value="a.example")
    server = await get(b"HTTP/1.0 200 OK\r\n\r\n", path="ready?full=1", http_header=header)
    (received,) = server.received
    lines = received.split("\r\n")
    assert lines[0] == "GET /ready?full=1 HTTP/1.1"
    assert "host: a.example" in lines
    assert not any(line.startswith("Host:") for line in lines)
    assert "Connection: close" in lines


async def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:3128")
    await get(b"HTTP/1.1 200 OK\r\n\r\n")


@pytest.mark.parametrize(
    "response", [b"", b"\r\n", b"SSH-2.0-OpenSSH\r\n", b"HTTP/2 200\r\n", b"HTTP/1.1 2000 OK\r\n"]
)
async def test_what_is_no_http_response_fails(response: bytes) -> None:
    with pytest.raises(RequestError, match="not HTTP/1"):
        await get(response)


async def test_an_endless_status_line_is_not_read_to_its_end() -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with listening(endless) as port:
        with pytest.raises(RequestError):
            await http_get(HOST, HttpGetProbe(port=port), timeout=60)
    assert sent < 50_000_000


async def test_a_silent_server_fails_after_the_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(silent) as port:
        with pytest.raises(RequestError, match=r"no response within 0\.05 s"):
            await http_get(HOST, HttpGetProbe(port=port), timeout=0.05)
        await connect(HOST, port, timeout=5)


async def test_a_closed_port_fails() -> None:
    async with listening(HttpServer(b"")) as port:
        pass
    with pytest.raises(RequestError):
        await connect(HOST, port, timeout=5)


@pytest.mark.parametrize("address", ["localhost", "example.com", "", "127.0.0.1:80", "127.1"])
async def test_only_addresses_get_requests(address: str) -> None:
    """INV-JF-5: names are not resolved."""
    with pytest.raises(RequestError):
        await connect(address, 80, timeout=5)


async def test_ipv6_addresses_are_bracketed() -> None:
    server = HttpServer(b"HTTP/1.1 200 OK\r\n\r\n")
    async with listening(server, "::1") as port:
        await http_get("::1", HttpGetProbe(port=port), timeout=5)
    assert f"Host: [::1]:{port}\r\n" in server.received[0]
