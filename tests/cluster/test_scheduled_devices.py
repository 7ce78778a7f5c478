"""The scheduler on an API server: what it writes into claims of devices, and when."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from support.api_servers import EmbeddedServerFactory, ServerFactory, add_node, merge_patch
from support.embedded_apiserver import Server, pod
from support.polling import wait_for, wait_until_true
from support.running_controller import FakeRecorder, running
from support.workload_cluster import running_workloads

from batholith.kube.client.client import Client
from batholith.kube.errors import ForbiddenError
from batholith.machinery.clock import SystemClock
from batholith.machinery.testing import FakeClock
from batholith.model import crds
from batholith.model.names import (
    DEVICECLASSES,
    DEVICETAINTRULES,
    PODGROUPS,
    PODS,
    QUEUES,
    RESOURCECLAIMS,
    RESOURCECLAIMTEMPLATES,
    RESOURCESLICES,
    Resource,
)
from batholith.scheduler.plugins.placement import Placement
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.state.devices.types import ResourceClaim
from batholith.scheduler.state.gangs.device_claims import DeviceBinding
from batholith.scheduler.writers.claim_binder import ClaimBinder

Json = dict[str, Any]
DRIVER = "gpu.example.com"
FINALIZER = "resource.kubernetes.io/delete-protection"
GANG = {"metadata": {"name": "g"}, "spec": {"minMember": 2, "queue": "default"}}
SINGLE = SchedulerSettings(pod_scheduler_names=("default-scheduler",))


def typed(resource: Resource, body: Json) -> Json:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "spec": {}, **body}


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, crds=crds.load()) as started:
        await open_queue(started)
        await started.create(DEVICECLASSES.path(), {"metadata": {"name": "gpu"}, "spec": {}})
        yield started


async def open_queue(server: Server) -> None:
    await server.create(QUEUES.path(), typed(QUEUES, {"metadata": {"name": "default"}}))
    path = QUEUES.path("", "default", "status")
    await merge_patch(server, path, {"status": {"state": "Open"}})


@asynccontextmanager
async def scheduling(server: Server) -> AsyncIterator[FakeRecorder]:
    recorder = FakeRecorder()
    async with (
        server.client("scheduler") as client,
        running(Scheduler(client, settings=SINGLE, recorder=recorder)),
    ):
        yield recorder


async def add_devices(
    server: Server,
    node: str,
    count: int = 1,
    *,
    driver: str = DRIVER,
    memory: str = "1Gi",
    fields: Json | None = None,
) -> None:
    await add_node(server, node)
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    capacity = {"memory": {"value": memory}}
    devices = [
        {"name": f"{node}{index}", "capacity": capacity, **(fields or {})} for index in range(count)
    ]
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    await server.create(RESOURCESLICES.path(), {"metadata": {"name": node}, "spec": spec})


async def add_claim(server: Server, name: str) -> Json:
    exactly = {"deviceClassName": "gpu"}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    body = {"metadata": {"name": name}, "spec": spec}
    created: Json = await server.create(RESOURCECLAIMS.path("default"), body)
    return created


async def add_pod(server: Server, name: str, claim: str, group: str = "") -> Json:
    body = pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}])
    if group:
        body["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}
        body["spec"]["schedulerName"] = "volcano"
    created: Json = await server.create(PODS.path("default"), body)
    return created


async def claim_of(server: Server, name: str) -> Json:
    found: Json = await server.get(RESOURCECLAIMS.path("default", name))
    return found


async def wait_bound(server: Server, *names: str) -> list[str]:
    """Wait until pods have nodes; return these."""
    nodes: list[str] = []

    async def are_bound() -> bool:
        found = [await server.get(PODS.path("default", name)) for name in names]
        nodes[:] = [each["spec"].get("nodeName", "") for each in found]
        return all(nodes)

    await wait_until_true(are_bound)
    return nodes


async def test_devices_that_a_rule_taints_are_not_allocated(server: Server) -> None:
    for node in ("a", "b"):
        await add_devices(server, node)
    taint = {"key": "repair", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": DRIVER, "pool": "a"}, "taint": taint}
    await server.create(DEVICETAINTRULES.path(), {"metadata": {"name": "r"}, "spec": spec})
    for name in ("c", "d"):
        await add_claim(server, name)
        await add_pod(server, name, name)
    async with scheduling(server):
        nodes: list[str] = []

        async def is_one_bound() -> bool:
            pods = [await server.get(PODS.path("default", name)) for name in ("c", "d")]
            nodes[:] = [each["spec"].get("nodeName", "") for each in pods]
            return any(nodes)

        await wait_until_true(is_one_bound)
        assert sorted(nodes) == ["", "b"]
        await server.request("DELETE", DEVICETAINTRULES.path("", "r"))
        assert sorted(await wait_bound(server, "c", "d")) == ["a", "b"]


async def test_a_gang_is_bound_with_a_device_each(server: Server) -> None:
    for node in ("a", "b"):
        await add_devices(server, node, 2)
    body = {"metadata": {"name": "g"}, "spec": {"minMember": 3, "queue": "default"}}
    await server.create(PODGROUPS.path("default"), typed(PODGROUPS, body))
    names = [f"p{index}" for index in range(3)]
    for name in names:
        await add_claim(server, f"c-{name}")
    created = [await add_pod(server, name, f"c-{name}", "g") for name in names]
    async with scheduling(server):
        nodes = await wait_bound(server, *names)
    devices = set()
    for name, node, each in zip(names, nodes, created, strict=True):
        claim = await claim_of(server, f"c-{name}")
        assert claim["metadata"]["finalizers"] == [FINALIZER]
        allocation = claim["status"]["allocation"]
        (result,) = allocation["devices"]["results"]
        assert (result["request"], result["driver"], result["pool"]) == ("r", DRIVER, node)
        devices.add(result["device"])
        (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
        (field,) = term["matchFields"]
        assert (field["key"], field["values"]) == ("metadata.name", [node])
        consumer = {"resource": "pods", "name": name, "uid": each["metadata"]["uid"]}
        assert claim["status"]["reservedFor"] == [consumer]
    assert len(devices) == 3


async def test_a_pod_waits_for_a_device_and_starts_when_a_slice_appears(server: Server) -> None:
    await add_node(server, "a")
    await add_claim(server, "c")
    await add_pod(server, "p", "c")
    async with scheduling(server):

        async def is_explained() -> bool:
            found = await server.get(PODS.path("default", "p"))
            return any(
                "cannot allocate all claims" in each.get("message", "")
                for each in found["status"].get("conditions", ())
            )

        await wait_until_true(is_explained)
        await add_devices(server, "b")
        assert await wait_bound(server, "p") == ["b"]


async def test_a_shared_claim_is_reserved_for_each_of_its_pods(server: Server) -> None:
    await add_devices(server, "a")
    await add_claim(server, "c")
    async with scheduling(server):
        for name in ("p", "q"):
            await add_pod(server, name, "c")
            await wait_bound(server, name)
    claim = await claim_of(server, "c")
    assert [each["name"] for each in claim["status"]["reservedFor"]] == ["p", "q"]


async def test_an_allocation_that_a_killed_scheduler_left_is_removed_and_made_anew(
    server: Server,
) -> None:
    await add_devices(server, "a")
    await add_claim(server, "c")
    waiting = await add_pod(server, "p", "c")
    other = {"key": "metadata.name", "operator": "In", "values": ["deleted"]}
    result = {"request": "r", "driver": DRIVER, "pool": "deleted", "device": "x"}
    consumer = {"resource": "pods", "name": "p", "uid": waiting["metadata"]["uid"]}
    left = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [other]}]},
        },
        "reservedFor": [consumer],
    }
    path = RESOURCECLAIMS.path("default", "c")
    await merge_patch(server, path, {"metadata": {"finalizers": [FINALIZER]}})
    await merge_patch(server, f"{path}/status", {"status": left})
    async with scheduling(server):
        assert await wait_bound(server, "p") == ["a"]
    claim = await claim_of(server, "c")
    (found,) = claim["status"]["allocation"]["devices"]["results"]
    assert found["device"] == "a0"


CONDITIONS = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}


def has_event(recorder: FakeRecorder, reason: str, text: str = "") -> bool:
    return any(each[3] == reason and text in each[4] for each in recorder.events)


async def report(server: Server, name: str, condition: str) -> None:
    """Report that the only device of a claim has *condition*, as its driver does."""
    claim = await claim_of(server, name)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    at = "2026-01-01T00:00:00Z"
    found = {"type": condition, "status": "True", "reason": "Test", "message": "reported"}
    device = {key: result[key] for key in ("driver", "pool", "device")}
    status = {"devices": [{**device, "conditions": [{**found, "lastTransitionTime": at}]}]}
    path = RESOURCECLAIMS.path("default", name, "status")
    await merge_patch(server, path, {"status": status})


async def test_a_pod_is_bound_when_the_binding_conditions_of_its_device_are_true(
    server: Server,
) -> None:
    await add_devices(server, "a", fields=CONDITIONS)
    await add_claim(server, "c")
    async with scheduling(server) as recorder:
        await add_pod(server, "p", "c")
        await wait_for(lambda: has_event(recorder, "BindingConditionsPending"))
        claim = await claim_of(server, "c")
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert {key: result[key] for key in CONDITIONS} == CONDITIONS
        assert claim["status"]["allocation"]["allocationTimestamp"]
        found = await server.get(PODS.path("default", "p"))
        assert "nodeName" not in found["spec"]
        await report(server, "c", "Ready")
        assert await wait_bound(server, "p") == ["a"]


async def test_a_device_whose_binding_fails_is_given_back(server: Server) -> None:
    await add_devices(server, "a", fields=CONDITIONS)
    await add_claim(server, "c")
    async with scheduling(server) as recorder:
        await add_pod(server, "p", "c")
        await wait_for(lambda: has_event(recorder, "BindingConditionsPending"))
        await report(server, "c", "Failed")
        await wait_for(lambda: has_event(recorder, "FailedScheduling", "Failed: Test"))
        claims = RESOURCECLAIMS.path("default", "c")

        async def is_allocated_again() -> bool:
            status = (await server.get(claims)).get("status", {})
            return "allocation" in status and not status.get("devices")

        await wait_until_true(is_allocated_again)
        await report(server, "c", "Ready")
        assert await wait_bound(server, "p") == ["a"]


def placement(name: str, binding: DeviceBinding) -> Placement:
    return Placement("default", name, f"uid-{name}", "a", devices=(binding,))


async def test_what_was_written_for_a_gang_is_undone_if_one_claim_is_gone(server: Server) -> None:
    first, second = [await add_claim(server, name) for name in ("c", "d")]
    await server.request("DELETE", RESOURCECLAIMS.path("default", "d"))
    result = {"request": "r", "driver": DRIVER, "pool": "a", "device": "a0"}
    content = {"devices": {"results": [result]}}
    async with server.client("scheduler") as client:
        views = {
            name: await client.get(RESOURCECLAIMS, name, namespace="default", view=ResourceClaim)
            for name in ("c",)
        }
        binder = ClaimBinder(
            client,
            clock=SystemClock(),
            claims=lambda key: views.get(key.partition("/")[2]),
        )
        lost = msgspec.convert(second, ResourceClaim)
        problem = await binder.bind(
            [
                placement("p", DeviceBinding(views["c"], content)),
                placement("q", DeviceBinding(lost, content)),
            ]
        )
    assert problem == "cannot allocate devices: claim default/d got deleted in the meantime"
    claim = await claim_of(server, "c")
    assert claim["metadata"]["uid"] == first["metadata"]["uid"]
    assert not claim.get("status")
    assert not claim["metadata"].get("finalizers")


class ForbiddenWrites(Client):
    """A client whose writes the API server forbids as long as *forbidden*."""

    forbidden = True
    attempts = 0

    async def patch(self, *arguments: Any, **fields: Any) -> Any:
        self.attempts += 1
        if self.forbidden:
            raise ForbiddenError("forbidden", status=403, reason="Forbidden")
        return await super().patch(*arguments, **fields)


async def test_a_forbidden_removal_is_repeated_with_growing_delays(tmp_path: Path) -> None:
    path = RESOURCECLAIMS.path("default", "c")
    left = {"allocation": {"devices": {"results": []}}, "reservedFor": []}
    async with EmbeddedServerFactory().start(tmp_path) as server:
        await add_claim(server, "c")
        await merge_patch(server, path, {"metadata": {"finalizers": [FINALIZER]}})
        await merge_patch(server, f"{path}/status", {"status": left})
        clock = FakeClock()
        credentials = server.credentials_of("admin")
        async with ForbiddenWrites(credentials, user_agent="tests") as client:
            claim = await client.get(RESOURCECLAIMS, "c", namespace="default", view=ResourceClaim)
            binder = ClaimBinder(client, clock=clock, claims=lambda key: claim)
            binder.release([claim])
            await clock.advance(600)
            # 0.8 s at first, then twice as long each time, up to 30 s; jitter at most doubles them.
            assert 10 <= client.attempts <= 25
            client.forbidden = False
            await clock.advance(60)

            async def is_removed() -> bool:
                found = await claim_of(server, "c")
                return "finalizers" not in found["metadata"]

            await wait_until_true(is_removed)
            binder.close()
            assert "allocation" not in (await claim_of(server, "c")).get("status", {})


async def test_the_example_of_the_docs_gets_devices(tmp_path: Path) -> None:
    """Its job's pods, with claims from the template."""
    manifest = Path(__file__).parents[2] / "docs/examples/devices.yaml"
    kind, template, job = yaml.safe_load_all(manifest.read_text())
    async with (
        EmbeddedServerFactory().start(tmp_path, crds=crds.load()) as server,
        running_workloads(server, only=("resource-claims-of-pods",)),
    ):
        await open_queue(server)
        await server.create(DEVICECLASSES.path(), kind)
        await server.create(RESOURCECLAIMTEMPLATES.path("default"), template)
        await add_devices(server, "a", 2, driver="gpu.batholith.io", memory="24Gi")
        await server.create(PODGROUPS.path("default"), typed(PODGROUPS, GANG))
        spec = job["spec"]["tasks"][0]["template"]["spec"] | {"schedulerName": "volcano"}
        annotations = {"scheduling.k8s.io/group-name": "g"}
        for name in ("p", "q"):
            metadata = {"name": name, "annotations": annotations}
            await server.create(PODS.path("default"), {"metadata": metadata, "spec": spec})
        async with scheduling(server):
            assert await wait_bound(server, "p", "q") == ["a", "a"]


# -- extended resources that devices provide -----------------------------------------------------

CARD = "example.com/card"


async def add_card_pod(server: Server, name: str) -> Json:
    body = pod(name)
    init = {"name": "init", "image": "i", "resources": _cards(2)}
    body["spec"]["initContainers"] = [init]
    body["spec"]["containers"][0]["resources"] = _cards(1)
    created: Json = await server.create(PODS.path("default"), body)
    return created


def _cards(count: int) -> Json:
    return {"requests": {CARD: str(count)}, "limits": {CARD: str(count)}}


async def claims_of_pods(server: Server) -> list[Json]:
    return list((await server.get(RESOURCECLAIMS.path("default")))["items"])


async def test_a_claim_is_created_for_the_extended_resources_of_a_pod(server: Server) -> None:
    body = {"metadata": {"name": "card"}, "spec": {"extendedResourceName": CARD}}
    await server.create(DEVICECLASSES.path(), body)
    await add_devices(server, "a", 2)
    created = await add_card_pod(server, "p")
    async with scheduling(server):
        assert await wait_bound(server, "p") == ["a"]
    (claim,) = await claims_of_pods(server)
    meta, status = claim["metadata"], claim["status"]
    assert meta["name"].startswith("p-extended-resources-")
    assert meta["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert meta["ownerReferences"][0]["uid"] == created["metadata"]["uid"]
    results = status["allocation"]["devices"]["results"]
    # The init container has the device of the other one, and one more.
    assert [each["request"] for each in results] == [
        "container-0-request-0",
        "container-1-request-0",
    ]
    assert {each["device"] for each in results} == {"a0", "a1"}
    assert [each["uid"] for each in status["reservedFor"]] == [created["metadata"]["uid"]]
    found = (await server.get(PODS.path("default", "p")))["status"]["extendedResourceClaimStatus"]
    assert found["resourceClaimName"] == meta["name"]
    main = created["spec"]["containers"][0]["name"]
    assert [(each["containerName"], each["requestName"]) for each in found["requestMappings"]] == [
        (main, "container-1-request-0"),
        ("init", "container-1-request-0"),
        ("init", "container-0-request-0"),
    ]


async def test_the_claim_of_a_pod_that_was_not_bound_is_deleted(server: Server) -> None:
    body = {"metadata": {"name": "card"}, "spec": {"extendedResourceName": CARD}}
    await server.create(DEVICECLASSES.path(), body)
    await add_devices(server, "a", 2, fields=CONDITIONS)
    await add_card_pod(server, "p")
    async with scheduling(server) as recorder:
        await wait_for(lambda: has_event(recorder, "BindingConditionsPending"))
        (claim,) = await claims_of_pods(server)
        await server.request("DELETE", PODS.path("default", "p"))

        async def is_deleted() -> bool:
            return not await claims_of_pods(server)

        await wait_until_true(is_deleted)
    assert claim["metadata"]["finalizers"] == [FINALIZER]
