"""Evictions by taints of devices; with our controllers, and Kubernetes'.

Other tests use the same API server, so the names of pool, slice and rule are that of the namespace.
"""

from typing import Any

import pytest
from support.embedded_apiserver import MERGE
from support.workload_cluster import WorkloadCluster

from batholith.model.names import DEVICETAINTRULES, PODS, RESOURCECLAIMS, RESOURCESLICES

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
DRIVER = "gpu.example.com"
LONG_AGO = "2026-01-01T00:00:00Z"
BROKEN = {"key": "broken", "effect": "NoExecute", "timeAdded": LONG_AGO}
EVICTION_EVENT = "DeviceTaintManagerEviction"


def tolerating(**fields: Any) -> Json:
    return {"key": "broken", "operator": "Exists", "effect": "NoExecute", **fields}


async def run_pod(cluster: WorkloadCluster, name: str, device: str, *tolerations: Json) -> None:
    """Create a pod with a node and a claim that has *device*, as a scheduler does."""
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    await cluster.create(RESOURCECLAIMS, name, {"devices": {"requests": requests}})
    claims = [{"name": "gpu", "resourceClaimName": name}]
    pod = await cluster.make_pod(
        name, {}, resourceClaims=claims, terminationGracePeriodSeconds=3600
    )
    result = {"request": "r", "driver": DRIVER, "pool": cluster.namespace, "device": device}
    results = [{**result, "tolerations": list(tolerations)}]
    consumer = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [consumer]}
    await cluster.patch(RESOURCECLAIMS, name, {"status": status}, "status")


async def write_rule(cluster: WorkloadCluster, device: str, **taint: Any) -> None:
    selector = {"driver": DRIVER, "pool": cluster.namespace, "device": device}
    spec = {"deviceSelector": selector, "taint": BROKEN | taint}
    body = {"metadata": {"name": cluster.namespace}, "spec": spec}
    await cluster.server.create(DEVICETAINTRULES.path(), body)


async def change_rule(cluster: WorkloadCluster, **taint: Any) -> None:
    path = DEVICETAINTRULES.path("", cluster.namespace)
    body = {"spec": {"taint": taint}}
    response = await cluster.server.request("PATCH", path, body, content_type=MERGE)
    assert response.status == 200, response.body


async def wait_condition(cluster: WorkloadCluster, **wanted: str) -> None:
    """Wait until the condition of the rule has these fields."""

    def holds(rule: Json) -> bool:
        conditions = (rule.get("status") or {}).get("conditions") or ()
        return any(
            each["type"] == "EvictionInProgress"
            and each["observedGeneration"] == rule["metadata"]["generation"]
            and wanted.items() <= each.items()
            for each in conditions
        )

    await cluster.wait(DEVICETAINTRULES, cluster.namespace, holds)


async def wait_evicted(cluster: WorkloadCluster, name: str) -> None:
    """Wait until a pod is being deleted because of a taint; no kubelet ends it."""
    found = await cluster.wait(PODS, name, lambda pod: "deletionTimestamp" in pod["metadata"])
    (condition,) = (
        each for each in found["status"]["conditions"] if each["type"] == "DisruptionTarget"
    )
    assert {key: condition[key] for key in ("status", "reason", "message")} == {
        "status": "True",
        "reason": "DeletionByDeviceTaintManager",
        "message": "Device Taint manager: deleting due to NoExecute taint",
    }
    await cluster.wait_event(name, EVICTION_EVENT, "Marking for deletion")


async def test_a_rule_evicts_pods_that_do_not_tolerate_it(cluster: WorkloadCluster) -> None:
    await run_pod(cluster, "a", "d")
    await run_pod(cluster, "b", "other")
    await run_pod(cluster, "c", "d", tolerating())
    await write_rule(cluster, "d")
    await wait_evicted(cluster, "a")
    await change_rule(cluster, value="changed")
    await wait_condition(
        cluster,
        status="False",
        reason="Completed",
        message="1 pod evicted since starting the controller.",
    )
    for name in ("b", "c"):
        assert "deletionTimestamp" not in (await cluster.get(PODS, name))["metadata"]


async def test_a_taint_of_a_slice_evicts_pods(cluster: WorkloadCluster) -> None:
    await run_pod(cluster, "a", "d")
    pool = {"name": cluster.namespace, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "d"}, {"name": "other", "taints": [BROKEN]}]
    spec = {"driver": DRIVER, "pool": pool, "allNodes": True, "devices": devices}
    body = {"metadata": {"name": cluster.namespace}, "spec": spec}
    await cluster.server.create(RESOURCESLICES.path(), body)
    spec = {"devices": [{"name": "d", "taints": [BROKEN]}, {"name": "other"}]}
    path = RESOURCESLICES.path("", cluster.namespace)
    await cluster.server.request("PATCH", path, {"spec": spec}, content_type=MERGE)
    await wait_evicted(cluster, "a")


async def test_a_pod_that_tolerates_a_taint_for_a_time_stays_if_the_rule_is_deleted(
    cluster: WorkloadCluster,
) -> None:
    await run_pod(cluster, "a", "d", tolerating(tolerationSeconds=3_000_000_000))
    await write_rule(cluster, "d")
    await wait_condition(
        cluster,
        status="True",
        reason="PodsPendingEviction",
        message="1 pod needs to be evicted in 1 namespace.",
    )
    await cluster.server.request("DELETE", DEVICETAINTRULES.path("", cluster.namespace))
    await cluster.wait_event("a", EVICTION_EVENT, "Cancelling deletion")
    assert "deletionTimestamp" not in (await cluster.get(PODS, "a"))["metadata"]


async def test_a_rule_without_effect_reports_what_it_would_evict(
    cluster: WorkloadCluster,
) -> None:
    await run_pod(cluster, "a", "d")
    await write_rule(cluster, "d", effect="None")
    await wait_condition(
        cluster,
        status="False",
        reason="NoEffect",
        message="0 published devices selected. 1 allocated device selected. 1 pod would be evicted "
        "in 1 namespace if the effect was NoExecute. This information will not be updated again. "
        "Recreate the DeviceTaintRule to trigger an update.",
    )
    await change_rule(cluster, effect="NoSchedule")
    await wait_condition(
        cluster,
        status="False",
        reason="OtherEffect",
        message="Eviction only happens for the NoExecute effect.",
    )
