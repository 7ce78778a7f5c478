"""The HyperNode controller on an API server, with kopf."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.admission import hypernode, member
from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, Server
from support.polling import wait_for, wait_until_true

from batholith.hypernode_ctrl import operator
from batholith.hypernode_ctrl.configuration import CONFIGMAP, KEY
from batholith.hypernode_ctrl.controller import HyperNodeController, HyperNodeSettings
from batholith.hypernode_ctrl.discovery import SOURCE
from batholith.kube.client import aiohttp_session
from batholith.kube.client.aiohttp_session import new_session
from batholith.kube.informer.informer import Informer
from batholith.model import crds
from batholith.model.names import CONFIGMAPS, HYPERNODES, NODES

Json = dict[str, Any]
LABELS = {"networkTopologyTypes": {"net": [{"nodeLabel": "rack"}, {"nodeLabel": "host"}]}}

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[asyncio.Task[None]]:
    """Run the controller."""
    async with server.client() as client:
        settings = HyperNodeSettings(namespace="default", delay=0.02)
        task = asyncio.create_task(HyperNodeController(client, settings=settings).run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


async def add_node(server: Server, name: str, **labels: str) -> None:
    await server.create(NODES.path(), {"metadata": {"name": name, "labels": labels}})


async def node_count(server: Server, name: str) -> int | None:
    found = await server.get(HYPERNODES.path(name=name))
    count: int | None = found.get("status", {}).get("nodeCount")
    return count


async def wait_count(server: Server, name: str, count: int) -> None:
    async def holds() -> bool:
        return await node_count(server, name) == count

    await wait_until_true(holds)


async def discovered(server: Server) -> dict[str, set[str]]:
    """The nodes of each discovered HyperNode, by the value of its label."""
    items = (await server.get(HYPERNODES.path()))["items"]
    return {
        each["metadata"]["labels"]["rack"]: {
            one["selector"]["exactMatch"]["name"] for one in each["spec"]["members"]
        }
        for each in items
        if each["metadata"].get("labels", {}).get(SOURCE) == "label"
    }


async def wait_discovered(server: Server, **racks: set[str]) -> None:
    async def holds() -> bool:
        return await discovered(server) == racks

    await wait_until_true(holds)


async def only(server: Server) -> str:
    """Return the name of the only HyperNode."""
    (item,) = (await server.get(HYPERNODES.path()))["items"]
    name: str = item["metadata"]["name"]
    return name


async def configure(server: Server, config: Json | None) -> None:
    """Write the configuration of discovery; ``None`` switches it off."""
    source = {"source": "label", "enabled": config is not None, "config": config}
    data = {KEY: yaml.safe_dump({"networkTopologyDiscovery": [source]})}
    path = CONFIGMAPS.path("default", CONFIGMAP)
    response = await server.request("PATCH", path, {"data": data}, content_type=MERGE)
    if response.status == 404:
        metadata = {"name": CONFIGMAP}
        await server.create(CONFIGMAPS.path("default"), {"metadata": metadata, "data": data})


def _kopf_tasks() -> set[asyncio.Task[Any]]:
    return {each for each in asyncio.all_tasks() if "/kopf/" in _file_of(each)}


def _file_of(task: asyncio.Task[Any]) -> str:
    code = getattr(task.get_coro(), "cr_code", None)
    return code.co_filename if code is not None else ""


async def _kopf_watches() -> bool:
    """Whether kopf knows what there is: its discovery has tasks that it does not cancel."""
    return any(each.get_name().startswith("watcher for") for each in _kopf_tasks())


async def test_nodes_are_counted_and_counted_again_when_nodes_or_members_change(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server:
        await add_node(server, "n0", rack="a")
        selector = {"matchLabels": {"rack": "a"}}
        await server.create(HYPERNODES.path(), hypernode("a", member(labelMatch=selector)))
        above = hypernode("b", member("a", of="HyperNode"), member("n9"), tier=2)
        await server.create(HYPERNODES.path(), above)
        async with running(server):
            await wait_count(server, "b", 1)
            await add_node(server, "n1", rack="a")
            await wait_count(server, "a", 2)
            await add_node(server, "n9")
            await wait_count(server, "b", 3)
            await server.request("DELETE", NODES.path(name="n0"))
            await wait_count(server, "b", 2)
            found = await server.get(HYPERNODES.path(name="b"))
        assert found["spec"] == above["spec"]
        assert not {"annotations", "finalizers", "labels"} & found["metadata"].keys()


async def test_hypernodes_are_discovered_by_labels_and_deleted_when_that_is_switched_off(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server:
        for index in range(3):
            await add_node(server, f"n{index}", rack=f"r{index // 2}")
        await server.create(HYPERNODES.path(), hypernode("own", member("n0")))
        await configure(server, LABELS)
        async with running(server):
            await wait_discovered(server, r0={"n0", "n1"}, r1={"n2"})
            change = {"metadata": {"labels": {"rack": "r1"}}}
            await server.request("PATCH", NODES.path(name="n1"), change, content_type=MERGE)
            await wait_discovered(server, r0={"n0"}, r1={"n1", "n2"})
            await configure(server, None)
            await wait_discovered(server)
            assert (await server.get(HYPERNODES.path(name="own")))["spec"]["tier"] == 1


async def test_a_discovered_hypernode_that_a_user_changes_or_deletes_is_restored(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server:
        await add_node(server, "n0", rack="r0")
        await configure(server, LABELS)
        async with running(server):
            await wait_discovered(server, r0={"n0"})
            path = HYPERNODES.path(name=await only(server))
            change = {"spec": {"members": [member("n7")]}}
            await server.request("PATCH", path, change, content_type=MERGE)
            await wait_discovered(server, r0={"n0"})
            await server.request("DELETE", path)
            await wait_discovered(server, r0={"n0"})


class HeldList:
    """kopf's list of HyperNodes, which waits for :attr:`released`."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.others_watched = asyncio.Event()
        """Set when kopf has listed the other kinds, and watches them."""
        self._unwatched = {NODES.plural, CONFIGMAPS.plural}

    async def new_session(self, *args: Any, **options: Any) -> tuple[str, aiohttp.ClientSession]:
        server, session = await new_session(*args, **options)
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._on_request)
        trace.freeze()
        session.trace_configs.append(trace)
        return server, session

    async def _on_request(
        self, _: aiohttp.ClientSession, __: object, params: aiohttp.TraceRequestStartParams
    ) -> None:
        if "watch" in params.url.query:
            self._unwatched.discard(params.url.name)
            if not self._unwatched:
                self.others_watched.set()
        elif params.url.path == HYPERNODES.path():
            await self.released.wait()


async def test_a_hypernode_that_is_deleted_while_kopf_starts_is_restored(
    servers: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldList()
    monkeypatch.setattr(aiohttp_session, "new_session", held.new_session)
    async with servers.start(tmp_path, crds=crds.load()) as server:
        await add_node(server, "n0", rack="r0")
        await configure(server, LABELS)
        async with running(server):
            await wait_discovered(server, r0={"n0"})
            await wait_count(server, (await only(server)), 1)
            await held.others_watched.wait()
            deleted = await server.request("DELETE", HYPERNODES.path(name=await only(server)))
            assert deleted.status == 200
            held.released.set()
            await wait_discovered(server, r0={"n0"})


@pytest.mark.parametrize("first", ["HyperNode", "configuration"])
async def test_kopf_runs_from_the_first_hypernode_or_configuration_on(
    servers: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    imported, informers = asyncio.Event(), list[Informer[Any]]()
    import_kopf = operator.import_kopf

    async def note_import() -> None:
        imported.set()
        await import_kopf()

    def note_informer(*args: Any, **scope: Any) -> Informer[Any]:
        informers.append(Informer(*args, **scope))
        return informers[-1]

    async def has_listed() -> bool:
        return len(informers) == 2 and all(each.stats().lists for each in informers)

    monkeypatch.setattr(operator, "import_kopf", note_import)
    monkeypatch.setattr(operator, "Informer", note_informer)
    async with servers.start(tmp_path, crds=crds.load()) as server:
        await add_node(server, "n0", rack="r0")
        async with running(server):
            await wait_until_true(has_listed)
            assert not imported.is_set()
            if first == "HyperNode":
                await server.create(HYPERNODES.path(), hypernode("a", member("n0")))
                await wait_count(server, "a", 1)
            else:
                await configure(server, LABELS)
                await wait_discovered(server, r0={"n0"})
            await imported.wait()


async def test_it_stops_at_once_and_leaves_other_tasks_and_the_signals_of_the_process_alone(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """kopf by its own main function would cancel all tasks that were created after it."""
    async with servers.start(tmp_path, crds=crds.load()) as server:
        await server.create(HYPERNODES.path(), hypernode("a", member("n0")))
        before = signal.getsignal(signal.SIGTERM)
        async with running(server) as task:
            await wait_until_true(_kopf_watches)
            assert signal.getsignal(signal.SIGTERM) == before
            other = asyncio.create_task(asyncio.Event().wait())
            mine = _kopf_tasks()
            task.cancel()
            await asyncio.wait([task])
            assert all(each.done() for each in mine)
            assert not other.done()
            other.cancel()


def test_the_end_of_the_process_does_not_wait_for_the_import_of_kopf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, ended = threading.Event(), threading.Event()

    def import_module(_: str) -> None:
        started.set()
        ended.wait()

    monkeypatch.setattr(operator, "import_module", import_module)

    async def stop_while_importing() -> None:
        task = asyncio.create_task(operator.import_kopf())
        await wait_for(started.is_set)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(stop_while_importing())
    ended.set()


async def test_a_replica_that_does_not_lead_watches_and_writes_nothing(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server, server.client() as client:
        await server.create(HYPERNODES.path(), hypernode("a", member("n0")))
        ready, elected = asyncio.Event(), asyncio.Event()
        controller = HyperNodeController(client, settings=HyperNodeSettings(delay=0.02))
        task = asyncio.create_task(controller.run(ready=ready, elected=elected))
        await ready.wait()
        assert not _kopf_tasks()
        assert await node_count(server, "a") is None
        elected.set()
        await wait_count(server, "a", 0)
        task.cancel()
        await asyncio.wait([task])
