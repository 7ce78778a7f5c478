"""Work on many objects yields to other tasks, and lists are consistent snapshots."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.embedded_apiserver import (
    FOOS,
    MAPS,
    EmbeddedServer,
    definition,
    embedded_server,
    wait_deleted,
)
from support.polling import wait_until_true

from batholith.local.apiserver.controllers.garbage_collector import GarbageCollector
from batholith.local.apiserver.http.auth import APISERVER_USER
from batholith.local.apiserver.http.requests import ObjectPath
from batholith.local.apiserver.printing import tables
from batholith.local.apiserver.storage import object_store
from batholith.local.apiserver.storage.object_store import ObjectStore
from batholith.local.apiserver.storage.slices import PARSED_SLICE_SIZE, slices
from batholith.local.apiserver.storage.stored_objects import StoredObject
from batholith.local.apiserver.verbs import render
from batholith.local.apiserver.verbs.render import Renderer
from batholith.local.apiserver.verbs.write_requests import WriteRequest

Json = dict[str, Any]
SECRETS = "/api/v1/namespaces/default/secrets"
NAMESPACES = "/api/v1/namespaces"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
METADATA = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
STREAM = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
MANY = 2 * PARSED_SLICE_SIZE + 50


class LoopIterations:
    """Counts calls per iteration of the event loop."""

    def __init__(self) -> None:
        self._iteration = 0
        self._done: Counter[int] = Counter()
        self._over = False
        self._next()

    def _next(self) -> None:
        self._iteration += 1
        if not self._over:
            asyncio.get_running_loop().call_soon(self._next)

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **options: Any) -> Any:
            self._done[self._iteration] += 1
            return function(*args, **options)

        return count

    def counted_parse(self) -> Callable[[StoredObject], Json]:
        """Count the objects of `fill`: controllers parse others, at any time."""
        parse = StoredObject.parse
        counted = self.counted(parse)
        return lambda entry: (counted if entry.name[1:].isdigit() else parse)(entry)

    @contextmanager
    def assert_at_most(self, limit: int, *, of: int) -> Iterator[None]:
        """Check that no iteration has more than *limit* calls, of at least *of* in total."""
        self._done.clear()
        yield
        assert self._done.total() >= of
        assert max(self._done.values()) <= limit

    def end(self) -> None:
        self._over = True


@pytest.fixture
async def iterations() -> AsyncIterator[LoopIterations]:
    counting = LoopIterations()
    yield counting
    counting.end()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as server:
        yield server


def object_store_of(server: EmbeddedServer) -> ObjectStore:
    return server.running.app.handlers.writer.store


async def fill(server: EmbeddedServer, path: str, **metadata: Any) -> None:
    """Create many objects of a kind, without HTTP."""
    segments = path.strip("/").split("/")
    plural, namespace = segments[-1], segments[-2]
    group, version = ("ex.io", "v1") if plural == "foos" else ("", "v1")
    kind = server.running.app.catalog.get(group, version, plural)
    assert kind is not None
    call = WriteRequest(kind=kind, object_path=ObjectPath(namespace=namespace), user=APISERVER_USER)
    head = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
    for number in range(MANY):
        body = {**head, "metadata": {"name": f"s{number:04d}", **metadata}}
        written = server.running.app.handlers.writer.create(call, body)
    await written.committed()


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", TABLE),
        ("", METADATA),
        ("?fieldSelector=type=none", {}),
        ("?fieldSelector=type=none", TABLE),
        ("?dryRun=All", {}),
    ],
)
async def test_reads_of_many_objects_yield_to_the_event_loop(
    server: EmbeddedServer,
    iterations: LoopIterations,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    headers: dict[str, str],
) -> None:
    await fill(server, SECRETS)
    monkeypatch.setattr(tables, "cells", iterations.counted(tables.cells))
    monkeypatch.setattr(StoredObject, "parse", iterations.counted_parse())
    if headers:  # stored bytes are sent unchanged, many at a time
        monkeypatch.setattr(Renderer, "item", iterations.counted(Renderer.item))
    with iterations.assert_at_most(2 * PARSED_SLICE_SIZE, of=MANY):
        method = "DELETE" if "dryRun" in query else "GET"
        response = await server.request(method, SECRETS + query, headers=headers)
    assert response.status == 200


@pytest.mark.parametrize(("query", "headers"), [("", TABLE), ("&fieldSelector=type=none", {})])
async def test_streams_of_many_objects_yield_to_the_event_loop(
    server: EmbeddedServer,
    iterations: LoopIterations,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    headers: dict[str, str],
) -> None:
    await fill(server, SECRETS)
    monkeypatch.setattr(tables, "cells", iterations.counted(tables.cells))
    monkeypatch.setattr(StoredObject, "parse", iterations.counted_parse())
    if headers:
        monkeypatch.setattr(Renderer, "item", iterations.counted(Renderer.item))
    with iterations.assert_at_most(2 * PARSED_SLICE_SIZE, of=MANY):
        async with server.watch(f"{SECRETS}?{STREAM}{query}", headers=headers) as stream:
            while (await stream.next())["type"] != "BOOKMARK":
                pass


async def test_deletions_of_many_objects_yield_to_the_event_loop(
    server: EmbeddedServer, iterations: LoopIterations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStore, "remove", iterations.counted(ObjectStore.remove))
    await fill(server, SECRETS)
    with iterations.assert_at_most(PARSED_SLICE_SIZE, of=MANY):
        response = await server.request("DELETE", SECRETS)
    assert (response.status, len(response.body["items"])) == (200, MANY)
    await server.create(NAMESPACES, {"metadata": {"name": "n"}})
    await fill(server, "/api/v1/namespaces/n/secrets")
    with iterations.assert_at_most(PARSED_SLICE_SIZE, of=MANY):
        await server.request("DELETE", f"{NAMESPACES}/n")
        await wait_deleted(server, NAMESPACES, "n")
    await server.install_crds(definition())
    await fill(server, FOOS)
    with iterations.assert_at_most(PARSED_SLICE_SIZE, of=MANY):
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await server.request("DELETE", f"{crds}/foos.ex.io")
        await wait_deleted(server, crds, "foos.ex.io")


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
async def test_many_dependents_are_deleted_in_slices(
    server: EmbeddedServer, iterations: LoopIterations, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    owner = await server.create(MAPS, {"metadata": {"name": "owner"}})
    reference: Json = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
    reference |= {"uid": owner["metadata"]["uid"], "blockOwnerDeletion": True}
    await fill(server, SECRETS, ownerReferences=[reference])
    looked: Counter[str] = Counter()
    true_check = GarbageCollector.check_owners

    def check(self: GarbageCollector, resource_store: Any, entry: StoredObject) -> Any:
        looked[entry.name] += 1
        return true_check(self, resource_store, entry)

    monkeypatch.setattr(GarbageCollector, "check_owners", check)
    monkeypatch.setattr(ObjectStore, "remove", iterations.counted(ObjectStore.remove))
    monkeypatch.setattr(ObjectStore, "put", iterations.counted(ObjectStore.put))
    with iterations.assert_at_most(2 * PARSED_SLICE_SIZE, of=MANY):
        await server.request("DELETE", f"{MAPS}/owner?propagationPolicy={policy}")
        await wait_deleted(server, MAPS, "owner")

        async def over() -> bool:
            left = (await server.get(SECRETS))["items"]
            if policy == "Orphan":
                return not any("ownerReferences" in each["metadata"] for each in left)
            return not left

        await wait_until_true(over)
    # Each is checked a few times, not once for each of the others.
    assert all(times <= 5 for times in looked.values())


async def test_a_list_in_slices_is_a_consistent_snapshot(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(server, SECRETS)
    store = object_store_of(server)
    (resource_store,) = (
        each for each in store.resource_stores() if each.resource.plural == "secrets"
    )
    names = iter([f"s{number:04d}" for number in range(MANY - 1, 0, -1)])

    async def slices_and_writes(*args: Any) -> AsyncGenerator[Any]:
        async for batch in slices(*args):
            yield batch
            entry = resource_store.get("default", next(names))
            assert entry is not None
            await store.remove(resource_store, entry.parse(), entry).done

    monkeypatch.setattr(render, "slices", slices_and_writes)
    before = store.committed_rv
    table = (await server.request("GET", SECRETS, headers=TABLE)).body
    assert store.committed_rv > before + 1
    assert table["metadata"]["resourceVersion"] == str(before)
    shown = [row["object"]["metadata"]["name"] for row in table["rows"]]
    assert shown == [f"s{number:04d}" for number in range(MANY)]


@pytest.mark.process
async def test_a_long_list_in_yaml_equals_the_list_in_json(server: EmbeddedServer) -> None:
    await fill(server, SECRETS)
    version = (await server.get(f"{SECRETS}?limit=1"))["metadata"]["resourceVersion"]
    path = f"{SECRETS}?resourceVersion={version}&resourceVersionMatch=Exact"
    for form in (
        "application/yaml",
        "application/yaml;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    ):
        accept = {"Accept": form}
        shown = await server.request("GET", path, headers=accept)
        plain = {"Accept": form.replace("yaml", "json")}
        wanted = (await server.request("GET", path, headers=plain)).body
        assert shown.body == yaml.safe_dump(wanted, sort_keys=True)
        assert len(wanted["items"]) == MANY


async def test_pages_are_of_one_snapshot_until_it_expires(
    server: EmbeddedServer,
) -> None:
    await fill(server, SECRETS)
    first = await server.get(f"{SECRETS}?limit=10")
    token = first["metadata"]["continue"]
    version = first["metadata"]["resourceVersion"]
    await server.request("DELETE", f"{SECRETS}/s0011")
    exact = f"{SECRETS}?resourceVersion={version}&resourceVersionMatch=Exact"
    for _ in range(2):
        second = await server.get(f"{SECRETS}?limit=10&continue={token}")
        assert [each["metadata"]["name"] for each in second["items"]][1] == "s0011"
        assert len((await server.get(exact))["items"]) == MANY
        await _trim_history(server)
    for path in (f"{SECRETS}?limit=10&continue={token}", exact):
        response = await server.request("GET", path)
        assert (response.status, response.body["reason"]) == (410, "Expired")


async def _trim_history(server: EmbeddedServer) -> None:
    """Expire snapshots, as after a long time."""
    store = object_store_of(server)
    store.next_snapshot_expiry = asyncio.get_running_loop().time()
    # Any write wakes the store; this one does not change the listed objects.
    await server.create(MAPS, {"metadata": {"generateName": "wakes-"}})

    async def done() -> bool:
        return store.next_snapshot_expiry > asyncio.get_running_loop().time()

    await wait_until_true(done)


async def test_snapshots_expire_without_writes(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "SNAPSHOT_EXPIRY_INTERVAL", 0.001)
    store = object_store_of(server)
    await _trim_history(server)

    async def forgotten() -> bool:
        return store.oldest_rv == store.committed_rv

    await wait_until_true(forgotten)


@asynccontextmanager
async def jump_wall_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> AsyncIterator[None]:
    """Set the wall clock off by *seconds*; the monotonic clock is unaffected."""
    import time
    from datetime import timedelta

    from batholith.machinery.clock import SystemClock

    true, true_now = time.time, SystemClock.now

    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: true() + seconds)
        patch.setattr(
            SystemClock, "now", lambda clock: true_now(clock) + timedelta(seconds=seconds)
        )
        yield


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
async def test_a_wall_clock_jump_has_no_effect(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    await fill(server, SECRETS)
    await server.create(
        "/api/v1/namespaces/default/events",
        {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}},
    )
    token = (await server.get(f"{SECRETS}?limit=10"))["metadata"]["continue"]
    watch = f"{MAPS}?watch=1&timeoutSeconds=600&resourceVersion=0"
    async with server.watch(watch) as lines, jump_wall_clock(monkeypatch, seconds):
        await server.create(MAPS, {"metadata": {"name": "after"}})
        while (await lines.next())["object"]["metadata"]["name"] != "after":
            pass
        await server.create(NAMESPACES, {"metadata": {"name": "n"}})
        await server.request("DELETE", f"{NAMESPACES}/n")
        await wait_deleted(server, NAMESPACES, "n")
        await server.get(f"{SECRETS}?limit=10&continue={token}")
        await server.get("/api/v1/namespaces/default/events/e")
        assert object_store_of(server).oldest_rv == 0
