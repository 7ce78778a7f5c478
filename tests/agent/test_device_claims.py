"""GPUs that pods have by ResourceClaims: the slice that offers them, and who sees which."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from support.agent import container, manifest
from support.agent_cluster import NODE, AgentCluster, agent_cluster
from support.api_servers import EmbeddedServerFactory
from support.fake_devices import FakeDevices, uuid
from support.polling import wait_until_true
from support.sandbox import detected_isolation

from batholith.kube.client.client import Client
from batholith.local.agent.devices.claims import ClaimedDevices, ClaimError, claimed_devices
from batholith.local.agent.devices.manager import DeviceManager
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.model.names import NODES, RESOURCECLAIMS, RESOURCESLICES, Resource

from .test_devices import GPU, SHOW, gpus, manager, pod, run

Json = dict[str, Any]
DRIVER = "gpu.batholith.io"
SLICE = f"{NODE}-{DRIVER}"


@pytest.fixture
def fake(tmp_path: Path) -> FakeDevices:
    return FakeDevices(tmp_path / "machine")


def claimed(*names: str) -> ClaimedDevices:
    return ClaimedDevices({"c": names}, frozenset(names))


def restarted(fake: FakeDevices, before: DeviceManager, uid: str) -> DeviceManager:
    after = manager(fake)
    after.restore(uid, before._assigned[uid], before.claimed(uid))
    return after


def test_a_device_is_claimed_or_requested_never_both(fake: FakeDevices) -> None:
    fake.set_nvidia(0, 1)
    devices = manager(fake)
    devices.claim("a", claimed(uuid(0).lower()))
    assert devices.assign(pod("a", gpus(0))) == {"c": (uuid(0),)}
    assert (devices.capacity(), devices.allocatable()) == ({GPU: "2"}, {GPU: "1"})
    assert devices.assign(pod("b", gpus(1))) == {"c": (uuid(1),)}
    assert [each.name for each in devices.offered()] == [uuid(0)]
    with pytest.raises(ClaimError, match="device gpu-0000-1 is in use by another pod"):
        devices.claim("d", claimed(uuid(1).lower()))
    with pytest.raises(ClaimError, match="device none does not work"):
        devices.claim("d", claimed("none"))
    devices.claim("shared", claimed(uuid(0).lower()))
    later = restarted(fake, devices, "a")
    assert later.allocatable() == {GPU: "1"}
    later.release("a")
    assert later.allocatable() == {GPU: "2"}


class StoredObjects:
    """A client that reads what a test has stored."""

    def __init__(self, **objects: Json) -> None:
        self.objects = objects

    async def get(self, resource: Resource, name: str, *, namespace: str, view: type[Any]) -> Any:
        return msgspec.convert(self.objects[resource.plural], view)


async def test_containers_have_the_devices_of_the_requests_for_their_extended_resources() -> None:
    mappings = [("main", "container-1-request-0"), ("init", "container-1-request-0")]
    status = {
        "resourceClaimName": "p-x",
        "requestMappings": [
            {"containerName": name, "resourceName": "ex.io/card", "requestName": request}
            for name, request in (*mappings, ("init", "container-0-request-0"))
        ],
    }
    containers = {"initContainers": [{"name": "init"}], "containers": [{"name": "main"}]}
    results = [
        {"request": request, "driver": DRIVER, "pool": NODE, "device": device}
        for request, device in (("container-0-request-0", "x"), ("container-1-request-0", "y"))
    ]
    allocation = {"devices": {"results": results}}
    client = StoredObjects(
        pods={
            "metadata": {"name": "p", "uid": "u"},
            "spec": containers,
            "status": {"extendedResourceClaimStatus": status},
        },
        resourceclaims={"status": {"allocation": allocation, "reservedFor": [{"uid": "u"}]}},
    )
    found = await claimed_devices(cast(Client, client), "ns", "p", "u", node=NODE)
    assert found.by_container == {"main": ("y",), "init": ("y", "x")}
    assert found.exclusive == {"x", "y"}


async def add_claim(cluster: AgentCluster, name: str, pod_uid: str, *devices: str) -> None:
    """A claim that is allocated for a pod, as by a scheduler."""
    requests = [
        {"name": f"r{index}", "exactly": {"deviceClassName": "gpu"}}
        for index in range(len(devices))
    ]
    spec = {"devices": {"requests": requests}}
    body = {
        "apiVersion": RESOURCECLAIMS.api_version,
        "kind": RESOURCECLAIMS.kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    await cluster.client.create(RESOURCECLAIMS, body, namespace=cluster.namespace, view=dict)
    results = [
        {"request": f"r{index}", "driver": DRIVER, "pool": NODE, "device": each}
        for index, each in enumerate(devices)
    ]
    consumer = {"resource": "pods", "name": "p", "uid": pod_uid}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [consumer]}
    await cluster.client.patch(
        RESOURCECLAIMS,
        name,
        {"status": status},
        namespace=cluster.namespace,
        subresource="status",
        view=dict,
    )


@pytest.mark.process
async def test_containers_see_the_gpus_of_the_claims_that_they_name(
    fake: FakeDevices, tmp_path: Path
) -> None:
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("no sandbox on this machine, and so no device files are hidden")
    fake.set_nvidia(0, 1, 2)
    options: Json = {"devices": fake.discovery, "device_interval": 0.1}

    async with agent_cluster(EmbeddedServerFactory(), tmp_path, **options) as cluster:

        async def offered() -> list[str]:
            found = await cluster.client.get(RESOURCESLICES, SLICE, view=dict)
            return [each["name"] for each in found["spec"].get("devices", [])]

        async with cluster.agent():
            await wait_until_true(lambda: _exists(cluster))
            found = await cluster.client.get(RESOURCESLICES, SLICE, view=dict)
            device = found["spec"]["devices"][1]
            assert (found["spec"]["driver"], found["spec"]["nodeName"]) == (DRIVER, NODE)
            assert device["name"] == "gpu-0000-1"
            assert device["attributes"]["productName"] == {"string": "NVIDIA Test"}
            assert device["capacity"]["memory"]["value"] == str(24564 << 20)
            await run(cluster, "requesting", 1, SHOW)
            await cluster.phase("requesting", "Running")

            async def is_withdrawn() -> bool:
                return await offered() == ["gpu-0000-1", "gpu-0000-2"]

            await wait_until_true(is_withdrawn)
            one = container(
                "sh", "-c", SHOW + "exec sleep 600", name="c",
                resources={"claims": [{"name": "gpu", "request": "r0"}]},
            )  # fmt: skip
            two = container("sh", "-c", SHOW + "exec sleep 600", name="none")
            both = container(
                "sh", "-c", SHOW + "exec sleep 600", name="all",
                resources={"claims": [{"name": "gpu"}]},
            )  # fmt: skip
            claim = {"name": "gpu", "resourceClaimName": "c"}
            body = manifest("p", one, two, both, restartPolicy="Never", resourceClaims=[claim])
            created = await cluster.run(body)
            await cluster.wait_event("p", "FailedPrepareDynamicResources")
            await add_claim(cluster, "c", created["metadata"]["uid"], "gpu-0000-2", "gpu-0000-1")
            await cluster.phase("p", "Running")
            for name, shown in (
                ("c", "sees nvidia-uvm nvidia2 nvidiactl with GPU-0000-2."),
                ("none", "sees with ."),
                ("all", "nvidia1 nvidia2 nvidiactl with GPU-0000-2,GPU-0000-1."),
            ):
                await wait_until_true(partial(_logs, cluster, name, shown))
            status = (await cluster.client.get(NODES, NODE, view=dict))["status"]
            assert status["allocatable"][GPU] == "1"


async def _logs(cluster: AgentCluster, container: str, text: str) -> bool:
    return text in await cluster.logs("p", f"?container={container}")


async def _exists(cluster: AgentCluster) -> bool:
    found = await cluster.client.list(RESOURCESLICES, view=dict)
    return bool(found.items)
