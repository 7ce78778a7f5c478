"""Endpoints and EndpointSlices of Services, as kube-controller-manager writes them."""

from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import embedded_server
from support.workload_cluster import (
    NODE,
    WorkloadCluster,
    embedded_workloads,
    running_workloads,
)

from batholith.model.names import ENDPOINTS, ENDPOINTSLICES, PODS, SERVICES

Json = dict[str, Any]
pytestmark = pytest.mark.cluster

LABELS = {"app": "web"}
PORTS = [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "alt", "port": 81}]
_NAMED = {"container": {"ports": [{"name": "web", "containerPort": 8080}]}}


async def make_service(cluster: WorkloadCluster, name: str = "web", **spec: Any) -> Json:
    spec = {"selector": LABELS, "ports": PORTS, **spec}
    return await cluster.create(SERVICES, name, spec, labels={"team": "a"})


async def slices(cluster: WorkloadCluster) -> list[Json]:
    return await cluster.list_all(ENDPOINTSLICES, "kubernetes.io/service-name=web")


async def only_slice(cluster: WorkloadCluster) -> Json:
    """The slice with endpoints, once an empty one that preceded it is deleted."""
    (found,) = await cluster.wait_list(
        ENDPOINTSLICES, lambda found: len(found) == 1, "kubernetes.io/service-name=web"
    )
    return found


def conditions(found: list[Json]) -> dict[str, tuple[bool, bool, bool]]:
    """Ready, serving and terminating by pod."""
    return {
        each["targetRef"]["name"]: tuple(
            each["conditions"][key] for key in ("ready", "serving", "terminating")
        )
        for one in found
        for each in one["endpoints"] or ()
    }


async def wait_conditions(cluster: WorkloadCluster, **wanted: tuple[bool, bool, bool]) -> None:
    await cluster.wait_list(
        ENDPOINTSLICES,
        lambda found: conditions(found) == wanted,
        "kubernetes.io/service-name=web",
    )


async def test_ready_pods_are_published_with_their_ports(cluster: WorkloadCluster) -> None:
    service = await make_service(cluster)
    pod = await cluster.make_pod("a", LABELS, hostname="host", subdomain="web", **_NAMED)
    await cluster.make_pod("other", {"app": "other"})
    await cluster.set_ready("a")
    await wait_conditions(cluster, a=(True, True, False))
    found = await only_slice(cluster)
    meta = found["metadata"]
    assert meta["name"].startswith("web-")
    assert meta["labels"] == {
        "team": "a",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    (owner,) = meta["ownerReferences"]
    assert owner == {
        "apiVersion": "v1",
        "kind": "Service",
        "name": "web",
        "uid": service["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    target = {
        "kind": "Pod",
        "namespace": cluster.namespace,
        "name": "a",
        "uid": pod["metadata"]["uid"],
    }
    address = cluster.addresses["a"]
    assert found["addressType"] == "IPv4"
    assert found["endpoints"] == [
        {
            "addresses": [address],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "hostname": "host",
            "nodeName": NODE,
            "targetRef": target,
        }
    ]
    by_name = {port["name"]: (port["port"], port["protocol"]) for port in found["ports"]}
    assert by_name == {"http": (8080, "TCP"), "alt": (81, "TCP")}
    old = await cluster.wait(ENDPOINTS, "web", lambda each: each.get("subsets"))
    assert old["metadata"]["labels"] == {
        "team": "a", "endpoints.kubernetes.io/managed-by": "endpoint-controller",
    }  # fmt: skip
    (subset,) = old["subsets"]
    assert subset["addresses"] == [
        {"ip": address, "hostname": "host", "nodeName": NODE, "targetRef": target}
    ]
    assert {(port["name"], port["port"]) for port in subset["ports"]} == {
        ("http", 8080), ("alt", 81),
    }  # fmt: skip


async def test_a_service_without_pods_has_an_empty_slice(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    assert not (await only_slice(cluster))["endpoints"]
    await cluster.wait(ENDPOINTS, "web", lambda each: not each.get("subsets"))


async def test_pods_that_are_not_ready_are_published_as_such(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    for name in ("a", "b", "c"):
        await cluster.make_pod(name, LABELS, **_NAMED)
        await cluster.set_ready(name, ready=name != "b")
    await cluster.set_phase("c", "Succeeded")
    await wait_conditions(cluster, a=(True, True, False), b=(False, False, False))

    def split(each: Json) -> bool:
        (subset,) = each.get("subsets") or [{}]
        return [len(subset.get(key, ())) for key in ("addresses", "notReadyAddresses")] == [1, 1]

    await cluster.wait(ENDPOINTS, "web", split)
    await cluster.set_ready("b")
    await wait_conditions(cluster, a=(True, True, False), b=(True, True, False))


async def test_all_pods_are_ready_where_that_is_asked_for(cluster: WorkloadCluster) -> None:
    await make_service(cluster, publishNotReadyAddresses=True, clusterIP="None")
    await cluster.make_pod("a", LABELS)
    await cluster.set_ready("a", ready=False)
    await wait_conditions(cluster, a=(True, False, False))
    found = await only_slice(cluster)
    assert found["metadata"]["labels"]["service.kubernetes.io/headless"] == ""
    ready = await cluster.wait(ENDPOINTS, "web", lambda each: each.get("subsets"))
    assert len(ready["subsets"][0]["addresses"]) == 1


async def test_a_pod_that_ends_still_serves(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    await cluster.make_pod("a", LABELS, **_NAMED)
    await cluster.patch(PODS, "a", {"metadata": {"finalizers": ["ex.io/stay"]}})
    await cluster.set_ready("a")
    await wait_conditions(cluster, a=(True, True, False))
    await cluster.delete(PODS, "a")
    await wait_conditions(cluster, a=(False, True, True))
    await cluster.wait(ENDPOINTS, "web", lambda each: not each.get("subsets"))
    await cluster.patch(PODS, "a", {"metadata": {"finalizers": None}})
    await wait_conditions(cluster)


async def test_endpoints_follow_the_selector_and_the_labels(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    for name in ("a", "b"):
        await cluster.make_pod(name, LABELS | {"which": name}, **_NAMED)
        await cluster.set_ready(name)
    await wait_conditions(cluster, a=(True, True, False), b=(True, True, False))
    await cluster.patch(PODS, "a", {"metadata": {"labels": {"app": "else"}}})
    await wait_conditions(cluster, b=(True, True, False))
    await cluster.patch(SERVICES, "web", {"spec": {"selector": {"app": None, "which": "a"}}})
    await wait_conditions(cluster, a=(True, True, False))


async def test_pods_with_other_ports_are_in_slices_of_their_own(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    for name, number in (("a", 8080), ("b", 9090), ("c", 0)):
        ports = [{"name": "web", "containerPort": number}] if number else []
        await cluster.make_pod(name, LABELS, container={"ports": ports})
        await cluster.set_ready(name)
    expected = {
        "a": {"http": 8080, "alt": 81}, "b": {"http": 9090, "alt": 81}, "c": {"alt": 81},
    }  # fmt: skip
    await cluster.wait_list(
        ENDPOINTSLICES,
        lambda found: (
            _ports_by_pod(found) == expected
            and conditions(found) == dict.fromkeys(expected, (True, True, False))
        ),
        "kubernetes.io/service-name=web",
    )


def _ports_by_pod(found: list[Json]) -> dict[str, Json]:
    """The ports of the slices of each pod; an empty slice that preceded them has none."""
    return {
        endpoint["targetRef"]["name"]: {port["name"]: port["port"] for port in each["ports"]}
        for each in found
        for endpoint in each["endpoints"]
    }


async def test_what_others_change_is_restored(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    await cluster.make_pod("a", LABELS, **_NAMED)
    await cluster.set_ready("a")
    await wait_conditions(cluster, a=(True, True, False))
    found = await only_slice(cluster)
    await cluster.patch(ENDPOINTSLICES, found["metadata"]["name"], {"endpoints": []})
    await wait_conditions(cluster, a=(True, True, False))
    found = await only_slice(cluster)
    await cluster.delete(ENDPOINTSLICES, found["metadata"]["name"])
    await wait_conditions(cluster, a=(True, True, False))
    await cluster.wait(ENDPOINTS, "web", lambda each: each.get("subsets"))
    await cluster.delete(ENDPOINTS, "web")
    await cluster.wait(ENDPOINTS, "web", lambda each: each.get("subsets"))


async def test_endpoints_end_with_their_service(cluster: WorkloadCluster) -> None:
    await make_service(cluster)
    await cluster.make_pod("a", LABELS, **_NAMED)
    await cluster.set_ready("a")
    await wait_conditions(cluster, a=(True, True, False))
    await cluster.wait(ENDPOINTS, "web", lambda each: each.get("subsets"))
    await cluster.delete(SERVICES, "web")
    await cluster.wait_deleted(ENDPOINTS, "web")
    await cluster.wait_list(
        ENDPOINTSLICES, lambda found: not found, "kubernetes.io/service-name=web"
    )


async def test_services_without_selector_are_left_alone(cluster: WorkloadCluster) -> None:
    await cluster.create(SERVICES, "own", {"ports": [{"port": 80}]})
    subsets = [{"addresses": [{"ip": "10.2.0.1"}], "ports": [{"port": 8080}]}]
    await cluster.server.create(
        cluster.path(ENDPOINTS), {"metadata": {"name": "own"}, "subsets": subsets}
    )
    await make_service(cluster)
    await cluster.wait(ENDPOINTS, "web", bool)
    assert (await cluster.get(ENDPOINTS, "own"))["subsets"][0]["addresses"] == [{"ip": "10.2.0.1"}]


async def test_many_pods_are_divided_and_stay_in_their_slices(tmp_path: Path) -> None:
    async with embedded_workloads(tmp_path) as cluster:
        await make_service(cluster, ports=[{"port": 80}])
        for number in range(120):
            await cluster.make_pod(f"p{number:03}", LABELS)
            await cluster.set_ready(f"p{number:03}")

        def filled(found: list[Json]) -> bool:
            return sum(len(each["endpoints"] or ()) for each in found) == 120

        selector = "kubernetes.io/service-name=web"
        before = await cluster.wait_list(ENDPOINTSLICES, filled, selector)
        assert sorted(len(each["endpoints"]) for each in before) == [20, 100]
        large = max(before, key=lambda each: len(each["endpoints"]))
        small = min(before, key=lambda each: len(each["endpoints"]))
        deleted = large["endpoints"][0]["targetRef"]["name"]
        await cluster.delete(PODS, deleted)
        await cluster.wait_list(ENDPOINTSLICES, lambda found: not filled(found), selector)
        unchanged = await cluster.get(ENDPOINTSLICES, small["metadata"]["name"])
        assert unchanged["metadata"]["resourceVersion"] == small["metadata"]["resourceVersion"]


async def test_a_restarted_controller_writes_nothing_that_is_written(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, node_lifecycle=False) as server:
        cluster = WorkloadCluster(server, embedded=True)
        async with running_workloads(server):
            await make_service(cluster)
            await cluster.make_pod("a", LABELS, **_NAMED)
            await cluster.set_ready("a")
            await wait_conditions(cluster, a=(True, True, False))
            await cluster.wait(ENDPOINTS, "web", lambda each: each.get("subsets"))
        version = (await server.get(cluster.path(PODS)))["metadata"]["resourceVersion"]
        async with running_workloads(server):
            await make_service(cluster, "last", ports=[{"port": 80}])
            await cluster.wait(ENDPOINTS, "last", bool)
        for resource, name in ((ENDPOINTS, "web"), (ENDPOINTSLICES, "")):
            found = [await cluster.get(resource, name)] if name else await slices(cluster)
            assert all(int(one["metadata"]["resourceVersion"]) <= int(version) for one in found)
