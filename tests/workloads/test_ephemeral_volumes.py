"""Claims of ephemeral volumes; with our controller, and Kubernetes'."""

from typing import Any

import pytest
from support.workload_cluster import WorkloadCluster

from batholith.model.names import PERSISTENTVOLUMECLAIMS

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
SPEC = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "1Gi"}},
    "storageClassName": "none",
}
VOLUME = {
    "name": "scratch",
    "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}},
}


async def test_a_pod_gets_the_claim_of_an_ephemeral_volume(cluster: WorkloadCluster) -> None:
    pod = await cluster.make_pod("p", {}, nodeName="", volumes=[VOLUME])
    claim = await cluster.wait(PERSISTENTVOLUMECLAIMS, "p-scratch", bool)
    assert claim["metadata"]["labels"] == {"a": "b"}
    assert claim["spec"].items() >= SPEC.items()
    assert claim["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "p",
            "uid": pod["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


async def test_a_claim_of_others_is_reported_and_replaced_when_it_is_deleted(
    cluster: WorkloadCluster,
) -> None:
    foreign = await cluster.create(PERSISTENTVOLUMECLAIMS, "p-scratch", SPEC)
    pod = await cluster.make_pod("p", {}, nodeName="", volumes=[VOLUME])
    namespace = pod["metadata"]["namespace"]
    text = (
        f"ephemeral volume scratch: PVC {namespace}/p-scratch was not created for pod "
        f"{namespace}/p (pod is not owner)"
    )
    await cluster.wait_event("p", "FailedBinding", text)
    unchanged = await cluster.get(PERSISTENTVOLUMECLAIMS, "p-scratch")
    assert unchanged["metadata"]["uid"] == foreign["metadata"]["uid"]
    await cluster.delete(PERSISTENTVOLUMECLAIMS, "p-scratch")

    def is_own(claim: Json) -> bool:
        owners = claim["metadata"].get("ownerReferences") or ()
        return [each["uid"] for each in owners] == [pod["metadata"]["uid"]]

    await cluster.wait(PERSISTENTVOLUMECLAIMS, "p-scratch", is_own)
