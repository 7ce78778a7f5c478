"""Claims, volumes and VolumeAttributesClasses are kept while something uses them."""

from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, Server, embedded_server
from support.polling import wait_until_true

from batholith.local.apiserver.builtin.protection_finalizers import (
    ATTRIBUTES_CLASSES,
    PROTECTION_FINALIZERS,
)
from batholith.model.names import NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS

Json = dict[str, Any]
CLAIMS, VOLUMES, CLASSES = (
    PERSISTENTVOLUMECLAIMS.path("default"), PERSISTENTVOLUMES.path(), ATTRIBUTES_CLASSES.path(),
)  # fmt: skip
ALL_PODS = PODS.path("default")
FINALIZER = PROTECTION_FINALIZERS[PERSISTENTVOLUMECLAIMS]


def claim(**spec: Any) -> Json:
    needed = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": "c"}, "spec": {**needed, "storageClassName": "", **spec}}


def user(name: str, **spec: Any) -> Json:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    container = {"name": "c", "image": "i"}
    whole = {"containers": [container], "volumes": [volume], **spec}
    return {"metadata": {"name": name}, "spec": {**whole, "automountServiceAccountToken": False}}


async def wait_deleted(server: Server, path: str) -> None:
    async def is_deleted() -> bool:
        return (await server.request("GET", path)).status == 404

    await wait_until_true(is_deleted)


async def delete(server: Server, path: str) -> None:
    response = await server.request("DELETE", path, {"gracePeriodSeconds": 0})
    assert response.status == 200, response.body


async def assert_terminating(server: Server, path: str) -> None:
    """Assert it after a later deletion of an unused object has been handled."""
    metadata = (await server.get(path))["metadata"]
    assert "deletionTimestamp" in metadata and metadata["finalizers"]


async def test_a_claim_stays_while_a_pod_with_a_node_mounts_it(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        await server.create(NODES.path(), {"metadata": {"name": "n"}})
        created = await server.create(CLAIMS, claim())
        assert created["metadata"]["finalizers"] == [FINALIZER]
        await server.create(ALL_PODS, user("running", nodeName="n"))
        await server.create(ALL_PODS, user("waiting"))
        await delete(server, f"{CLAIMS}/c")
        unused = claim()
        unused["metadata"]["name"] = "unused"
        await server.create(CLAIMS, unused)
        await delete(server, f"{CLAIMS}/unused")
        await wait_deleted(server, f"{CLAIMS}/unused")
        await assert_terminating(server, f"{CLAIMS}/c")
        status = {"status": {"phase": "Succeeded"}}
        path = f"{ALL_PODS}/running"
        await server.request("PATCH", f"{path}/status", status, content_type=MERGE)
        await assert_terminating(server, f"{CLAIMS}/c")
        await delete(server, path)
        await wait_deleted(server, f"{CLAIMS}/c")


async def test_a_claim_that_lost_its_finalizer_gets_it_again(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        await server.create(CLAIMS, claim())
        path, change = f"{CLAIMS}/c", {"metadata": {"finalizers": ["example.com/own"]}}
        assert (await server.request("PATCH", path, change, content_type=MERGE)).status == 200

        async def has_finalizer() -> bool:
            return FINALIZER in (await server.get(path))["metadata"]["finalizers"]

        await wait_until_true(has_finalizer)


async def test_a_class_stays_while_a_claim_has_it(servers: ServerFactory, tmp_path: Path) -> None:
    async with servers.start(tmp_path) as server:
        body = {"metadata": {"name": "a"}, "driverName": "d", "parameters": {"a": "b"}}
        await server.create(CLASSES, body)
        await server.create(CLASSES, {**body, "metadata": {"name": "unused"}})
        await server.create(CLAIMS, claim(volumeAttributesClassName="a"))
        await delete(server, f"{CLASSES}/a")
        await delete(server, f"{CLASSES}/unused")
        await wait_deleted(server, f"{CLASSES}/unused")
        await assert_terminating(server, f"{CLASSES}/a")
        await delete(server, f"{CLAIMS}/c")
        await wait_deleted(server, f"{CLASSES}/a")


async def _bound(server: Server) -> str:
    """Create a claim, and wait until it is bound; return the path of its volume."""
    spec = claim()
    del spec["spec"]["storageClassName"]
    await server.create(CLAIMS, spec)

    async def is_bound() -> bool:
        return bool((await server.get(f"{CLAIMS}/c"))["status"].get("phase") == "Bound")

    await wait_until_true(is_bound)
    return f"{VOLUMES}/{(await server.get(f'{CLAIMS}/c'))['spec']['volumeName']}"


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_a_deleted_volume_stays_while_it_is_bound(policy: str, tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        volume = await _bound(server)
        change = {"spec": {"persistentVolumeReclaimPolicy": policy}}
        await server.request("PATCH", volume, change, content_type=MERGE)
        await delete(server, volume)
    async with embedded_server(tmp_path) as server:
        await assert_terminating(server, volume)
        assert (await server.get(volume))["status"]["phase"] == "Bound"
        await delete(server, f"{CLAIMS}/c")
        await wait_deleted(server, f"{CLAIMS}/c")
        await wait_deleted(server, volume)
