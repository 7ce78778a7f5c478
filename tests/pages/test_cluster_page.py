"""Nodes with their pods: over REST, and as a packing plot."""

import html

import pytest
from support.pages import PagesClient
from support.polling import wait_until_true
from support.simulations import leading

from batholith.api.pages.cluster import BAR, pack
from batholith.model.names import JOBS, NODES, PODS
from batholith.model.scheduler_questions import (
    JobRef,
    NodeReservation,
    Reservations,
    ReservedNode,
)
from batholith.wire.nodes import Node, NodePod

NODE = Node(name="n", allocatable={"memory": "4Gi", "cpu": "4", "pods": "110", "x.io/gpu": "0"})


def pod(name: str, owner: str = "", **requests: str) -> NodePod:
    return NodePod(namespace="default", name=name, owner_name=owner, requests=requests)


def test_pods_are_packed_by_owner_and_pods_of_one_have_one_colour() -> None:
    pods = [pod("b-0", "b", cpu="1"), pod("a-1", "a", cpu="500m"), pod("a-0", "a", cpu="500m")]
    cpu, memory = pack(NODE, pods)
    assert (cpu.resource, cpu.requested, cpu.allocatable) == ("cpu", "50%", "4")
    assert [each.title.split(":")[0] for each in cpu.slices] == [
        "default/a-0 of  a",
        "default/a-1 of  a",
        "default/b-0 of  b",
    ]
    assert [each.x for each in cpu.slices] == [0, BAR / 8, BAR / 4]
    assert cpu.slices[0].colour == cpu.slices[1].colour != cpu.slices[2].colour
    assert (memory.resource, memory.requested, list(memory.slices)) == ("memory", "0%", [])


def test_an_overcommitted_node_is_shown_with_its_share() -> None:
    (cpu, _) = pack(NODE, [pod("a", cpu="6")])
    assert cpu.requested == "150%"


@pytest.mark.asyncio(loop_scope="module")
async def test_nodes_and_their_pods_are_read_and_shown(pages: PagesClient) -> None:
    node = {
        "metadata": {"name": "gpu-1"},
        "spec": {
            "unschedulable": True,
            "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        },
    }
    await pages.client.create(NODES, node)
    status = {
        "allocatable": {"cpu": "4", "memory": "8Gi"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await pages.client.patch(NODES, "gpu-1", {"status": status}, subresource="status")
    for name, phase in (("runs", "Running"), ("ended", "Succeeded")):
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
        spec = {"nodeName": "gpu-1", "containers": [container]}
        await pages.client.create(
            PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default"
        )
        await pages.client.patch(
            PODS, name, {"status": {"phase": phase}}, namespace="default", subresource="status"
        )
    headers = {"Authorization": f"Bearer {pages.server.running.tokens['admin']}"}
    async with pages.session.get(f"{pages.url}/v1/nodes", headers=headers) as response:
        (found,) = (await response.json())["items"]
    assert (found["name"], found["ready"], found["unschedulable"]) == ("gpu-1", True, True)
    assert "gpu=yes:NoSchedule" in found["taints"]
    assert found["allocatable"]["cpu"] == "4"
    url = f"{pages.url}/v1/nodes/gpu-1/pods"
    async with pages.session.get(url, headers=headers) as response:
        pods = {each["name"]: each for each in (await response.json())["items"]}
    assert (pods["runs"]["requests"], pods["ended"]["requests"]) == ({"cpu": "1"}, {})
    async with pages.session.get(f"{pages.url}/v1/nodes/none/pods", headers=headers) as response:
        assert (await response.json())["items"] == []
    async with pages.session.get(f"{pages.url}/v1/nodes?cursor=x", headers=headers) as response:
        assert response.status == 422

    _, text = await pages.get("/cluster")
    assert "cpu of gpu-1: pods request 25% of 4" in text
    assert html.escape("default/runs: cpu 1") in text
    assert "gpu=yes:NoSchedule" in text
    assert "What is reserved for jobs that wait is not known: no scheduler" in text
    job = JobRef("default", JOBS.api_version, "Job", "large")
    nodes = (ReservedNode("gpu-1", {"cpu": "2"}),)
    planned = NodeReservation(job, "default", "start", nodes, start=60.0)
    held = NodeReservation(job, "default", "preemption", nodes, until=120.0)
    found_pages: list[str] = []

    async def are_shown() -> bool:
        found_pages.append((await pages.get("/cluster"))[1])
        return 'id="reservations"' in found_pages[-1]

    async with leading(pages.client, reservations=Reservations((planned, held))):
        await wait_until_true(are_shown)
    text = found_pages[-1]
    assert "its start is planned for 1970-01-01 00:01:00 UTC" in text
    assert "pods are evicted for it; until 1970-01-01 00:02:00 UTC" in text
    link = '<a href="/jobs/default/jobs/large">default/large</a>'
    assert f"reserved for {link}, 2 cpu: its start is planned" in text
    assert (await pages.get("/cluster", fragment=True))[1].startswith('<div id="nodes"')
    assert 'role="alert"' in (await pages.get("/cluster?cursor=x"))[1]
