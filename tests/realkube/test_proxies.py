"""The fault proxies of the chaos tests, on a real API server."""

import asyncio
import gc
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.api_servers import RealServerFactory
from support.embedded_apiserver import MAPS, config_map
from support.fault_proxy import ErrorResponse, FaultKind, HttpProxy, TcpProxy, random_faults
from support.polling import DEFAULT_TIMEOUT, wait_for, wait_until_true
from support.realkube import RealServer

from batholith.kube.client.client import Client
from batholith.kube.errors import ConflictError, ConnectionLostError, TooManyRequestsError
from batholith.local.supervisor import pki
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS


@pytest.fixture
async def server(real: RealServerFactory, tmp_path: Path) -> AsyncIterator[RealServer]:
    async with real.start(tmp_path) as started:
        assert isinstance(started, RealServer)
        yield started


@asynccontextmanager
async def client_through(
    server: RealServer, url: str, *, timeout: float = DEFAULT_TIMEOUT
) -> AsyncIterator[Client]:
    """A client with a response timeout of *seconds*, connected through a proxy."""
    credentials = replace(server.credentials, server=url)
    async with Client(credentials, user_agent="tests", timeout=timeout) as client:
        yield client


SHORT_TIMEOUT = 1.0
"""Seconds to wait for a response that must not arrive."""


class ConfigMap(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


async def create(client: Client, name: str) -> None:
    await client.create(CONFIGMAPS, config_map(name), namespace="default")


async def exists(server: RealServer, name: str) -> bool:
    return (await server.request("GET", f"{MAPS}/{name}")).status == 200


def test_a_client_that_stays_connected_is_disconnected_at_the_end(tmp_path: Path) -> None:
    certs = pki.ensure(tmp_path, names=("127.0.0.1",))
    tls = ssl.create_default_context(cadata=certs.ca_data.decode())

    async def connect_to_proxy() -> ssl.SSLSocket:
        async with HttpProxy("https://127.0.0.1:1", ca=certs.ca_data, own=certs.server) as proxy:
            proxy.fault_policy = lambda method, path: ErrorResponse(500, "InternalError")
            return await asyncio.to_thread(keep_connection, urlsplit(proxy.url).port or 0)

    def keep_connection(port: int) -> ssl.SSLSocket:
        connection = socket.create_connection(("127.0.0.1", port))
        client = tls.wrap_socket(connection, server_hostname="127.0.0.1")
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 500 ")
        return client

    with (
        warnings.catch_warnings(record=True, category=ResourceWarning) as caught,
        asyncio.run(connect_to_proxy()),
    ):
        gc.collect()
    assert not list(map(str, caught))


async def test_bytes_are_passed_on_dropped_and_held(server: RealServer) -> None:
    async with (
        TcpProxy(server.kube.port) as proxy,
        client_through(server, proxy.url) as client,
        client_through(server, proxy.url, timeout=SHORT_TIMEOUT) as impatient,
    ):
        await create(client, "passed")
        proxy.drop()
        with pytest.raises(ConnectionLostError):
            await create(client, "dropped")
        proxy.resume()
        proxy.delay(0.01)
        await create(client, "slow")
        proxy.hang()
        with pytest.raises(ConnectionLostError):
            await create(impatient, "hung")
        assert not await exists(server, "hung")
        proxy.resume()
        await create(client, "after")
        proxy.hang(requests=False)
        creating = asyncio.create_task(create(client, "answerless"))
        await wait_until_true(lambda: exists(server, "answerless"))
        assert not creating.done()
        proxy.drop()
        with pytest.raises(ConnectionLostError):
            await creating
        assert [await exists(server, name) for name in ("passed", "dropped", "slow")] == [
            True, False, True,
        ]  # fmt: skip


async def test_a_watch_comes_through_both(server: RealServer) -> None:
    async with (
        TcpProxy(server.kube.port) as plain,
        HttpProxy(plain.url, ca=server.ca, own=server.kube.pki.server) as proxy,
        client_through(server, proxy.url) as client,
    ):
        names: list[str] = []

        async def watch() -> None:
            async for event in client.watch(CONFIGMAPS, view=ConfigMap, namespace="default"):
                names.append(event.object.metadata.name)  # noqa: PERF401 - waited for below

        watching = asyncio.create_task(watch())
        await server.create(MAPS, config_map("seen"))
        await wait_for(lambda: "seen" in names)
        watching.cancel()


async def test_requests_are_refused_lost_and_held(server: RealServer) -> None:
    async with (
        HttpProxy(server.url, ca=server.ca, own=server.kube.pki.server) as proxy,
        client_through(server, proxy.url) as client,
    ):
        await create(client, "passed")
        for fault, error in (
            (ErrorResponse(409, "Conflict"), ConflictError),
            (ErrorResponse(429, "TooManyRequests"), TooManyRequestsError),
            (FaultKind.DROP_REQUEST, ConnectionLostError),
            (FaultKind.DROP_RESPONSE, ConnectionLostError),
        ):
            proxy.fault_policy = lambda method, path, fault=fault: fault  # type: ignore[misc]
            with pytest.raises(error):
                await create(client, str(error.__name__).lower())
        assert proxy.faults_injected == 4
        assert not await exists(server, "conflicterror")
        assert await exists(server, "connectionlosterror")

        proxy.fault_policy = lambda method, path: None
        proxy.hold(requests=True)
        creating = asyncio.create_task(create(client, "delayed"))
        await wait_for(lambda: proxy.held == 1)
        creating.cancel()
        await asyncio.wait({creating})
        assert (creating.cancelled(), proxy.held) == (True, 1), "its client has cancelled it"
        assert not await exists(server, "delayed")
        proxy.release()
        await wait_until_true(lambda: exists(server, "delayed"))


def test_chance_has_a_seed_and_a_share() -> None:
    one, same, never = (
        random_faults(0.3, seed=7),
        random_faults(0.3, seed=7),
        random_faults(0, seed=7),
    )
    fates = [one("PATCH", "/x") for _ in range(1000)]
    assert fates == [same("PATCH", "/x") for _ in range(1000)]
    assert 200 < sum(fate is not None for fate in fates) < 400
    assert not any(never("GET", "/x") for _ in range(100))
