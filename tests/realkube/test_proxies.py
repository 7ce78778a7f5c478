"""The proxies of the tests of chaos do what they say, on a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.embedded_apiserver import MAPS, config_map
from support.fault_proxy import Fate, HttpProxy, Refusal, TcpProxy, at_random
from support.polling import PATIENCE, until, until_true
from support.realkube import RealServer, real_server

from batholith.kube.client.client import Client
from batholith.kube.errors import ConflictError, ConnectionLostError, TooManyRequestsError
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS


@asynccontextmanager
async def through(
    server: RealServer, url: str, *, patience: float = PATIENCE
) -> AsyncIterator[Client]:
    """A client that goes through a proxy and waits so many seconds for an answer."""
    credentials = replace(server.credentials, server=url)
    async with Client(credentials, user_agent="tests", timeout=patience) as client:
        yield client


IMPATIENT = 1.0
"""Seconds to wait for an answer that must not come."""


class ConfigMap(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


async def make(client: Client, name: str) -> None:
    await client.create(CONFIGMAPS, config_map(name), namespace="default")


async def there(server: RealServer, name: str) -> bool:
    return (await server.request("GET", f"{MAPS}/{name}")).status == 200


async def test_bytes_are_passed_on_dropped_and_held(tmp_path: Path) -> None:
    async with (
        real_server(tmp_path) as server,
        TcpProxy(server.kube.port) as proxy,
        through(server, proxy.url) as client,
        through(server, proxy.url, patience=IMPATIENT) as impatient,
    ):
        await make(client, "passed")
        proxy.drop()
        with pytest.raises(ConnectionLostError):
            await make(client, "dropped")
        proxy.resume()
        proxy.slow(0.01)
        await make(client, "slow")
        proxy.hang()
        with pytest.raises(ConnectionLostError):
            await make(impatient, "hung")
        assert not await there(server, "hung")
        proxy.resume()
        await make(client, "after")
        proxy.hang(requests=False)
        making = asyncio.create_task(make(client, "answerless"))
        await until_true(lambda: there(server, "answerless"))
        assert not making.done()
        proxy.drop()
        with pytest.raises(ConnectionLostError):
            await making
        assert [await there(server, name) for name in ("passed", "dropped", "slow")] == [
            True, False, True,
        ]  # fmt: skip


async def test_a_watch_comes_through_both(tmp_path: Path) -> None:
    async with (
        real_server(tmp_path) as server,
        TcpProxy(server.kube.port) as plain,
        HttpProxy(plain.url, ca=server.ca, own=server.kube.pki.server) as proxy,
        through(server, proxy.url) as client,
    ):
        names: list[str] = []

        async def watch() -> None:
            async for event in client.watch(CONFIGMAPS, view=ConfigMap, namespace="default"):
                names.append(event.object.metadata.name)  # noqa: PERF401 - waited for below

        watching = asyncio.create_task(watch())
        await server.create(MAPS, config_map("seen"))
        await until(lambda: "seen" in names)
        watching.cancel()


async def test_requests_are_refused_lost_and_held(tmp_path: Path) -> None:
    async with (
        real_server(tmp_path) as server,
        HttpProxy(server.url, ca=server.ca, own=server.kube.pki.server) as proxy,
        through(server, proxy.url) as client,
    ):
        await make(client, "passed")
        for verdict, error in (
            (Refusal(409, "Conflict"), ConflictError),
            (Refusal(429, "TooManyRequests"), TooManyRequestsError),
            (Fate.LOST_BEFORE, ConnectionLostError),
            (Fate.LOST_AFTER, ConnectionLostError),
        ):
            proxy.judge = lambda method, path, verdict=verdict: verdict  # type: ignore[misc]
            with pytest.raises(error):
                await make(client, str(error.__name__).lower())
        assert proxy.spoilt == 4
        assert not await there(server, "conflicterror")
        assert await there(server, "connectionlosterror")

        proxy.judge = lambda method, path: None
        proxy.hold(requests=True)
        making = asyncio.create_task(make(client, "late"))
        await until(lambda: proxy.held == 1)
        making.cancel()
        await asyncio.wait({making})
        assert (making.cancelled(), proxy.held) == (True, 1), "its sender has given it up"
        assert not await there(server, "late")
        proxy.release()
        await until_true(lambda: there(server, "late"))


def test_chance_has_a_seed_and_a_share() -> None:
    one, same, never = at_random(0.3, seed=7), at_random(0.3, seed=7), at_random(0, seed=7)
    fates = [one("PATCH", "/x") for _ in range(1000)]
    assert fates == [same("PATCH", "/x") for _ in range(1000)]
    assert 200 < sum(fate is not None for fate in fates) < 400
    assert not any(never("GET", "/x") for _ in range(100))
