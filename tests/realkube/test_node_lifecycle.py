"""A lost node has the same effects under kube-controller-manager and on the embedded server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.polling import wait_until_true
from support.realkube import CONTROLLERS, real_server

from batholith.kube.client.client import Client, PatchType
from batholith.local.apiserver.controllers.node_health import NodeLifecycleSettings
from batholith.machinery.clock import SystemClock
from batholith.model import times
from batholith.model.names import EVENTS, LEASES, NODES, PODS
from batholith.testing import ApiServer

pytestmark = pytest.mark.process

Json = dict[str, Any]
LEASE_NAMESPACE = "kube-node-lease"
CONTROLLERS_OF_NODES = ("node-lifecycle-controller", "taint-eviction-controller", "podgc")
FLAGS = (
    "--node-monitor-period=500ms",
    "--node-monitor-grace-period=2s",
    "--node-startup-grace-period=3s",
    "--terminated-pod-gc-threshold=2",
)
SETTINGS = NodeLifecycleSettings(
    node_monitor_period=0.5,
    node_monitor_grace_period=2,
    node_startup_grace_period=3,
    terminated_pod_gc_threshold=2,
)
REASONS = ("NodeNotReady", "TaintManagerEviction")
RACES = "Cancelling deletion of Pod"
"""kube-controller-manager sometimes records that, too, for a pod that it has just deleted."""

LOST, ALIVE, SILENT = "lost", "alive", "silent"
ZONES = {LOST: "a", ALIVE: "a", SILENT: "b"}


async def create_node(client: Client, name: str) -> None:
    labels = {"topology.kubernetes.io/zone": ZONES[name]}
    await client.create(NODES, {"metadata": {"name": name, "labels": labels}})
    if name == SILENT:
        return
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    body = {"status": {"conditions": [condition]}}
    await client.patch(NODES, name, body, subresource="status", kind=PatchType.STRATEGIC)
    await client.patch(NODES, name, {"spec": {"taints": None}})


async def create_pod(
    client: Client, name: str, node: str, *tolerations: Json, phase: str = "Running"
) -> None:
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 0 if node == LOST else 30,
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "i"}],
        "tolerations": list(tolerations),
    }
    metadata = {"name": name, "namespace": "default"}
    await client.create(PODS, {"metadata": metadata, "spec": spec}, namespace="default")
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    body = {"status": {"phase": phase, "conditions": [ready]}}
    await client.patch(PODS, name, body, namespace="default", subresource="status")


@asynccontextmanager
async def renewed(client: Client, name: str) -> AsyncIterator[None]:
    """Renew the Lease of a node for the length of the block."""
    renewing = asyncio.create_task(_renew(client, name))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])


async def _renew(client: Client, name: str) -> None:
    spec = {"leaseDurationSeconds": 1, "holderIdentity": name}
    meta = {"name": name, "namespace": LEASE_NAMESPACE}
    await client.create(LEASES, {"metadata": meta, "spec": spec}, namespace=LEASE_NAMESPACE)
    while True:
        body = {"spec": {"renewTime": times.format_micros(SystemClock().now())}}
        await client.patch(LEASES, name, body, namespace=LEASE_NAMESPACE)
        await asyncio.sleep(0.2)


async def prepare(client: Client) -> None:
    """Create nodes and pods."""
    for node in ZONES:
        await create_node(client, node)

    def tolerated(key: str, seconds: int | None) -> Json:
        found = {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
        return found if seconds is None else {**found, "tolerationSeconds": seconds}

    both = ("not-ready", "unreachable")
    await create_pod(client, "forever", LOST, {"operator": "Exists"})
    await create_pod(client, "at-once", LOST, *(tolerated(key, 0) for key in both))
    await create_pod(client, "soon", LOST, *(tolerated(key, 1) for key in both))
    await create_pod(client, "default", LOST)
    await create_pod(client, "elsewhere", ALIVE)
    for number in range(4):
        await create_pod(client, f"done-{number}", ALIVE, phase="Succeeded")


async def outcome(client: Client) -> Json:
    """Return what the controllers have written, without times, uids and names."""
    nodes = (await client.list(NODES, view=dict)).items
    pods = (await client.list(PODS, namespace="default", view=dict)).items
    events = (await client.list(EVENTS, namespace="default", view=dict)).items
    return {
        "nodes": {each["metadata"]["name"]: _node(each) for each in nodes if _is_ours(each)},
        "pods": {
            each["metadata"]["name"]: each["status"].get("conditions", [{}])[0].get("status")
            for each in pods
        },
        "events": sorted(
            {
                (each["type"], each["reason"], each["involvedObject"]["kind"], each["message"])
                for each in events
                if each["reason"] in REASONS and not each["message"].startswith(RACES)
            }
        ),
    }


def _is_ours(node: Json) -> bool:
    return node["metadata"]["name"] in ZONES


def _node(node: Json) -> Json:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return {
        "taints": sorted(
            (each["key"], each["effect"], "timeAdded" in each)
            for each in (node.get("spec") or {}).get("taints") or ()
        ),
        "conditions": sorted(
            (each["type"], each["status"], each.get("reason"), each.get("message"))
            for each in conditions
        ),
    }


@asynccontextmanager
async def kubernetes(tmp_path: Path) -> AsyncIterator[Client]:
    controllers = (*CONTROLLERS, *CONTROLLERS_OF_NODES)
    async with real_server(tmp_path) as server, server.client() as client:
        await prepare(client)
        server.kube.start_manager(controllers, *FLAGS)
        async with renewed(client, ALIVE):
            yield client


@asynccontextmanager
async def embedded(tmp_path: Path) -> AsyncIterator[Client]:
    data = tmp_path / "data"
    async with ApiServer(data_dir=data, node_lifecycle=None) as server, server.client() as client:
        await prepare(client)
    async with (
        ApiServer(data_dir=data, node_lifecycle=SETTINGS) as server,
        server.client() as client,
        renewed(client, ALIVE),
    ):
        yield client


async def settled(client: Client) -> Json:
    """Return the outcome once the last pod that is to be deleted is."""

    async def is_done() -> bool:
        found = await outcome(client)
        lost, silent = (found["nodes"][name]["taints"] for name in (LOST, SILENT))
        existing = {"at-once", "soon"} & found["pods"].keys()
        done = sum(name.startswith("done") for name in found["pods"])
        # Events are written after what they report.
        recorded = len(found["events"]) >= len(("node", "pods", "at-once", "soon"))
        return len(lost) == len(silent) == 2 and not existing and done <= 2 and recorded

    await wait_until_true(is_done)
    return await outcome(client)


async def test_a_lost_node_has_the_effects_of_kubernetes(tmp_path: Path) -> None:
    async with kubernetes(tmp_path / "real") as client:
        theirs = await settled(client)
    async with embedded(tmp_path / "embedded") as client:
        ours = await settled(client)
    assert ours == theirs
