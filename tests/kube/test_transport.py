"""Transport and connection pool over real sockets: reuse, failures, limits, fence, proxies."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from support.loop_time import LoopTime
from support.polling import wait_for
from support.raw_http_server import OK, RawConnection, RawHttpServer, raw_http_server

from batholith.kube.client.client import Client, ClientOptions
from batholith.kube.client.config import Credentials
from batholith.kube.client.transport import ApiRequest, Transport
from batholith.kube.errors import (
    ConfigError,
    ConnectionLostError,
    NotFoundError,
    RequestTimeoutError,
)
from batholith.kube.http.route import Origin
from batholith.kube.timing import Timing
from batholith.local.supervisor import pki
from batholith.machinery.testing import run_ready_tasks


async def no_delay(_: float) -> None:
    await asyncio.sleep(0)


OPTIONS = ClientOptions(timing=Timing(sleep=no_delay))


@asynccontextmanager
async def transport(
    server: RawHttpServer,
    options: ClientOptions = OPTIONS,
    *,
    timeout: float = 100,
    credentials: Credentials | None = None,
) -> AsyncIterator[Transport]:
    credentials = credentials or Credentials(server=f"http://127.0.0.1:{server.port}")
    transport = Transport(
        credentials, user_agent="tests", limiter=None, timeout=timeout, options=options
    )
    async with transport:
        yield transport


def get(path: str = "/x") -> ApiRequest:
    return ApiRequest("GET", path)


def post(body: bytes = b"{}") -> ApiRequest:
    return ApiRequest("POST", "/x", body)


async def test_request_bytes_are_exact() -> None:
    async with raw_http_server() as server:
        credentials = Credentials(
            server=f"http://127.0.0.1:{server.port}/base/",
            token="t",
            impersonate=(("Impersonate-User", "ann"), ("Impersonate-Group", "a")),
        )
        async with transport(server, credentials=credentials) as client:
            await client.send(ApiRequest("PATCH", "/x?y=1", b"[]", "application/json-patch+json"))
            await client.send(get("/z"))
        common = (
            f"Host: 127.0.0.1:{server.port}\r\nUser-Agent: tests\r\nAccept: application/json\r\n"
            "Impersonate-User: ann\r\nImpersonate-Group: a\r\nAuthorization: Bearer t\r\n"
        )
        assert [raw.decode() for raw in server.requests] == [
            f"PATCH /base/x?y=1 HTTP/1.1\r\n{common}"
            "Content-Type: application/json-patch+json\r\nContent-Length: 2\r\n\r\n[]",
            f"GET /base/z HTTP/1.1\r\n{common}\r\n",
        ]
        assert server.connections == 1


@pytest.mark.parametrize(
    "path", ["/a b", "/a\r\nX: y", "/ä", "/a\x00", "/a HTTP/1.1\r\n\r\nGET /b"]
)
async def test_path_that_would_alter_the_request_is_rejected(path: str) -> None:
    async with raw_http_server() as server, transport(server) as client:
        with pytest.raises(ValueError, match="invalid request line"):
            await client.send(get(path))
        assert server.connections == 0


@pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "a\nb", "ä", "a\x00"])
async def test_token_that_would_alter_the_request_is_rejected_and_not_shown(
    tmp_path: Path, token: str
) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(token)
    async with raw_http_server() as server:
        credentials = Credentials(server=f"http://127.0.0.1:{server.port}", token_file=str(path))
        async with transport(server, credentials=credentials) as client:
            with pytest.raises(ConfigError, match="Authorization") as caught:
                await client.send(get())
            assert "Evil" not in str(caught.value)
        assert server.connections == 0


async def test_connections_are_reused_and_opened_only_as_needed() -> None:
    async with raw_http_server() as server, transport(server) as client:
        for _ in range(5):
            await client.send(post())
        assert server.connections == 1
        await asyncio.gather(*(client.send(get()) for _ in range(8)))
        assert server.connections <= 8
        before = server.connections
        await asyncio.gather(*(client.send(get()) for _ in range(8)))
        assert server.connections == before


async def test_connection_limit_holds_and_all_waiters_are_served() -> None:
    options = replace(OPTIONS, max_connections=2)

    async def break_off(server: RawHttpServer, peer: RawConnection) -> None:
        server.requests.append(await peer.request())

    async with (
        raw_http_server(break_off, break_off, RawHttpServer.respond_to_all) as server,
        transport(server, options) as client,
    ):
        outcomes = await asyncio.gather(
            *(client.send(post()) for _ in range(20)), return_exceptions=True
        )
        lost = [each for each in outcomes if isinstance(each, ConnectionLostError)]
        assert len(lost) == 2
        assert len(server.requests) == 20
        assert server.connections <= 4


async def test_cancelled_waiter_for_a_connection_leaks_no_slot() -> None:
    options = replace(OPTIONS, max_connections=1)
    async with (
        raw_http_server(RawHttpServer.hang, RawHttpServer.respond_to_all) as server,
        transport(server, options) as client,
    ):
        first = asyncio.create_task(client.send(get()))
        await wait_for(lambda: server.requests)
        waiting = [asyncio.create_task(client.send(get())) for _ in range(3)]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        first.cancel()
        await asyncio.gather(first, waiting[0], return_exceptions=True)
        assert await asyncio.gather(*waiting[1:]) == [b"{}", b"{}"]


async def test_idle_connection_closed_by_the_server_is_not_reused() -> None:
    async def once(server: RawHttpServer, peer: RawConnection) -> None:
        server.requests.append(await peer.request())
        peer.send(OK)

    async with raw_http_server(once) as server, transport(server) as client:
        pool = client._pool
        assert pool is not None
        for number in range(1, 4):
            await client.send(post())
            await wait_for(lambda: server.closed_connections == number)  # noqa: B023
            await wait_for(lambda: not pool)  # the close has been received
        assert server.connections == 3


async def test_connection_is_closed_after_its_idle_timeout() -> None:
    options = replace(OPTIONS, keepalive=0.05)
    async with raw_http_server() as server, transport(server, options) as client:
        await asyncio.gather(*(client.send(post()) for _ in range(3)))
        await wait_for(
            lambda: server.connections and server.closed_connections == server.connections
        )
        assert await client.send(post()) == b"{}"


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 20", OK[:-1], b"HTTP/1.1 200 OK\r\n"])
async def test_write_with_broken_connection_is_not_retried(sent: bytes) -> None:
    async def break_off(server: RawHttpServer, peer: RawConnection) -> None:
        server.requests.append(await peer.request())
        peer.send(sent)

    async with (
        raw_http_server(break_off, RawHttpServer.respond_to_all) as server,
        transport(server) as client,
    ):
        with pytest.raises(ConnectionLostError, match="POST /x: the server closed"):
            await client.send(post())
        assert len(server.requests) == 1
        assert await client.send(post()) == b"{}"


async def test_read_with_broken_connection_is_retried_on_another() -> None:
    async def break_off(server: RawHttpServer, peer: RawConnection) -> None:
        server.requests.append(await peer.request())
        peer.send(OK[:-1])

    async with (
        raw_http_server(break_off, break_off, RawHttpServer.respond_to_all) as server,
        transport(server) as client,
    ):
        assert await client.send(get()) == b"{}"
        assert server.connections == 3


async def test_error_response_sent_before_the_body_was_read_is_decoded() -> None:
    refusal = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"

    async def refuse(server: RawHttpServer, peer: RawConnection) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(refusal)
        await peer.reader.read()

    async with raw_http_server(refuse) as server, transport(server) as client:
        with pytest.raises(NotFoundError):
            await client.send(post(b"x" * 5_000_000))


async def test_response_to_a_cancelled_request_is_not_used_for_the_next() -> None:
    async with (
        raw_http_server(RawHttpServer.hang, RawHttpServer.respond_to_all) as server,
        transport(server) as client,
    ):
        waiting = asyncio.create_task(client.send(post()))
        await wait_for(lambda: server.requests)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await wait_for(lambda: server.closed_connections == 1)
        assert await client.send(post()) == b"{}"
        assert server.connections == 2


async def test_response_after_the_timeout_is_not_used_for_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = LoopTime(monkeypatch)
    async with (
        raw_http_server(RawHttpServer.hang, RawHttpServer.respond_to_all) as server,
        transport(server) as client,
    ):
        asking = asyncio.create_task(client.send(post()))
        await wait_for(lambda: server.requests)
        time.advance(101)
        with pytest.raises(RequestTimeoutError, match="no response within 100 s"):
            await asking
        await wait_for(lambda: server.closed_connections == 1)
        assert len(server.requests) == 1


async def test_closing_the_client_fails_requests_in_flight() -> None:
    async with raw_http_server(RawHttpServer.hang) as server:
        async with transport(server) as client:
            waiting = asyncio.create_task(client.send(post()))
            await wait_for(lambda: server.requests)
        with pytest.raises(ConnectionLostError, match="client was closed"):
            await waiting
        await wait_for(lambda: server.closed_connections == 1)
        with pytest.raises(RuntimeError, match="outside"):
            await client.send(post())


async def test_leaving_a_stream_early_closes_its_connection() -> None:
    async def flow(server: RawHttpServer, peer: RawConnection) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await peer.reader.read()

    async with (
        raw_http_server(flow, RawHttpServer.respond_to_all) as server,
        transport(server) as client,
    ):
        async with client.stream(get(), idle_timeout=100) as pieces:
            async for piece in pieces():
                assert piece == b"ab"
                break
        await wait_for(lambda: server.closed_connections == 1)
        assert await client.send(get()) == b"{}"


async def test_stream_without_data_times_out_but_a_slow_reader_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = LoopTime(monkeypatch)

    async def flow(server: RawHttpServer, peer: RawConnection) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await peer.reader.read()

    async with (
        raw_http_server(flow) as server,
        transport(server) as client,
        client.stream(get(), idle_timeout=100) as pieces,
    ):
        stream = pieces()

        async def read() -> bytes:
            return await anext(stream)

        assert await read() == b"ab"
        time.advance(150)  # longer than the server may be silent
        reading = asyncio.create_task(read())
        await run_ready_tasks()
        assert not reading.done()
        time.advance(101)
        with pytest.raises(RequestTimeoutError, match="no data before"):
            await reading


async def test_slow_reader_throttles_the_server_and_loses_nothing() -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    total, sent = 400, 0

    async def flow(server: RawHttpServer, peer: RawConnection) -> None:
        nonlocal sent
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for sent in range(1, total + 1):  # noqa: B007
            peer.send(chunk)
            await peer.writer.drain()
        peer.send(b"0\r\n\r\n")

    async with raw_http_server(flow) as server, transport(server) as client:
        size = 0
        async with client.stream(get(), idle_timeout=100) as pieces:
            before = -1
            while before != sent:  # until the server is stuck
                before = sent
                await asyncio.sleep(0.05)
            assert sent < total
            async for piece in pieces():
                size += len(piece)
        assert size == total * 65536


async def test_fence_is_checked_immediately_before_the_write() -> None:
    class NotNowError(Exception):
        pass

    connections: list[int] = []
    closed = False

    async with raw_http_server() as server:

        def fence() -> None:
            connections.append(server.connections)
            if closed:
                raise NotNowError

        async with transport(server, replace(OPTIONS, fence=fence)) as client:
            await client.send(post())
            assert connections[-1] == 1  # it was there when the fence was asked last
            closed = True
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                with pytest.raises(NotNowError):
                    await client.send(ApiRequest(method, "/x", b"{}"))
            assert await client.send(get()) == b"{}"
        assert [raw.split()[0] for raw in server.requests] == [b"POST", b"GET"]
        assert server.connections == 1


# Proxies.


def connect_proxy_to(server: RawHttpServer, *, requests: list[bytes]) -> Callable[..., "object"]:
    """A proxy handler that opens tunnels to *server*."""

    async def tunnel(_: RawHttpServer, peer: RawConnection) -> None:
        requests.append(await peer.request())
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        peer.send(b"HTTP/1.1 200 Connection established\r\nVia: us\r\n\r\n")

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(copy(peer.reader, writer), copy(reader, peer.writer))

    return tunnel


def tls_of(keys: pki.Pki) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(keys.server.certificate, keys.server.key)
    return context


def transport_through(proxy: RawHttpServer, server: str, ca: bytes = b"") -> Credentials:
    address = f"http://me:p%40ss@127.0.0.1:{proxy.port}"
    return Credentials(server=server, ca_data=ca, proxy=address, token="t")


async def test_proxy_tunnel_hides_secrets_from_the_proxy(tmp_path: Path) -> None:
    keys, requests = pki.ensure(tmp_path), list[bytes]()
    async with raw_http_server(tls=tls_of(keys)) as server:
        async with raw_http_server(connect_proxy_to(server, requests=requests)) as proxy:  # type: ignore[arg-type]
            url = f"https://127.0.0.1:{server.port}"
            credentials = transport_through(proxy, url, keys.ca_data)
            async with transport(server, credentials=credentials) as client:
                assert await client.send(post()) == b"{}"
                assert await client.send(get()) == b"{}"
        target = f"127.0.0.1:{server.port}"
        assert [raw.decode() for raw in requests] == [
            f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
            "Proxy-Authorization: Basic bWU6cEBzcw==\r\n\r\n"
        ]
        assert len(server.requests) == 2
        assert b"Proxy" not in server.requests[0]


async def test_plain_http_proxy_requests_use_absolute_urls() -> None:
    async with raw_http_server() as proxy:
        credentials = transport_through(proxy, "http://api.example:8080/base")
        async with transport(proxy, credentials=credentials) as client:
            assert await client.send(get("/x")) == b"{}"
        lines = proxy.requests[0].decode().split("\r\n")
        assert lines[:2] == [
            "GET http://api.example:8080/base/x HTTP/1.1",
            "Host: api.example:8080",
        ]
        assert "Proxy-Authorization: Basic bWU6cEBzcw==" in lines


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"HTTP/1.1 200 OK\r\n\r\nsurprise", "data after the response"),
        (b"x" * 20000, "too long"),
        (b"HTTP/1.1 200", "connection closed"),
    ],
)
async def test_refused_tunnel_raises_connection_lost(
    tmp_path: Path, response: bytes, reason: str
) -> None:
    async def refuse(_: RawHttpServer, peer: RawConnection) -> None:
        await peer.request()
        peer.send(response)

    ca = pki.ensure(tmp_path).ca_data
    async with raw_http_server(refuse) as proxy:
        credentials = transport_through(proxy, "https://127.0.0.1:1", ca)
        async with transport(proxy, credentials=credentials) as client:
            with pytest.raises(ConnectionLostError, match=reason):
                await client.send(post())


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "https://127.0.0.1:3128", "http://"])
async def test_unsupported_proxy_scheme_is_rejected(proxy: str) -> None:
    credentials = Credentials(server="https://127.0.0.1:1", proxy=proxy)
    with pytest.raises(ConfigError, match="http"):
        Client(credentials, user_agent="tests")


# Origins.


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://api.example:6443", "api.example:6443", ""),
        ("https://api.example:443/", "api.example", ""),
        ("http://API.example/k8s/c/", "api.example", "/k8s/c"),
        ("https://[::1]:6443", "[::1]:6443", ""),
        ("https://bücher.example", "xn--bcher-kva.example", ""),
    ],
)
def test_origin_is_parsed_from_a_url(url: str, authority: str, path: str) -> None:
    origin = Origin.parse(url)
    assert (origin.authority, origin.path) == (authority, path)


@pytest.mark.parametrize("url", ["", "ftp://x", "https://", "https://x:port", "https://[::1"])
def test_invalid_server_url_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError):
        Origin.parse(url)


# The loop of the test's coroutines.


def test_transport_works_on_uvloop(tmp_path: Path) -> None:
    keys = pki.ensure(tmp_path)

    async def hold_one(server: RawHttpServer, peer: RawConnection) -> None:
        while b" /held " not in (request := await peer.request()):
            server.requests.append(request)
            peer.send(OK)
        await peer.reader.read()

    async def scenario() -> None:
        async with raw_http_server(hold_one, tls=tls_of(keys)) as server:
            credentials = Credentials(
                server=f"https://127.0.0.1:{server.port}", ca_data=keys.ca_data
            )
            async with transport(server, timeout=0.5, credentials=credentials) as client:
                with pytest.raises(RequestTimeoutError):
                    await client.send(get("/held"))
            async with transport(server, credentials=credentials) as client:
                bodies = await asyncio.gather(
                    *(client.send(post(b"x" * 300_000)) for _ in range(9))
                )
                assert bodies == [b"{}"] * 9
                async with client.stream(get(), idle_timeout=100) as pieces:
                    assert [piece async for piece in pieces()] == [b"{}"]
        with pytest.raises(ConnectionLostError):
            async with transport(server, credentials=credentials) as client:
                await client.send(post())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
