"""Endpoints that users write, mirrored to EndpointSlices as kube-controller-manager does."""

from typing import Any

import pytest
from support.embedded_apiserver import MERGE
from support.workload_cluster import WorkloadCluster

from batholith.local.workloads.endpoint_mirroring import MAX_ENDPOINTS, contents
from batholith.model.names import ENDPOINTS, ENDPOINTSLICES, SERVICES

Json = dict[str, Any]
pytestmark = pytest.mark.cluster

PORTS = [{"name": "http", "port": 80}]
MIRRORED = "endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io"


def subset(*addresses: str, port: int = 8080, **fields: Any) -> Json:
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    return {"addresses": [{"ip": each} for each in addresses], "ports": ports, **fields}


async def make_service(cluster: WorkloadCluster, **spec: Any) -> Json:
    return await cluster.create(SERVICES, "db", {"ports": PORTS, **spec})


async def write_endpoints(cluster: WorkloadCluster, *subsets: Json, **metadata: Any) -> Json:
    body = {"metadata": {"name": "db", **metadata}, "subsets": list(subsets)}
    return await cluster.server.create(cluster.path(ENDPOINTS), body)


async def change(cluster: WorkloadCluster, body: Json) -> None:
    path = cluster.path(ENDPOINTS, "db")
    changed = await cluster.server.request("PATCH", path, body, content_type=MERGE)
    assert changed.status == 200, changed.body


async def wait_addresses(cluster: WorkloadCluster, *wanted: str) -> list[Json]:
    """Wait until exactly these addresses are mirrored."""

    def holds(found: list[Json]) -> bool:
        all_ = [ip for each in found for one in each["endpoints"] for ip in one["addresses"]]
        return sorted(all_) == sorted(wanted)

    return await cluster.wait_list(ENDPOINTSLICES, holds, MIRRORED)


async def test_written_endpoints_are_mirrored(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    not_ready = [{"ip": "192.0.2.2", "nodeName": "n"}]
    annotations = {"a": "b", "endpoints.kubernetes.io/last-change-trigger-time": "x"}
    written = await write_endpoints(
        cluster,
        subset("192.0.2.1", notReadyAddresses=not_ready),
        labels={"team": "a"},
        annotations=annotations,
    )
    (found,) = await wait_addresses(cluster, "192.0.2.1", "192.0.2.2")
    meta = found["metadata"]
    assert meta["name"].startswith("db-")
    assert meta["annotations"] == {"a": "b"}
    assert meta["labels"] == {
        "team": "a",
        "kubernetes.io/service-name": "db",
        "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
    }
    assert meta["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "name": "db",
            "uid": written["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert (found["addressType"], found["ports"]) == (
        "IPv4", [{"name": "http", "port": 8080, "protocol": "TCP"}],
    )  # fmt: skip
    by_address = {each["addresses"][0]: each for each in found["endpoints"]}
    assert by_address["192.0.2.1"]["conditions"] == {"ready": True}
    assert by_address["192.0.2.2"]["conditions"] == {"ready": False}
    assert by_address["192.0.2.2"]["nodeName"] == "n"


async def test_slices_follow_their_endpoints(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    await write_endpoints(cluster, subset("192.0.2.1"), labels={"team": "a"})
    await wait_addresses(cluster, "192.0.2.1")
    await change(cluster, {"subsets": [subset("192.0.2.3")], "metadata": {"labels": None}})
    (found,) = await wait_addresses(cluster, "192.0.2.3")
    assert "team" not in found["metadata"]["labels"]
    both = [subset("192.0.2.3", "2001:db8::1"), subset("192.0.2.4", port=9090)]
    await change(cluster, {"subsets": both})
    families = await wait_addresses(cluster, "192.0.2.3", "192.0.2.4", "2001:db8::1")
    assert sorted((each["addressType"], each["ports"][0]["port"]) for each in families) == [
        ("IPv4", 8080), ("IPv4", 9090), ("IPv6", 8080),
    ]  # fmt: skip
    await cluster.server.request("DELETE", cluster.path(ENDPOINTS, "db"))
    await wait_addresses(cluster)


async def test_what_is_not_to_be_mirrored_has_no_slices(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    await write_endpoints(cluster, subset("192.0.2.1"))
    await wait_addresses(cluster, "192.0.2.1")
    skipped = {"endpointslice.kubernetes.io/skip-mirror": "true"}
    await change(cluster, {"metadata": {"labels": skipped}})
    await wait_addresses(cluster)
    await change(cluster, {"metadata": {"labels": dict.fromkeys(skipped)}})
    await wait_addresses(cluster, "192.0.2.1")
    await cluster.server.request("DELETE", cluster.path(SERVICES, "db"))
    await wait_addresses(cluster)


async def test_a_deleted_slice_is_created_again(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    await write_endpoints(cluster, subset("192.0.2.1"))
    (found,) = await wait_addresses(cluster, "192.0.2.1")
    name = found["metadata"]["name"]
    await cluster.server.request("DELETE", cluster.path(ENDPOINTSLICES, name))

    def is_new(now: list[Json]) -> bool:
        return [each["metadata"]["uid"] for each in now] not in ([], [found["metadata"]["uid"]])

    await cluster.wait_list(ENDPOINTSLICES, is_new, MIRRORED)


def test_at_most_a_thousand_addresses_of_a_subset_are_mirrored() -> None:
    addresses = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(MAX_ENDPOINTS + 3)]
    ((family, _, endpoints),), skipped = contents([subset(*addresses)])
    assert (family, len(endpoints), skipped) == ("IPv4", MAX_ENDPOINTS, 3)
