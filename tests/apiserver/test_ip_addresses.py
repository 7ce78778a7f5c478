"""ServiceCIDRs, and the IPAddresses of Services: on both servers."""

import uuid
from pathlib import Path
from typing import Any

from support.embedded_apiserver import MERGE, EmbeddedServer, Server, embedded_server
from support.polling import wait_until_true

from batholith.model.names import IP_ADDRESSES, SERVICE_CIDRS, SERVICES
from batholith.model.service_network import PodNetwork

Json = dict[str, Any]
PATH, RANGES, ADDRESSES = SERVICES.path("default"), SERVICE_CIDRS.path(), IP_ADDRESSES.path()
LABELS = {
    "ipaddress.kubernetes.io/ip-family": "IPv4",
    "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
}


async def create_service(server: Server, name: str, **spec: Any) -> str:
    body = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}
    address: str = (await server.create(PATH, body))["spec"]["clusterIP"]
    return address


async def wait_for_address(server: Server, address: str) -> Json:
    """Return the IPAddress once it exists."""
    found: list[Json] = []

    async def exists() -> bool:
        response = await server.request("GET", f"{ADDRESSES}/{address}")
        found[:] = [response.body]
        return response.status == 200

    await wait_until_true(exists)
    return found[0]


async def wait_deleted(server: Server, address: str) -> None:
    async def is_deleted() -> bool:
        return (await server.request("GET", f"{ADDRESSES}/{address}")).status == 404

    await wait_until_true(is_deleted)


async def test_the_default_service_cidr_is_ready(server: Server) -> None:
    async def is_ready() -> bool:
        found = await server.get(f"{RANGES}/kubernetes")
        return bool(found["status"].get("conditions"))

    await wait_until_true(is_ready)
    found = await server.get(f"{RANGES}/kubernetes")
    [condition] = found["status"]["conditions"]
    del condition["lastTransitionTime"]
    assert condition == {
        "type": "Ready",
        "status": "True",
        "reason": "",
        "message": "Kubernetes default Service CIDR is ready",
    }
    assert len(found["spec"]["cidrs"]) == 1


async def test_the_address_of_a_service_has_an_ip_address(server: Server) -> None:
    address = await create_service(server, "a")
    found = await wait_for_address(server, address)
    assert found["metadata"]["labels"] == LABELS
    parent = {"resource": "services", "namespace": "default", "name": "a"}
    assert found["spec"] == {"parentRef": parent}
    assert await create_service(server, "headless", clusterIP="None") == "None"
    await server.request("DELETE", f"{PATH}/a")
    await wait_deleted(server, address)
    listed = (await server.get(ADDRESSES))["items"]
    assert all(each["spec"]["parentRef"]["name"] == "kubernetes" for each in listed)


async def test_the_ip_address_is_deleted_when_the_service_releases_its_address(
    server: Server,
) -> None:
    address = await create_service(server, "a")
    await wait_for_address(server, address)
    external = {
        "type": "ExternalName", "externalName": "ex.io", "clusterIP": "", "clusterIPs": None
    }  # fmt: skip
    response = await server.request("PATCH", f"{PATH}/a", {"spec": external}, content_type=MERGE)
    assert response.status == 200, response.body
    await wait_deleted(server, address)


async def replaced(server: Server, old: Json) -> Json:
    """Return the IPAddress of the Service `a` that the server creates instead of *old*.

    kube-apiserver does so when the Service is updated, or after some minutes.
    """
    path, found = f"{ADDRESSES}/{old['metadata']['name']}", [old]

    async def is_replaced() -> bool:
        patch = {"metadata": {"labels": {"updated": uuid.uuid4().hex}}}
        await server.request("PATCH", f"{PATH}/a", patch, content_type=MERGE)
        response = await server.request("GET", path)
        found[:] = [response.body]
        return response.status == 200 and found[0]["metadata"]["uid"] != old["metadata"]["uid"]

    await wait_until_true(is_replaced)
    return found[0]


async def test_a_deleted_or_relabelled_ip_address_is_created_again(server: Server) -> None:
    address = await create_service(server, "a")
    path = f"{ADDRESSES}/{address}"
    first = await wait_for_address(server, address)
    assert (await server.request("DELETE", path)).status == 200
    second = await replaced(server, first)
    patch = {"metadata": {"labels": {"ipaddress.kubernetes.io/managed-by": None}}}
    assert (await server.request("PATCH", path, patch, content_type=MERGE)).status == 200
    third = await replaced(server, second)
    for each in (second, third):
        assert (each["metadata"]["labels"], each["spec"]) == (LABELS, first["spec"])
    assert (await server.get(f"{PATH}/a"))["spec"]["clusterIP"] == address


async def test_the_embedded_server_replaces_a_deleted_ip_address_at_once(
    embedded: EmbeddedServer,
) -> None:
    address = await create_service(embedded, "a")
    await wait_for_address(embedded, address)
    async with embedded.watch(f"{ADDRESSES}?watch=1") as lines:
        await embedded.request("DELETE", f"{ADDRESSES}/{address}")
        events = [await lines.next() for _ in range(3)]
    assert [each["type"] for each in events] == ["ADDED", "DELETED", "ADDED"]


async def test_an_address_that_a_client_has_reserved_is_not_given_to_services(
    server: Server,
) -> None:
    address = await create_service(server, "a")
    await wait_for_address(server, address)
    await server.request("DELETE", f"{PATH}/a")
    await wait_deleted(server, address)
    parent = {"group": "ex.io", "resource": "gateways", "namespace": "x", "name": "g"}
    mine = {"metadata": {"name": address}, "spec": {"parentRef": parent}}
    await server.create(ADDRESSES, mine)
    body = {"metadata": {"name": "b"}, "spec": {"ports": [{"port": 80}], "clusterIP": address}}
    refused = await server.request("POST", PATH, body)
    assert refused.status == 422, refused.body
    assert (
        f"failed to allocate IP {address}: provided IP is already allocated"
        in (refused.body["message"])
    )
    assert (await server.request("DELETE", f"{ADDRESSES}/{address}")).status == 200
    assert await create_service(server, "b", clusterIP=address) == address


async def test_no_other_range_is_accepted(embedded: EmbeddedServer) -> None:
    [own] = (await embedded.get(f"{RANGES}/kubernetes"))["spec"]["cidrs"]
    for body in (
        {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.0.0.0/24"]}},
        {"metadata": {"name": "same"}, "spec": {"cidrs": [own]}},
    ):
        refused = await embedded.request("POST", RANGES, body)
        assert refused.status == 422
        [cause] = refused.body["details"]["causes"]
        assert (cause["field"], cause["reason"]) == ("spec.cidrs", "FieldValueForbidden")
        assert f"one range of addresses for Services, {own}" in cause["message"]
    both = {"spec": {"cidrs": [own, "fd00::/108"]}}
    refused = await embedded.request("PATCH", f"{RANGES}/kubernetes", both, content_type=MERGE)
    assert refused.status == 422
    assert "one range of addresses" in refused.body["message"]
    assert len((await embedded.get(RANGES))["items"]) == 1


async def test_the_default_service_cidr_and_its_condition_are_restored(
    embedded: EmbeddedServer,
) -> None:
    path = f"{RANGES}/kubernetes"
    first = await embedded.get(path)
    assert (await embedded.request("DELETE", path)).status == 200

    async def is_ready() -> bool:
        response = await embedded.request("GET", path)
        if response.status == 404:
            return False
        conditions = response.body["status"].get("conditions") or ()
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    await wait_until_true(is_ready)
    second = await embedded.get(path)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["spec"] == first["spec"]
    body: Json = {"status": {"conditions": []}}
    response = await embedded.request("PATCH", f"{path}/status", body, content_type=MERGE)
    assert response.status == 200
    await wait_until_true(is_ready)


async def test_the_range_and_the_addresses_follow_the_network(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        former = await create_service(server, "a")
        await wait_for_address(server, former)
    async with embedded_server(tmp_path, pod_network=PodNetwork.NAMESPACES) as server:
        await wait_deleted(server, former)
        api_server = await wait_for_address(server, "198.19.0.1")
        assert api_server["spec"]["parentRef"]["name"] == "kubernetes"
        moved = (await server.get(f"{PATH}/a"))["spec"]["clusterIP"]
        assert (await wait_for_address(server, moved))["spec"]["parentRef"]["name"] == "a"
        assert (await server.get(f"{RANGES}/kubernetes"))["spec"]["cidrs"] == ["198.19.0.0/16"]
