"""ReplicaSets and ReplicationControllers, as kube-controller-manager runs them."""

from typing import Any

import pytest
from support.embedded_apiserver import PODS as _PODS_PATH
from support.embedded_apiserver import wait_owners_observed
from support.workload_cluster import NODE, WorkloadCluster, counted, template

from batholith.model.names import PODS, REPLICASETS, REPLICATIONCONTROLLERS

Json = dict[str, Any]
pytestmark = pytest.mark.cluster
LABELS = {"app": "web"}


async def make_set(cluster: WorkloadCluster, name: str = "web", **spec: Any) -> Json:
    spec = {"selector": {"matchLabels": LABELS}, "template": template(nodeName=NODE), **spec}
    return await cluster.create(REPLICASETS, name, spec)


async def test_pods_are_created_and_counted(cluster: WorkloadCluster) -> None:
    created = await make_set(cluster, replicas=3)
    await cluster.wait(REPLICASETS, "web", counted(replicas=3, readyReplicas=0))
    pods = await cluster.wait_pods(3)
    for pod in pods:
        meta = pod["metadata"]
        assert meta["generateName"] == "web-"
        assert len(meta["name"]) == len("web-") + 5
        assert meta["labels"] == LABELS
        (owner,) = meta["ownerReferences"]
        assert owner["uid"] == created["metadata"]["uid"]
        assert owner["controller"] is owner["blockOwnerDeletion"] is True
        await cluster.wait_event("web", "SuccessfulCreate", f"Created pod: {meta['name']}")
    for pod in pods[:2]:
        await cluster.set_ready(pod["metadata"]["name"])
    found = await cluster.wait(
        REPLICASETS, "web", counted(replicas=3, readyReplicas=2, availableReplicas=2)
    )
    assert found["status"] == {
        "replicas": 3,
        "fullyLabeledReplicas": 3,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "observedGeneration": 1,
        "terminatingReplicas": 0,
    }


async def test_lost_and_ended_pods_are_replaced(cluster: WorkloadCluster) -> None:
    await make_set(cluster, replicas=2)
    first, second = await cluster.wait_pods(2)
    await cluster.delete(PODS, first["metadata"]["name"])
    await cluster.set_phase(second["metadata"]["name"], "Failed")
    pods = await cluster.wait_pods(3)
    assert first["metadata"]["name"] not in {pod["metadata"]["name"] for pod in pods}
    await cluster.wait(REPLICASETS, "web", counted(replicas=2))


async def test_scaling_down_deletes_what_costs_least(cluster: WorkloadCluster) -> None:
    await make_set(cluster, replicas=4)
    names = [pod["metadata"]["name"] for pod in await cluster.wait_pods(4)]
    for name in names[1:]:
        await cluster.set_ready(name)
    cost = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}}
    await cluster.patch(PODS, names[3], cost)
    await cluster.wait(REPLICASETS, "web", counted(replicas=4, readyReplicas=3))
    await cluster.patch(REPLICASETS, "web", {"spec": {"replicas": 2}}, "scale")
    left = await cluster.wait_pods(2)
    assert {pod["metadata"]["name"] for pod in left} == {names[1], names[2]}
    await cluster.wait_event("web", "SuccessfulDelete", f"Deleted pod: {names[0]}")
    await cluster.patch(REPLICASETS, "web", {"spec": {"replicas": 0}})
    await cluster.wait(REPLICASETS, "web", counted(replicas=0, readyReplicas=0))


async def test_pods_are_adopted_and_released_by_their_labels(cluster: WorkloadCluster) -> None:
    await cluster.make_pod("orphan", LABELS)
    created = await make_set(cluster, replicas=2)
    pods = await cluster.wait_pods(2)
    adopted = next(pod for pod in pods if pod["metadata"]["name"] == "orphan")
    (owner,) = adopted["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (created["metadata"]["uid"], True)
    await cluster.patch(PODS, "orphan", {"metadata": {"labels": {"app": "other"}}})
    released = await cluster.wait(
        PODS, "orphan", lambda pod: not pod["metadata"].get("ownerReferences")
    )
    assert released["metadata"]["labels"] == {"app": "other"}
    await cluster.wait_pods(2, "app=web")


async def test_pods_of_another_owner_are_left_alone(cluster: WorkloadCluster) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u", "controller": True}
    pods = [await cluster.make_pod("owner", {"app": "o"})]
    owner["name"], owner["uid"] = "owner", pods[0]["metadata"]["uid"]
    body = template(nodeName=NODE)
    body["metadata"] |= {"name": "theirs", "ownerReferences": [owner]}
    await cluster.server.create(cluster.path(PODS), body)
    await make_set(cluster, replicas=1)
    await cluster.wait_pods(2, "app=web")
    assert (await cluster.get(PODS, "theirs"))["metadata"]["ownerReferences"] == [owner]


async def test_orphaned_pods_stay_and_are_adopted_by_the_next_set(cluster: WorkloadCluster) -> None:
    await make_set(cluster, replicas=2)
    before = {pod["metadata"]["uid"] for pod in await cluster.wait_pods(2)}
    await cluster.wait(REPLICASETS, "web", counted(replicas=2))
    await wait_owners_observed(cluster.server, cluster.path(PODS), template({}))
    await cluster.delete(REPLICASETS, "web", "?propagationPolicy=Orphan")
    await cluster.wait_deleted(REPLICASETS, "web")
    await make_set(cluster, replicas=2)
    await cluster.wait(REPLICASETS, "web", counted(replicas=2))
    assert {pod["metadata"]["uid"] for pod in await cluster.wait_pods(2)} == before


async def test_a_rejected_creation_is_a_condition_until_it_succeeds(
    cluster: WorkloadCluster,
) -> None:
    spec = template(nodeName=NODE, serviceAccountName="late")
    await make_set(cluster, replicas=1, template=spec)

    def failed(obj: Json) -> bool:
        conditions = (obj.get("status") or {}).get("conditions") or ()
        return any(
            (each["type"], each["status"], each["reason"])
            == ("ReplicaFailure", "True", "FailedCreate")
            and 'serviceaccount "late" not found' in each["message"]
            for each in conditions
        )

    await cluster.wait(REPLICASETS, "web", failed)
    accounts = _PODS_PATH.replace("/default/pods", f"/{cluster.namespace}/serviceaccounts")
    await cluster.server.create(accounts, {"metadata": {"name": "late"}})
    await cluster.wait_pods(1)
    await cluster.wait(REPLICASETS, "web", lambda obj: not obj["status"].get("conditions"))


async def test_pods_are_available_after_their_minimum_of_ready_seconds(
    cluster: WorkloadCluster,
) -> None:
    await make_set(cluster, replicas=1, minReadySeconds=2)
    (pod,) = await cluster.wait_pods(1)
    await cluster.set_ready(pod["metadata"]["name"], since=cluster.now())
    await cluster.wait(REPLICASETS, "web", counted(readyReplicas=1, availableReplicas=0))
    await cluster.wait(REPLICASETS, "web", counted(readyReplicas=1, availableReplicas=1))


async def test_a_replication_controller_does_the_same(cluster: WorkloadCluster) -> None:
    spec = {"replicas": 2, "template": template(nodeName=NODE)}
    await cluster.create(REPLICATIONCONTROLLERS, "web", spec)
    await cluster.wait(REPLICATIONCONTROLLERS, "web", counted(replicas=2))
    pods = await cluster.wait_pods(2)
    assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in pods} == {
        "ReplicationController"
    }
    await cluster.patch(REPLICATIONCONTROLLERS, "web", {"spec": {"replicas": 1}}, "scale")
    await cluster.wait_pods(1)
    await cluster.delete(REPLICATIONCONTROLLERS, "web", "?propagationPolicy=Background")
    await cluster.wait_pods(0)
