"""Client, informer and events against an API server, over TLS."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import Server
from support.polling import wait_for
from support.realkube import free_ports

from batholith.kube.client.client import Client, ClientOptions, PatchType
from batholith.kube.client.config import Credentials, load_credentials
from batholith.kube.client.events import EventRecorder
from batholith.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
)
from batholith.kube.informer.informer import Informer
from batholith.kube.informer.reflector import InformerOptions
from batholith.kube.timing import Timing
from batholith.local.supervisor.apiserver import Settings, running
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta, ObjectReference
from batholith.model.names import CONFIGMAPS, EVENTS, NODES, PODS


class Map(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}


def config_map(name: str, **data: str) -> Map:
    return Map(metadata=ObjectMeta(name=name), data=data)


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as server:
        yield server


async def test_apply_creates_a_missing_object_and_owns_its_fields(
    server: Server,
) -> None:
    name = f"applied-{uuid.uuid4().hex[:8]}"
    async with server.client() as client:

        async def apply(kind: PatchType, **data: str) -> Map:
            body = config_map(name, **data)
            return await client.patch(
                CONFIGMAPS, name, body, namespace="default", kind=kind, view=Map
            )

        created = await apply(PatchType.apply("one"), k="v", more="x")
        assert created.data == {"k": "v", "more": "x"}
        assert (await apply(PatchType.apply("one"), k="v")).data == {"k": "v"}
        with pytest.raises(ConflictError):
            await apply(PatchType.apply("other"), k="w")
        assert (await apply(PatchType.apply("other", force=True), k="w")).data == {"k": "w"}


async def test_every_verb_works_and_raises_documented_errors(server: Server) -> None:
    async with Client(load_credentials(str(server.kubeconfig)), user_agent="t") as client:
        created = await client.create(
            CONFIGMAPS, config_map("a", k="v"), namespace="default", view=Map
        )
        with pytest.raises(AlreadyExistsError):
            await client.create(CONFIGMAPS, config_map("a"), namespace="default")
        got = await client.get(CONFIGMAPS, "a", namespace="default", view=Map)
        assert got == created
        body = {"data": {"k": "w"}}
        for kind in (PatchType.MERGE, PatchType.STRATEGIC):
            new = await client.patch(
                CONFIGMAPS, "a", body, namespace="default", kind=kind, view=Map
            )
            assert new.data == {"k": "w"}
        steps = [{"op": "add", "path": "/data/j", "value": "1"}]
        await client.patch(CONFIGMAPS, "a", steps, namespace="default", kind=PatchType.JSON)
        raw = await client.get(CONFIGMAPS, "a", namespace="default", view=msgspec.Raw)
        same = await client.replace(CONFIGMAPS, "a", bytes(raw), namespace="default", view=Map)
        assert same.data == {"k": "w", "j": "1"}
        stale = {
            "metadata": {"resourceVersion": created.metadata.resource_version},
            "data": {"k": "x"},
        }
        with pytest.raises(ConflictError):
            await client.patch(CONFIGMAPS, "a", stale, namespace="default")
        with pytest.raises(ConflictError):
            await client.delete(CONFIGMAPS, "a", namespace="default", uid="another")
        with pytest.raises(InvalidError) as caught:
            await client.create(CONFIGMAPS, config_map("No_Name"), namespace="default")
        assert caught.value.details["causes"][0]["field"] == "metadata.name"
        with pytest.raises(BadRequestError):
            await client.create(CONFIGMAPS, b"{", namespace="default")
        await client.delete(
            CONFIGMAPS,
            "a",
            namespace="default",
            uid=same.metadata.uid,
            resource_version=same.metadata.resource_version,
            grace_period=0,
            propagation="Background",
        )
        with pytest.raises(NotFoundError):
            await client.get(CONFIGMAPS, "a", namespace="default", view=Map)


async def test_wrong_token_is_unauthorized(server: Server) -> None:
    right = server.credentials
    wrong = Credentials(server=right.server, ca_data=right.ca_data, token="unknown")
    async with Client(wrong, user_agent="t") as client:
        with pytest.raises(UnauthorizedError):
            await client.get(NODES, "n", view=Map)


async def test_pods_are_bound_and_lists_are_paginated(server: Server) -> None:
    async with server.client() as client:
        await client.create(NODES, {"metadata": {"name": "n"}})
        spec = {"containers": [{"name": "c", "image": "i"}]}
        for number in range(7):
            body = {"metadata": {"name": f"p{number}"}, "spec": spec}
            await client.create(PODS, body, namespace="default")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p3"},
            "target": {"kind": "Node", "name": "n"},
        }
        await client.post(PODS.path("default", "p3", "binding"), binding)
        on_node = await client.list(PODS, view=Map, field_selector="spec.nodeName=n")
        assert [pod.metadata.name for pod in on_node.items] == ["p3"]
        first = await client.list(PODS, view=Map, limit=3)
        assert len(first.items) == 3
        assert first.continue_token
        assert len((await client.list(PODS, view=Map)).items) == 7


@pytest.mark.parametrize("streaming", [True, False])
async def test_informer_follows_the_server(server: Server, streaming: bool) -> None:
    async with server.client() as client:
        for number in range(25):
            await client.create(CONFIGMAPS, config_map(f"m{number}"), namespace="default")
        options = InformerOptions(watch_list=streaming, page_size=10)
        informer = Informer(client, CONFIGMAPS, Map, namespace="default", options=options)
        received: list[str] = []
        informer.add_event_handler(
            lambda old, new: received.append((new or old or Map()).metadata.name)
        )
        task = asyncio.create_task(informer.run())
        await informer.wait_synced()
        assert {f"default/m{number}" for number in range(25)} <= {
            each.metadata.key for each in informer
        }
        received.clear()
        await client.patch(CONFIGMAPS, "m3", {"data": {"k": "v"}}, namespace="default")
        await client.delete(CONFIGMAPS, "m4", namespace="default")
        await client.create(CONFIGMAPS, config_map("last"), namespace="default")
        await wait_for(lambda: "default/last" in informer)
        assert received == ["m3", "m4", "last"]
        informer.validate()
        assert informer.stats().failures == 0
        task.cancel()


async def test_informer_survives_a_server_restart(tmp_path: Path) -> None:
    """INV-INF-1, INV-INF-4: what changed around the restart arrives, once."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0.01)

    options = ClientOptions(timing=Timing(sleep=sleep))
    (port,) = free_ports(1)
    async with running(Settings(data_dir=tmp_path, port=port)) as first:
        access = load_credentials(str(first.kubeconfig))
        client = await Client(access, user_agent="t", options=options).__aenter__()
        await client.create(CONFIGMAPS, config_map("a"), namespace="default")
        informer = Informer(client, CONFIGMAPS, Map, namespace="default")
        received: list[tuple[str, bool]] = []
        informer.add_event_handler(
            lambda old, new: received.append(((new or old or Map()).metadata.name, new is not None))
        )
        task = asyncio.create_task(informer.run())
        await wait_for(lambda: "default/a" in informer)
        await client.create(CONFIGMAPS, config_map("b"), namespace="default")
        # The server's own ConfigMap, too: it is created at any time.
        await wait_for(lambda: "default/b" in informer and "default/kube-root-ca.crt" in informer)
    received.clear()
    async with running(Settings(data_dir=tmp_path, port=port)):
        await client.delete(CONFIGMAPS, "a", namespace="default")
        await client.create(CONFIGMAPS, config_map("c"), namespace="default")
        await wait_for(lambda: "default/c" in informer)
        await wait_for(lambda: "default/a" not in informer)
        assert sorted(received) == [("a", False), ("c", True)]
        informer.validate()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.__aexit__(None, None, None)


async def test_events_are_listed_by_involved_object(server: Server) -> None:
    async with server.client() as client:
        recorder = EventRecorder(client, component="tests")
        task = asyncio.create_task(recorder.run())
        about = ObjectReference(
            kind="Pod", api_version="v1", namespace="default", name="p", uid="u"
        )
        for written in range(3):
            recorder.record(about, type="Warning", reason="Failed", message="no capacity")
            await recorder.flush(100.0)
            assert (recorder.stats.created, recorder.stats.patched) == (1, written)
        task.cancel()
        found = await client.list(
            EVENTS, namespace="default", view=dict, field_selector="involvedObject.name=p"
        )
        (event,) = found.items
        assert (event["count"], event["reason"], event["message"]) == (3, "Failed", "no capacity")
