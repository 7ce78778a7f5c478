"""Health and metrics endpoints."""

import asyncio
import contextlib
import ssl
import threading
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from support.polling import wait_for

from batholith.cli import health as module
from batholith.cli.health import (
    CannotListenError,
    Endpoint,
    Health,
    serve_endpoints,
    split_host_port,
    tls_context,
)
from batholith.httpserver.limits import Limits
from batholith.httpserver.metrics import ListenerMetrics
from batholith.local.supervisor import pki

OPEN = "batholith_http_connections"


@dataclass
class FakeElector:
    """An elector in any state."""

    elected: asyncio.Event = field(default_factory=asyncio.Event)
    holder: str = ""
    overdue: bool = False

    def healthy(self) -> bool:
        return not self.overdue


@dataclass
class FakeInformer:
    name: str
    synced: bool = False
    stale_seconds: float = 0.0
    is_absent: bool = False


@dataclass
class HealthWorld:
    candidate: FakeElector = field(default_factory=FakeElector)
    informers: list[FakeInformer] = field(default_factory=list)
    health: Health = field(default_factory=Health)
    session: aiohttp.ClientSession | None = None
    port: int = 0

    async def get(self, path: str, *, method: str = "GET") -> tuple[int, str]:
        assert self.session is not None
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.session.request(method, url) as response:
            return response.status, await response.text()


@pytest.fixture
async def world() -> AsyncIterator[HealthWorld]:
    world = HealthWorld()
    world.health.add_informer_check(lambda: world.informers)
    world.health.add_leader_check(world.candidate)
    endpoint = Endpoint(address="127.0.0.1:0", health=world.health)
    async with (
        serve_endpoints([endpoint]) as [world.port],
        aiohttp.ClientSession() as world.session,
    ):
        yield world


async def test_ready_once_informers_are_synced_and_it_leads(world: HealthWorld) -> None:
    assert await world.get("/readyz") == (
        503,
        "[-]caches: not started yet\n[-]leader: not leading, and no leader observed\n",
    )
    world.informers += [FakeInformer("pods"), FakeInformer("jobs.batch.volcano.sh")]
    world.candidate.elected.set()
    expected = "[-]caches: not synced yet: jobs.batch.volcano.sh, pods\n"
    assert await world.get("/readyz") == (503, expected)
    for cache in world.informers:
        cache.synced = True
    assert await world.get("/readyz") == (200, "ok")


async def test_resources_that_the_cluster_may_lack_do_not_prevent_readiness(
    world: HealthWorld,
) -> None:
    world.candidate.elected.set()
    world.informers += [FakeInformer("pods", synced=True), FakeInformer("groups")]
    assert (await world.get("/readyz"))[0] == 503
    world.informers[1].is_absent, world.informers[1].stale_seconds = True, 999.0
    assert await world.get("/readyz") == (200, "ok")


async def test_not_ready_while_informers_are_stale(world: HealthWorld) -> None:
    world.candidate.elected.set()
    world.informers += [FakeInformer("pods", synced=True), FakeInformer("jobs", synced=True)]
    for cache in world.informers:
        cache.stale_seconds = 59.0
    assert await world.get("/readyz") == (200, "ok")
    world.informers[0].stale_seconds = 61.0
    assert await world.get("/readyz") == (503, "[-]caches: stale for 61 s: pods\n")
    assert await world.get("/livez") == (200, "ok")


async def test_verbose_names_the_leader(world: HealthWorld) -> None:
    world.candidate.holder = "another"
    assert "[+]leader ok: standby, leader is another" in (await world.get("/readyz?verbose"))[1]
    world.candidate.elected.set()
    assert "[+]leader ok: leading\n" in (await world.get("/readyz?verbose"))[1]


async def test_a_standby_is_ready_once_it_has_observed_a_leader(world: HealthWorld) -> None:
    world.informers.append(FakeInformer("pods", synced=True))
    assert (await world.get("/readyz"))[0] == 503
    world.candidate.holder = "another"
    assert (await world.get("/readyz"))[0] == 200


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/healthz/ping", "/livez/ping"])
async def test_live_before_it_is_ready(world: HealthWorld, path: str) -> None:
    assert await world.get(path) == (200, "ok")
    assert (await world.get(path, method="HEAD"))[0] == 200


async def test_a_leader_with_an_expired_lease_fails_livez(world: HealthWorld) -> None:
    world.candidate.elected.set()
    world.candidate.overdue = True
    line = "[-]leader-election: leading, but lease not renewed in time\n"
    for path in ("/healthz", "/livez", "/livez/leader-election"):
        assert await world.get(path) == (503, line)
    assert (await world.get("/readyz"))[1].startswith(line)
    assert await world.get("/healthz/ping") == (200, "ok")


async def test_a_condition_is_listed_and_fails_only_by_name(world: HealthWorld) -> None:
    problem = ""
    world.informers.append(FakeInformer("pods", synced=True))
    world.candidate.elected.set()
    world.health.conditions["plugins"] = lambda: problem
    assert await world.get("/readyz/plugins") == (200, "ok")
    problem = "one is disabled"
    status, text = await world.get("/readyz?verbose")
    assert status == 200
    assert "[-]plugins: one is disabled\n" in text
    assert text.endswith("readyz check passed\n")
    assert (await world.get("/readyz"))[0] == 200
    assert (await world.get("/readyz/plugins"))[0] == 503
    assert "plugins" not in (await world.get("/livez?verbose"))[1]
    assert (await world.get("/livez/plugins"))[0] == 404


async def test_verbose_lists_every_check(world: HealthWorld) -> None:
    world.informers.append(FakeInformer("pods", synced=True))
    status, text = await world.get("/readyz?verbose")
    assert (status, text.splitlines()) == (
        503,
        [
            "[+]ping ok",
            "[+]leader-election ok",
            "[+]caches ok",
            "[-]leader: not leading, and no leader observed",
            "readyz check failed",
        ],
    )
    assert (await world.get("/livez?verbose"))[1].endswith("livez check passed\n")


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz/nosuch", "/livez/caches", "/health"])
async def test_unknown_paths_are_404(world: HealthWorld, path: str) -> None:
    assert (await world.get(path))[0] == 404


async def test_only_get_and_head_are_allowed(world: HealthWorld) -> None:
    assert (await world.get("/healthz", method="POST"))[0] == 405


async def test_a_stuck_loop_fails_the_probe() -> None:
    """The loop that works also serves probes, so that a probe times out."""
    endpoint = Endpoint(address="127.0.0.1:0", health=Health())
    seen: list[str] = []
    done, go = threading.Event(), threading.Event()

    def probe(port: int) -> None:
        go.wait()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=0.3) as response:
                seen.append(str(response.status))
        except TimeoutError:
            seen.append("no response")
        done.set()

    async with serve_endpoints([endpoint]) as [port]:
        thread = threading.Thread(target=probe, args=(port,))
        thread.start()
        go.set()
        done.wait()  # on the loop itself: nothing else runs here until the probe has given up
        thread.join()
    assert seen == ["no response"]


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_TIMEOUT", 0.05)
    async with serve_endpoints([Endpoint(address="127.0.0.1:0", health=Health())]) as [port]:
        for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()


async def test_a_connection_serves_one_request() -> None:
    async with serve_endpoints([Endpoint(address="127.0.0.1:0", health=Health())]) as [port]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        response = await reader.read()
        writer.close()
    assert response.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in response.lower()


async def test_metrics_are_served_with_health_or_at_a_separate_address() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc()
    endpoints = [
        Endpoint(address="127.0.0.1:0", registry=registry),
        Endpoint(address="localhost:0", health=Health(), registry=registry),
    ]
    async with serve_endpoints(endpoints) as ports, aiohttp.ClientSession() as session:
        for port in ports:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                assert response.status == 200
                assert response.headers["Content-Type"].startswith("text/plain; version=")
                assert "things_total 1.0" in await response.text()
        async with session.get(f"http://127.0.0.1:{ports[0]}/healthz") as response:
            assert response.status == 404
        async with session.get(f"http://127.0.0.1:{ports[1]}/healthz") as response:
            assert response.status == 200


async def test_a_common_address_is_bound_once() -> None:
    registry = CollectorRegistry()
    endpoints = [
        Endpoint(address="127.0.0.1:0", health=Health()),
        Endpoint(address="127.0.0.1:0", registry=registry),
    ]
    async with serve_endpoints(endpoints) as ports, aiohttp.ClientSession() as session:
        [port] = ports
        for path in ("healthz", "metrics"):
            async with session.get(f"http://127.0.0.1:{port}/{path}") as response:
                assert response.status == 200


async def test_an_address_in_use_is_reported() -> None:
    async with serve_endpoints([Endpoint(address="127.0.0.1:0", health=Health())]) as [port]:
        with pytest.raises(CannotListenError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with serve_endpoints([Endpoint(address=f"127.0.0.1:{port}", health=Health())]):
                pass


async def test_health_over_tls_when_all_three_files_are_given(tmp_path: Path) -> None:
    keys = pki.ensure(tmp_path)
    files = {
        "client_ca": str(keys.ca),
        "certificate": str(keys.server.certificate),
        "key": str(keys.server.key),
    }
    assert tls_context(**{**files, "key": ""}) is None
    endpoint = Endpoint(address="127.0.0.1:0", health=Health(), tls=tls_context(**files))
    client = ssl.create_default_context(cafile=str(keys.ca))
    known = ssl.create_default_context(cafile=str(keys.ca))
    known.load_cert_chain(keys.client.certificate, keys.client.key)
    old = ssl.create_default_context(cafile=str(keys.ca))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("AES128-SHA256")
    async with serve_endpoints([endpoint]) as [port], aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{port}/healthz"
        for context in (client, known):
            async with session.get(url, ssl=context) as response:
                assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url, ssl=old)


@pytest.mark.parametrize(
    ("address", "wanted"),
    [(":8081", ("", 8081)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80))],
)
def test_addresses(address: str, wanted: tuple[str, int]) -> None:
    assert split_host_port(address) == wanted


async def test_limits_and_rejections_are_in_the_metrics() -> None:
    registry = CollectorRegistry()
    endpoint = Endpoint(
        address="127.0.0.1:0",
        registry=registry,
        limits=Limits(connections=1),
        listener_metrics=ListenerMetrics(registry),
    )
    async with serve_endpoints([endpoint]) as [port], aiohttp.ClientSession() as session:
        half_open = await asyncio.open_connection("127.0.0.1", port)
        await wait_for(lambda: registry.get_sample_value(OPEN, {"listener": "metrics"}) == 1)
        async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
            text = await response.text()
        assert 'batholith_http_refused_total{listener="metrics",reason="evicted"} 1.0' in text
        with contextlib.suppress(ConnectionError):
            assert await half_open[0].read() == b""
        half_open[1].close()
