"""Objects of every cluster, which exist from the start and are restored."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import INITIAL_NAMESPACES, ServerFactory
from support.embedded_apiserver import MAPS, MERGE, EmbeddedServer, config_map, embedded_server
from support.polling import wait_until_true

from batholith.model import names

Json = dict[str, Any]
SERVICE = "/api/v1/namespaces/default/services/kubernetes"
ENDPOINTS = "/api/v1/namespaces/default/endpoints/kubernetes"
NAME_SERVER = "/api/v1/namespaces/kube-system/services/kube-dns"
SLICE = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as running:
        yield running


async def test_a_new_cluster_has_the_kubernetes_service(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:

        async def has_port() -> bool:
            """A real server that other tests restarted with another port writes it within 10 s."""
            (port,) = (await server.get(SERVICE))["spec"]["ports"]
            return bool(port["targetPort"] == int(server.url.rpartition(":")[2]))

        await wait_until_true(has_port)
        service = await server.get(SERVICE)
        assert service["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
        (port,) = service["spec"]["ports"]
        assert (port["name"], port["protocol"]) == ("https", "TCP")
        del service["spec"]["ports"]
        address = service["spec"].pop("clusterIP")
        assert service["spec"] == {
            "type": "ClusterIP",
            "clusterIPs": [address],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
        }
        assert service["status"] == {"loadBalancer": {}}
        found = await server.get(names.NAMESPACES.path())
        assert [each["metadata"]["name"] for each in found["items"]] == sorted(INITIAL_NAMESPACES)


async def test_the_kubernetes_service_has_the_servers_address(server: EmbeddedServer) -> None:
    spec = (await server.get(SERVICE))["spec"]
    address = f"{spec['clusterIP']}:{spec['ports'][0]['port']}"
    assert server.url == f"https://{address}"
    (subset,) = (await server.get(ENDPOINTS))["subsets"]
    assert address == f"{subset['addresses'][0]['ip']}:{subset['ports'][0]['port']}"
    slice_ = await server.get(SLICE)
    assert slice_["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    (endpoint,) = slice_["endpoints"]
    assert endpoint["conditions"] == {"ready": True}
    assert address == f"{endpoint['addresses'][0]}:{slice_['ports'][0]['port']}"


@pytest.mark.parametrize("path", [SERVICE, ENDPOINTS, SLICE])
async def test_the_kubernetes_service_and_its_endpoints_are_restored(
    server: EmbeddedServer, path: str
) -> None:
    before = await server.get(path)
    assert (await server.request("DELETE", path)).status == 200

    async def there() -> bool:
        return (await server.request("GET", path)).status == 200

    await wait_until_true(there)
    after = await server.get(path)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert _content(after) == _content(before)


async def test_a_change_of_the_kubernetes_service_is_reverted(server: EmbeddedServer) -> None:
    before = await server.get(SERVICE)
    body = {"spec": {"ports": [{"name": "https", "port": 1}]}}
    assert (await server.request("PATCH", SERVICE, body, content_type=MERGE)).status == 200

    async def restored() -> bool:
        return bool(_content(await server.get(SERVICE)) == _content(before))

    await wait_until_true(restored)


async def test_the_service_of_the_name_server_has_its_address_and_follows_it(
    tmp_path: Path,
) -> None:
    for address in ("127.129.0.7", "169.254.53.8"):
        async with embedded_server(tmp_path, dns_address=address) as server:
            spec = (await server.get(NAME_SERVER))["spec"]
            assert (spec["clusterIP"], spec["clusterIPs"]) == (address, [address])
            ports = {(each["name"], each["port"], each["protocol"]) for each in spec["ports"]}
            assert ports == {("dns", 53, "UDP"), ("dns-tcp", 53, "TCP")}
            assert (await server.request("DELETE", NAME_SERVER)).status == 200
            await wait_until_true(partial(_has_address, server, address))
    async with embedded_server(tmp_path) as server:

        async def is_deleted() -> bool:
            return (await server.request("GET", NAME_SERVER)).status == 404

        await wait_until_true(is_deleted)


async def _has_address(server: EmbeddedServer, address: str) -> bool:
    found = await server.request("GET", NAME_SERVER)
    return bool(found.status == 200 and found.body["spec"]["clusterIP"] == address)


@pytest.mark.parametrize(
    ("name", "address"), [("kube-dns", "127.0.0.1"), ("other-dns", "127.129.0.7")]
)
async def test_no_other_service_has_the_address_of_a_name_server(
    server: EmbeddedServer, name: str, address: str
) -> None:
    spec = {"clusterIP": address, "ports": [{"port": 53}]}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    response = await server.request("POST", "/api/v1/namespaces/kube-system/services", body)
    assert response.status == 422


async def test_other_api_servers_find_how_to_authenticate_requests(
    servers: ServerFactory, tmp_path: Path
) -> None:
    path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
    async with servers.start(tmp_path) as server:
        data = (await server.get(path))["data"]
    assert data.keys() == {
        "client-ca-file",
        "requestheader-allowed-names",
        "requestheader-client-ca-file",
        "requestheader-extra-headers-prefix",
        "requestheader-group-headers",
        "requestheader-uid-headers",
        "requestheader-username-headers",
    }
    for key in ("client-ca-file", "requestheader-client-ca-file"):
        assert data[key].startswith("-----BEGIN CERTIFICATE-----")


async def test_unchanged_default_objects_are_not_written(server: EmbeddedServer) -> None:
    body = {"metadata": {"labels": {"a": "b"}}}
    patched = await server.request("PATCH", SERVICE, body, content_type=MERGE)
    for name in "abc":
        await server.create(MAPS, config_map(name))
    assert (await server.get(SERVICE))["metadata"] == patched.body["metadata"]


async def test_a_server_restarted_with_another_port_is_ready_with_it_in_the_service(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        async with embedded_server(tmp_path) as server:
            (port,) = (await server.get(SERVICE))["spec"]["ports"]
            assert server.url.endswith(f":{port['port']}")


async def test_a_system_namespace_is_restored(server: EmbeddedServer) -> None:
    path = names.NAMESPACES.path("", "kube-node-lease")
    before = (await server.get(path))["metadata"]["uid"]
    assert (await server.request("DELETE", path)).status == 200

    async def is_recreated() -> bool:
        response = await server.request("GET", path)
        return response.status == 200 and response.body["metadata"]["uid"] != before

    await wait_until_true(is_recreated)


async def test_the_published_ca_is_restored(server: EmbeddedServer) -> None:
    path = f"{MAPS}/kube-root-ca.crt"
    assert (await server.request("GET", path)).body["data"] == {"ca.crt": server.ca.decode()}
    body = {"data": {"ca.crt": "another"}}
    assert (await server.request("PATCH", path, body, content_type=MERGE)).status == 200

    async def restored() -> bool:
        return bool((await server.get(path))["data"] == {"ca.crt": server.ca.decode()})

    await wait_until_true(restored)


def _content(obj: Json) -> Json:
    return {key: value for key, value in obj.items() if key != "metadata"}
