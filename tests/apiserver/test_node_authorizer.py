"""What a kubelet may do in the embedded server; tests/realkube compares both servers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import MERGE, EmbeddedServer, embedded_server
from support.node_requests import (
    CORE,
    READS,
    WRITES,
    NodeRequest,
    create_objects,
    kubelet,
    mirror_requests,
    pod,
    token_requests,
)

from batholith.local.apiserver.builtin.pod_references import Key, references

Json = dict[str, Any]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path, node_lifecycle=False) as started:
        yield started


async def check(server: EmbeddedServer, request: NodeRequest) -> None:
    response = await request.send(server)
    assert response.status == request.status, (request, response.body)


async def test_a_node_reads_and_writes_what_belongs_to_it_alone(server: EmbeddedServer) -> None:
    await create_objects(server)
    requests = (*READS, *await token_requests(server), *await mirror_requests(server), *WRITES)
    for request in requests:
        await check(server, request)


async def test_only_kubelets_by_group_and_name_are_nodes(server: EmbeddedServer) -> None:
    await create_objects(server)
    secret = f"{CORE}/secrets/s-a"
    for user, group in (("system:node:a", "others"), ("a", "system:nodes")):
        headers = {"Impersonate-User": user, "Impersonate-Group": group}
        assert (await server.request("GET", secret, headers=headers)).status == 403
    assert (await server.request("GET", secret, headers=kubelet("a"))).status == 200
    assert (await server.request("GET", secret, headers=kubelet(""))).status == 403


async def test_a_right_to_read_begins_and_ends_with_the_pod_that_needs_it(
    server: EmbeddedServer,
) -> None:
    await create_objects(server)
    secret = NodeRequest(200, "GET", f"{CORE}/secrets/late")
    await server.create(f"{CORE}/secrets", {"metadata": {"name": "late"}})
    assert (await secret.send(server)).status == 403
    source = {"secretRef": {"name": "late"}}
    await server.create(f"{CORE}/pods", pod("second", "a", container={"envFrom": [source]}))
    await check(server, secret)
    await server.request("DELETE", f"{CORE}/pods/second?gracePeriodSeconds=0")
    assert (await secret.send(server)).status == 403


async def test_the_graph_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, node_lifecycle=False) as server:
        await create_objects(server)
    async with embedded_server(tmp_path, node_lifecycle=False) as server:
        for request in READS:
            await check(server, request)


async def test_status_updates_of_pods_cost_the_graph_nothing(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(obj: Json) -> set[Key]:
        read.append("pod")
        return references(obj)

    graph = "batholith.local.apiserver.authorization.node_graph"
    monkeypatch.setattr(f"{graph}.references", counted)
    for number in range(3):
        await server.create(f"{CORE}/pods", pod(f"p-{number}", "a"))
    assert len(read) == 3
    for number in range(3):
        change = {"status": {"message": "m"}}
        path = f"{CORE}/pods/p-{number}/status"
        response = await server.request("PATCH", path, change, content_type=MERGE)
        assert response.status == 200
    for request in READS:
        await request.send(server)
    assert len(read) == 3
