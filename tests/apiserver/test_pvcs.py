"""Claims on the embedded server: which volume they are bound to, and why they are pending."""

from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, Server, embedded_server
from support.polling import wait_until_true

from batholith.model.names import (
    DIR_PROVISIONER,
    DIR_STORAGE_CLASS,
    EVENTS,
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    STORAGECLASSES,
)

Json = dict[str, Any]
CLAIMS = PERSISTENTVOLUMECLAIMS.path("default")
VOLUMES = PERSISTENTVOLUMES.path()
SELECTED_NODE = "volume.kubernetes.io/selected-node"


def claim(name: str = "c", size: str = "1Gi", **spec: Any) -> Json:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name}, "spec": {**wanted, **spec}}


def volume(name: str, size: str = "1Gi", **spec: Any) -> Json:
    rest = {"accessModes": ["ReadWriteOnce"], "hostPath": {"path": f"/data/{name}"}}
    return {"metadata": {"name": name}, "spec": {"capacity": {"storage": size}, **rest, **spec}}


async def wait_phase(server: Server, path: str, phase: str) -> Json:
    found: Json = {}

    async def is_in_phase() -> bool:
        found.update(await server.get(path))
        return bool(found["status"].get("phase") == phase)

    await wait_until_true(is_in_phase)
    return found


async def wait_event_message(server: Server, name: str, reason: str) -> str:
    """Wait for an event about a claim; return its message."""
    messages: list[str] = []

    async def event_exists() -> bool:
        events = (await server.get(EVENTS.path("default")))["items"]
        about = [e for e in events if (e["involvedObject"]["name"], e["reason"]) == (name, reason)]
        messages[:] = [each["message"] for each in about]
        return bool(messages)

    await wait_until_true(event_exists)
    return messages[-1]


async def wait_deleted(server: Server, path: str) -> None:
    async def is_deleted() -> bool:
        return (await server.request("GET", path)).status == 404

    await wait_until_true(is_deleted)


async def test_a_claim_is_bound_when_it_is_created(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(CLAIMS, claim(size="2Gi"))
        bound = await wait_phase(server, f"{CLAIMS}/c", "Bound")
        volume = await server.get(f"{VOLUMES}/{bound['spec']['volumeName']}")
        assert bound["status"] == {
            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
        }  # fmt: skip
        assert bound["spec"]["storageClassName"] == DIR_STORAGE_CLASS
        assert volume["spec"]["claimRef"]["uid"] == bound["metadata"]["uid"]
        assert volume["spec"]["csi"]["driver"] == DIR_PROVISIONER
        assert volume["status"]["phase"] == "Bound"
        await server.request("DELETE", f"{CLAIMS}/c")
        await wait_deleted(server, f"{VOLUMES}/{volume['metadata']['name']}")


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"storageClassName": "none"}, "ProvisioningFailed", '"none" not found'),
        ({"storageClassName": ""}, "FailedBinding", "no storage class is set"),
        ({"volumeName": "none"}, "FailedBinding", 'volume "none" not found'),
        ({"selector": {"matchLabels": {"a": "b"}}}, "ProvisioningFailed", "spec.selector"),
        ({"volumeMode": "Block"}, "ProvisioningFailed", "block"),
        ({"accessModes": ["ReadWriteOncePod"]}, "ProvisioningFailed", "ReadWriteOncePod"),
        (
            {"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}},
            "ProvisioningFailed",
            "spec.dataSource",
        ),
    ],
)
async def test_a_claim_that_cannot_be_bound_has_an_event_with_the_reason(
    spec: Json, reason: str, message: str, tmp_path: Path
) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(CLAIMS, claim(**spec))
        assert message in await wait_event_message(server, "c", reason)
        found = await server.get(f"{CLAIMS}/c")
        assert found["status"] == {"phase": "Pending"}
        assert (await server.get(VOLUMES))["items"] == []


@pytest.mark.parametrize(
    ("more", "reason", "message"),
    [
        ({"provisioner": "ex.io/p"}, "ExternalProvisioning", 'provisioner "ex.io/p"'),
        (
            {"provisioner": DIR_PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"},
            "WaitForFirstConsumer",
            "waiting for first consumer",
        ),
        (
            {"provisioner": DIR_PROVISIONER, "parameters": {"a": "b"}},
            "ProvisioningFailed",
            "parameters",
        ),
    ],
)
async def test_claims_of_an_unsupported_class_stay_pending(
    more: Json, reason: str, message: str, tmp_path: Path
) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(STORAGECLASSES.path(), {"metadata": {"name": "x"}, **more})
        await server.create(CLAIMS, claim(storageClassName="x"))
        assert message in await wait_event_message(server, "c", reason)
        assert (await server.get(f"{CLAIMS}/c"))["status"] == {"phase": "Pending"}


async def test_a_volume_is_provisioned_for_the_node_that_the_scheduler_selects(
    tmp_path: Path,
) -> None:
    late = {"provisioner": DIR_PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"}
    topology = [{"matchLabelExpressions": [{"key": "zone", "values": ["z"]}]}]
    node = {"metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "host"}}}
    async with embedded_server(tmp_path) as server:
        classes = {"metadata": {"name": "late"}, **late, "allowedTopologies": topology}
        await server.create(STORAGECLASSES.path(), classes)
        await server.create(NODES.path(), node)
        await server.create(VOLUMES, volume("free", storageClassName="late"))
        await server.create(CLAIMS, claim(storageClassName="late"))
        await wait_event_message(server, "c", "WaitForFirstConsumer")

        async def select(chosen: str) -> None:
            patch = {"metadata": {"annotations": {SELECTED_NODE: chosen}}}
            path = f"{CLAIMS}/c"
            response = await server.request("PATCH", path, patch, content_type=MERGE)
            assert response.status == 200, response

        await select("unknown")

        async def is_dropped() -> bool:
            found = await server.get(f"{CLAIMS}/c")
            return SELECTED_NODE not in found["metadata"].get("annotations", {})

        await wait_until_true(is_dropped)
        await select("n")
        bound = await wait_phase(server, f"{CLAIMS}/c", "Bound")
        provisioned = await server.get(f"{VOLUMES}/{bound['spec']['volumeName']}")
        (term,) = provisioned["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["host"]}
        ]
        assert provisioned["spec"]["storageClassName"] == "late"


async def test_a_claim_that_binds_late_gets_the_volume_that_names_it(tmp_path: Path) -> None:
    late = {"provisioner": "ex.io/none", "volumeBindingMode": "WaitForFirstConsumer"}
    async with embedded_server(tmp_path) as server:
        await server.create(STORAGECLASSES.path(), {"metadata": {"name": "late"}, **late})
        await server.create(CLAIMS, claim(storageClassName="late"))
        await wait_event_message(server, "c", "WaitForFirstConsumer")
        about = {"namespace": "default", "name": "c"}
        await server.create(VOLUMES, volume("v", storageClassName="late", claimRef=about))
        bound = await wait_phase(server, f"{CLAIMS}/c", "Bound")
        assert bound["spec"]["volumeName"] == "v"


async def test_a_pending_claim_is_bound_when_its_class_is_created(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(CLAIMS, claim(storageClassName="new"))
        await wait_event_message(server, "c", "ProvisioningFailed")
        storage_class = {"metadata": {"name": "new"}, "provisioner": DIR_PROVISIONER}
        await server.create(STORAGECLASSES.path(), {**storage_class, "reclaimPolicy": "Retain"})
        bound = await wait_phase(server, f"{CLAIMS}/c", "Bound")
        await server.request("DELETE", f"{CLAIMS}/c")
        await wait_phase(server, f"{VOLUMES}/{bound['spec']['volumeName']}", "Released")


async def test_the_smallest_matching_volume_is_bound(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(VOLUMES, volume("small", "1Gi"))
        await server.create(VOLUMES, volume("large", "9Gi"))
        await server.create(VOLUMES, volume("right", "3Gi"))
        await server.create(VOLUMES, volume("classy", "2Gi", storageClassName="other"))
        await server.create(VOLUMES, volume("shared", "2Gi", accessModes=["ReadOnlyMany"]))
        await server.create(CLAIMS, claim(size="2Gi", storageClassName=""))
        bound = await wait_phase(server, f"{CLAIMS}/c", "Bound")
        assert bound["spec"]["volumeName"] == "right"
        assert bound["status"]["capacity"] == {"storage": "3Gi"}
        await wait_phase(server, f"{VOLUMES}/right", "Bound")
        await wait_phase(server, f"{VOLUMES}/large", "Available")
        await server.create(CLAIMS, claim("d", "8Gi", storageClassName="", volumeName="right"))
        assert "already bound" in await wait_event_message(server, "d", "FailedBinding")
        await server.create(CLAIMS, claim("e", "8Gi", storageClassName="", volumeName="small"))
        assert "too small" in await wait_event_message(server, "e", "VolumeMismatch")


async def test_a_volume_that_cannot_be_deleted_fails_with_a_message(tmp_path: Path) -> None:
    policy = {"persistentVolumeReclaimPolicy": "Delete"}
    async with embedded_server(tmp_path) as server:
        await server.create(VOLUMES, volume("v", **policy))
        await server.create(CLAIMS, claim(storageClassName="", volumeName="v"))
        await wait_phase(server, f"{CLAIMS}/c", "Bound")
        await server.request("DELETE", f"{CLAIMS}/c")
        failed = await wait_phase(server, f"{VOLUMES}/v", "Failed")
        assert "hostPath" in failed["status"]["message"]


async def test_a_claim_whose_volume_was_deleted_is_lost(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(CLAIMS, claim())
        bound = await wait_phase(server, f"{CLAIMS}/c", "Bound")
        volume = f"{VOLUMES}/{bound['spec']['volumeName']}"
        await server.request("DELETE", volume)
        change = {"metadata": {"finalizers": None}}  # it protects the volume while it is bound
        await server.request("PATCH", volume, change, content_type=MERGE)
        await wait_phase(server, f"{CLAIMS}/c", "Lost")


async def test_a_claim_bound_by_an_older_version_keeps_its_directory(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(CLAIMS, claim(storageClassName="none"))
        path = f"{CLAIMS}/c/status"
        body = {"status": {"phase": "Bound"}}  # as an old agent wrote it
        await server.request("PATCH", path, body, content_type=MERGE)

        async def adopted() -> bool:
            return "volumeName" in (await server.get(f"{CLAIMS}/c"))["spec"]

        await wait_until_true(adopted)
        found = await server.get(f"{CLAIMS}/c")
        volume = await server.get(f"{VOLUMES}/{found['spec']['volumeName']}")
        assert volume["spec"]["csi"]["volumeHandle"] == found["metadata"]["uid"]


@pytest.mark.parametrize("lost", ["claim", "volume"])
async def test_a_binding_interrupted_by_a_crash_is_completed(lost: str, tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(VOLUMES, volume("v"))
        waits = await server.create(CLAIMS, claim(storageClassName="none"))
        await wait_event_message(server, "c", "ProvisioningFailed")
        about = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"}
        about["uid"] = waits["metadata"]["uid"] if lost == "claim" else "another"
        half = {"claimRef": about, "storageClassName": "none"}
        await server.request("PATCH", f"{VOLUMES}/v", {"spec": half}, content_type=MERGE)
        if lost == "claim":
            await wait_phase(server, f"{CLAIMS}/c", "Bound")
        await wait_phase(server, f"{VOLUMES}/v", "Bound" if lost == "claim" else "Released")


async def _grow(server: Server, size: str) -> None:
    spec = {"resources": {"requests": {"storage": size}}}
    response = await server.request("PATCH", f"{CLAIMS}/c", {"spec": spec}, content_type=MERGE)
    assert response.status == 200, response.body


async def test_a_claim_of_the_default_class_can_grow(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await server.create(CLAIMS, claim())
        bound = await wait_phase(server, f"{CLAIMS}/c", "Bound")
        await _grow(server, "3Gi")

        async def has_grown() -> bool:
            status = (await server.get(f"{CLAIMS}/c"))["status"]
            return bool(status["capacity"] == {"storage": "3Gi"})

        await wait_until_true(has_grown)
        volume = await server.get(f"{VOLUMES}/{bound['spec']['volumeName']}")
        assert volume["spec"]["capacity"] == {"storage": "3Gi"}


async def test_a_claim_of_another_provisioner_waits_for_it_to_grow(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        body = {"metadata": {"name": "other"}, "provisioner": "a.b", "allowVolumeExpansion": True}
        await server.create(STORAGECLASSES.path(), body)
        await server.create(CLAIMS, claim(volumeName="v", storageClassName="other"))
        await server.create(VOLUMES, volume("v", storageClassName="other"))
        await wait_phase(server, f"{CLAIMS}/c", "Bound")
        await _grow(server, "3Gi")
        assert "external controller" in await wait_event_message(server, "c", "ExternalExpanding")
        found = await server.get(f"{CLAIMS}/c")
        assert found["status"]["capacity"] == {"storage": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "status", "message"),
    [
        (
            {"resources": {"requests": {"storage": "2Gi"}}},
            403,
            'persistentvolumeclaims "c" is forbidden: only dynamically provisioned pvc can be '
            "resized and the storageclass that provisions the pvc must support resize",
        ),
        (
            {"resources": {"requests": {"storage": "1Mi"}}},
            422,
            "requests.storage: Forbidden: field can not be less than status.capacity",
        ),
        ({"volumeName": "other"}, 422, "spec: Forbidden: spec is immutable after creation"),
        ({"storageClassName": "other"}, 422, "spec: Forbidden: spec is immutable after creation"),
        ({"resources": {"requests": {"storage": "1024Mi"}}}, 200, ""),
    ],
    ids=["larger", "smaller", "volume", "class", "same size"],
)
async def test_a_bound_claim_cannot_be_changed(
    spec: Json, status: int, message: str, servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        await server.create(CLAIMS, claim(volumeName="v", storageClassName="static"))
        await server.create(VOLUMES, volume("v", storageClassName="static"))
        if servers.name == "real":  # has no controller that binds claims
            bound = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
            await server.request(
                "PATCH", f"{CLAIMS}/c/status", {"status": bound}, content_type=MERGE
            )
        await wait_phase(server, f"{CLAIMS}/c", "Bound")
        response = await server.request("PATCH", f"{CLAIMS}/c", {"spec": spec}, content_type=MERGE)
        assert response.status == status, response.body
        assert message in response.body.get("message", "")
