"""Addresses and node ports of Services: unique, kept, released; as at kube-apiserver."""

import asyncio
import ipaddress
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import (
    MERGE,
    EmbeddedServer,
    RawResponse,
    Server,
    embedded_server,
    pod,
)
from support.polling import wait_until_true

from batholith.local.apiserver.errors.status import StatusError
from batholith.local.apiserver.verbs.service_addresses import allocate
from batholith.model.names import PODS, SERVICES
from batholith.model.service_network import HOST_RANGES, NODE_PORTS, PodNetwork

Json = dict[str, Any]
PATH = SERVICES.path("default")
PORTS = [{"port": 80}]


async def create(server: Server, name: str, **spec: Any) -> RawResponse:
    body = {"metadata": {"name": name}, "spec": {"ports": PORTS, **spec}}
    return await server.request("POST", PATH, body)


async def created(server: Server, name: str, **spec: Any) -> Json:
    response = await create(server, name, **spec)
    assert response.status == 201, response.body
    found: Json = response.body["spec"]
    return found


async def changed(server: Server, name: str, **spec: Any) -> Json:
    response = await server.request("PATCH", f"{PATH}/{name}", {"spec": spec}, content_type=MERGE)
    assert response.status == 200, response.body
    found: Json = response.body["spec"]
    return found


async def delete(server: Server, name: str) -> None:
    assert (await server.request("DELETE", f"{PATH}/{name}")).status == 200


async def test_a_service_gets_an_address_of_its_own_and_keeps_it(server: Server) -> None:
    first, second = await created(server, "a"), await created(server, "b")
    assert first["clusterIP"] != second["clusterIP"]
    assert first["clusterIPs"] == [first["clusterIP"]]
    assert ipaddress.ip_address(first["clusterIP"])
    again = await changed(server, "a", ports=[{"port": 81}])
    assert again["clusterIP"] == first["clusterIP"]


async def test_a_requested_address_is_given_unless_it_is_taken(server: Server) -> None:
    address = (await created(server, "a"))["clusterIP"]
    taken = await create(server, "b", clusterIP=address)
    assert (taken.status, taken.body["reason"]) == (422, "Invalid")
    assert taken.body["message"].endswith(
        f'spec.clusterIPs: Invalid value: ["{address}"]: failed to allocate IP {address}: '
        "provided IP is already allocated"
    )
    await delete(server, "a")
    assert (await created(server, "b", clusterIP=address))["clusterIP"] == address


async def test_an_address_out_of_range_is_rejected(server: Server) -> None:
    refused = await create(server, "a", clusterIP="192.0.2.1")
    assert (refused.status, refused.body["reason"]) == (422, "Invalid")
    (cause,) = refused.body["details"]["causes"]
    assert cause["field"] == "spec.clusterIPs"
    assert cause["message"].startswith(
        'Invalid value: ["192.0.2.1"]: failed to allocate IP 192.0.2.1: the provided network does '
        "not match the current range"
    )


async def test_an_address_may_not_change_and_not_be_shared(server: Server) -> None:
    first, second = await created(server, "a"), await created(server, "b")
    wanted = second["clusterIP"]
    patch = {"spec": {"clusterIP": wanted, "clusterIPs": [wanted]}}
    refused = await server.request("PATCH", f"{PATH}/a", patch, content_type=MERGE)
    assert refused.status == 422, refused.body
    assert "may not change once set" in refused.body["message"]
    assert (await server.get(f"{PATH}/a"))["spec"]["clusterIP"] == first["clusterIP"]


async def test_a_headless_service_and_an_external_name_have_no_address(server: Server) -> None:
    headless = await created(server, "a", clusterIP="None")
    assert (headless["clusterIP"], headless["clusterIPs"]) == ("None", ["None"])
    external = await created(server, "b", type="ExternalName", externalName="example.com")
    assert not external.keys() & {"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"}


async def test_an_external_name_releases_the_address_that_it_had(server: Server) -> None:
    address = (await created(server, "a"))["clusterIP"]
    external = await changed(
        server, "a", type="ExternalName", externalName="example.com", clusterIP="", clusterIPs=None
    )
    assert not external.keys() & {
        "clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"
    }  # fmt: skip
    assert (await created(server, "b", clusterIP=address))["clusterIP"] == address
    back = await changed(server, "a", type="ClusterIP", externalName=None)
    assert back["clusterIP"] not in ("", address)


async def test_a_dry_run_takes_no_address(embedded: EmbeddedServer) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"ports": PORTS}}
    response = await embedded.request("POST", f"{PATH}?dryRun=All", body)
    address = response.body["spec"]["clusterIP"]
    assert (await created(embedded, "b", clusterIP=address))["clusterIP"] == address


async def test_node_ports_are_unique_kept_and_released_with_the_type(server: Server) -> None:
    spec = await created(server, "a", type="NodePort")
    port = spec["ports"][0]["nodePort"]
    assert port in NODE_PORTS
    taken = await create(server, "b", type="NodePort", ports=[{"port": 80, "nodePort": port}])
    assert taken.body["message"].endswith(
        f"spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"
    )
    kept = await changed(server, "a", ports=[{"port": 80, "targetPort": 8080}])
    assert kept["ports"][0]["nodePort"] == port
    plain = await changed(server, "a", type="ClusterIP")
    assert "nodePort" not in plain["ports"][0]
    assert "externalTrafficPolicy" not in plain
    again = await created(server, "b", type="NodePort", ports=[{"port": 80, "nodePort": port}])
    assert again["ports"][0]["nodePort"] == port


async def test_a_node_port_out_of_range_is_rejected(server: Server) -> None:
    refused = await create(server, "a", type="NodePort", ports=[{"port": 80, "nodePort": 22}])
    assert refused.status == 422
    assert refused.body["message"].endswith(
        "spec.ports[0].nodePort: Invalid value: 22: provided port is not in the valid range. The "
        "range of valid ports is 30000-32767"
    )


async def test_other_address_families_are_rejected(server: Server) -> None:
    for spec, text in (
        ({"ipFamilies": ["IPv6"]}, 'Invalid value: "IPv6": not configured on this cluster'),
        (
            {"ipFamilyPolicy": "RequireDualStack"},
            'Invalid value: "RequireDualStack": this cluster is not configured for dual-stack '
            "services",
        ),
    ):
        refused = await create(server, "a", **spec)
        assert refused.status == 422, refused.body
        assert text in refused.body["message"]


async def test_concurrent_creations_get_different_addresses(embedded: EmbeddedServer) -> None:
    specs = await asyncio.gather(*(created(embedded, f"s{each}") for each in range(50)))
    addresses = {spec["clusterIP"] for spec in specs}
    assert len(addresses) == 50
    assert all(ipaddress.ip_address(each) in HOST_RANGES.cluster_ips for each in addresses)


def service(name: str, **spec: Any) -> Json:
    spec = {"type": "ClusterIP", "ports": [{"port": 80, "protocol": "TCP"}], **spec}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def test_a_full_range_of_ports_rejects_further_services() -> None:
    everything = [{"port": each, "protocol": "TCP", "nodePort": each} for each in NODE_PORTS]
    full = service("full", type="NodePort", ports=everything, clusterIP="127.128.0.1")
    with pytest.raises(StatusError) as error:
        allocate(service("a", type="NodePort"), None, [full], cluster_ips=HOST_RANGES.cluster_ips)
    assert "failed to allocate a nodePort: range is full" in error.value.message
    # A protocol has its own ports.
    udp = [{"port": 1, "protocol": "UDP"}]
    wanted = service("a", type="NodePort", ports=udp)
    allocate(wanted, None, [full], cluster_ips=HOST_RANGES.cluster_ips)


def test_the_ends_of_the_network_are_no_addresses() -> None:
    for address in ("127.128.0.0", "127.128.255.255", "127.0.0.1", "127.64.0.1"):
        with pytest.raises(StatusError):
            allocate(service("a", clusterIP=address), None, [], cluster_ips=HOST_RANGES.cluster_ips)


async def test_services_move_to_the_range_of_another_network(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await created(server, "a")
        await created(server, "headless", clusterIP="None")
    async with embedded_server(tmp_path, pod_network=PodNetwork.NAMESPACES) as server:

        async def addresses() -> list[str]:
            return [each["spec"]["clusterIP"] for each in (await server.get(PATH))["items"]]

        async def have_moved() -> bool:
            moved, headless, api_server = await addresses()
            assert headless == "None"
            return moved.startswith("198.19.") and api_server == "198.19.0.1"

        await wait_until_true(have_moved)
        assert (await created(server, "b"))["clusterIP"].startswith("198.19.")
        refused = await create(server, "c", clusterIP="127.128.0.9")
        assert "does not match the current range (198.19.0.0/16)" in refused.body["message"]
        [port] = (await server.get(f"{PATH}/kubernetes"))["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (443, server.running.port)
        issuer = await server.get("/.well-known/openid-configuration")
        assert issuer["jwks_uri"] == "https://198.19.0.1:443/openid/v1/jwks"  # for pods


async def test_host_ports_cause_no_warning_where_they_have_an_effect(tmp_path: Path) -> None:
    containers = [{"name": "c", "image": "i", "ports": [{"containerPort": 1, "hostPort": 1}]}]
    for network, warned in ((PodNetwork.HOST, True), (PodNetwork.NAMESPACES, False)):
        async with embedded_server(tmp_path / network, pod_network=network) as server:
            response = await server.request(
                "POST", PODS.path("default"), pod("p", containers=containers)
            )
            assert any("hostPort" in text for text in response.warnings) is warned
