"""Claims of devices that pods name by templates; with our controllers, and Kubernetes'."""

from typing import Any

import pytest
from support.polling import wait_until_true
from support.workload_cluster import NODE, WorkloadCluster

from batholith.model.names import PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
FINALIZER = "resource.kubernetes.io/delete-protection"
DEVICES = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}
NAMED = {"name": "gpu", "resourceClaimName": "c"}
FROM_TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "t"}
ALLOCATION = {
    "devices": {
        "results": [{"request": "r", "driver": "gpu.example.com", "pool": "p", "device": "d"}]
    }
}


async def make_template(cluster: WorkloadCluster) -> None:
    spec = {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": DEVICES}}
    await cluster.create(RESOURCECLAIMTEMPLATES, "t", spec)


async def claim_of(cluster: WorkloadCluster, pod: str) -> str:
    """Wait until a claim was created for a pod; return its name."""
    found = await cluster.wait(PODS, pod, lambda p: p["status"].get("resourceClaimStatuses"))
    (status,) = found["status"]["resourceClaimStatuses"]
    assert status["name"] == "gpu"
    name: str = status["resourceClaimName"]
    return name


async def allocate(cluster: WorkloadCluster, claim: str, *pods: Json) -> None:
    """Allocate a claim for pods, as a scheduler does."""
    await cluster.patch(RESOURCECLAIMS, claim, {"metadata": {"finalizers": [FINALIZER]}})
    consumers = [
        {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for pod in pods
    ]
    status = {"status": {"allocation": ALLOCATION, "reservedFor": consumers}}
    await cluster.patch(RESOURCECLAIMS, claim, status, "status")


async def test_a_pod_gets_a_claim_from_a_template_and_again_if_it_is_deleted(
    cluster: WorkloadCluster,
) -> None:
    pod = await cluster.make_pod("p", {}, nodeName="", resourceClaims=[FROM_TEMPLATE])
    await make_template(cluster)
    name = await claim_of(cluster, "p")
    claim = await cluster.get(RESOURCECLAIMS, name)
    meta = claim["metadata"]
    assert name.startswith("p-gpu-")
    assert meta["labels"] == {"a": "b"}
    assert meta["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu"
    (owner,) = meta["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (pod["metadata"]["uid"], True)
    await cluster.delete(RESOURCECLAIMS, name)
    if not cluster.embedded:
        return  # Kubernetes' controller finds the deleted claim in its cache for a minute

    async def is_another() -> bool:
        found = await cluster.list_all(RESOURCECLAIMS)
        return [each["metadata"]["uid"] for each in found] not in ([], [meta["uid"]])

    await wait_until_true(is_another)


async def test_a_missing_template_is_reported(cluster: WorkloadCluster) -> None:
    await cluster.make_pod("p", {}, nodeName="", resourceClaims=[FROM_TEMPLATE])

    async def reported() -> bool:
        return any(
            reason == "FailedResourceClaimCreation"
            and message.startswith("PodResourceClaim gpu: ")
            and "not found" in message
            for reason, message in await cluster.events("p")
        )

    await wait_until_true(reported, seconds=60)
    await make_template(cluster)
    await claim_of(cluster, "p")


async def test_a_created_claim_is_deleted_once_its_pod_has_ended(cluster: WorkloadCluster) -> None:
    await make_template(cluster)
    pod = await cluster.make_pod("p", {}, resourceClaims=[FROM_TEMPLATE])
    name = await claim_of(cluster, "p")
    await allocate(cluster, name, pod)
    await cluster.set_ready("p")
    await cluster.set_phase("p", "Succeeded")
    await cluster.wait_deleted(RESOURCECLAIMS, name)


async def test_a_shared_claim_is_free_when_the_last_pod_has_ended(cluster: WorkloadCluster) -> None:
    await cluster.create(RESOURCECLAIMS, "c", {"devices": DEVICES})
    pods = [
        await cluster.make_pod(name, {}, nodeName="", resourceClaims=[NAMED]) for name in ("a", "b")
    ]
    await allocate(cluster, "c", *pods)
    await cluster.set_phase("a", "Failed")

    def is_used_by_b(claim: Json) -> bool:
        return [each["name"] for each in claim["status"].get("reservedFor", ())] == ["b"]

    found = await cluster.wait(RESOURCECLAIMS, "c", is_used_by_b)
    assert found["status"]["allocation"]
    await cluster.delete(PODS, "b")
    freed = await cluster.wait(
        RESOURCECLAIMS, "c", lambda claim: not claim["metadata"].get("finalizers")
    )
    assert not freed.get("status"), freed


async def test_an_allocated_claim_that_is_deleted_stays_while_it_is_used(
    cluster: WorkloadCluster,
) -> None:
    await cluster.create(RESOURCECLAIMS, "c", {"devices": DEVICES})
    pod = await cluster.make_pod("p", {}, nodeName="", resourceClaims=[NAMED])
    await allocate(cluster, "c", pod)
    await cluster.delete(RESOURCECLAIMS, "c")
    assert (await cluster.get(RESOURCECLAIMS, "c"))["metadata"]["deletionTimestamp"]
    await cluster.delete(PODS, "p")
    await cluster.wait_deleted(RESOURCECLAIMS, "c")


async def test_a_claim_is_reserved_for_a_pod_that_has_a_node_already(
    cluster: WorkloadCluster,
) -> None:
    await cluster.create(RESOURCECLAIMS, "c", {"devices": DEVICES})
    await cluster.make_pod("p", {}, nodeName=NODE, resourceClaims=[NAMED])
    await allocate(cluster, "c")
    found = await cluster.wait(
        RESOURCECLAIMS, "c", lambda claim: claim["status"].get("reservedFor")
    )
    assert [each["name"] for each in found["status"]["reservedFor"]] == ["p"]


async def test_a_long_name_of_a_pod_leaves_room_for_that_of_the_claim(
    cluster: WorkloadCluster,
) -> None:
    await make_template(cluster)
    await cluster.make_pod("p" * 63, {}, nodeName="", resourceClaims=[FROM_TEMPLATE])
    name = await claim_of(cluster, "p" * 63)
    assert len(name) <= 63
    assert "-g" in name
