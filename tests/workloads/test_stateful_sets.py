"""StatefulSets, as kube-controller-manager runs them."""

from typing import Any

import pytest
from support.workload_cluster import NODE, WorkloadCluster, counted, template

from batholith.model.names import (
    CONTROLLERREVISIONS,
    PERSISTENTVOLUMECLAIMS,
    PODS,
    STATEFULSETS,
)

Json = dict[str, Any]
pytestmark = pytest.mark.cluster
LABELS = {"app": "web"}
CLAIM = {
    "metadata": {"name": "data"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "none",
    },
}


def pods_of(image: str) -> Json:
    return template(nodeName=NODE, container={"image": image})


async def make_set(cluster: WorkloadCluster, **spec: Any) -> Json:
    spec = {
        "selector": {"matchLabels": LABELS},
        "serviceName": "svc",
        "template": pods_of("one"),
        **spec,
    }
    return await cluster.create(STATEFULSETS, "web", spec)


async def set_image(cluster: WorkloadCluster, image: str) -> None:
    spec = {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}
    await cluster.patch(STATEFULSETS, "web", {"spec": spec})


def images(pods: list[Json]) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    }


async def wait_images(cluster: WorkloadCluster, *wanted: str) -> list[Json]:
    expected = {f"web-{index}": image for index, image in enumerate(wanted) if image}
    return await cluster.wait_list(PODS, lambda pods: images(pods) == expected)


async def test_pods_are_created_in_order_with_names_of_their_own(cluster: WorkloadCluster) -> None:
    created = await make_set(cluster, replicas=2)
    (first,) = await wait_images(cluster, "one")
    meta, spec = first["metadata"], first["spec"]
    (revision,) = await cluster.list_all(CONTROLLERREVISIONS)
    assert meta["labels"] == {
        **LABELS,
        "statefulset.kubernetes.io/pod-name": "web-0",
        "apps.kubernetes.io/pod-index": "0",
        "controller-revision-hash": revision["metadata"]["name"],
    }
    assert meta["ownerReferences"][0]["uid"] == created["metadata"]["uid"]
    assert (spec["hostname"], spec["subdomain"]) == ("web-0", "svc")
    await cluster.wait(STATEFULSETS, "web", counted(replicas=1, readyReplicas=0))
    await cluster.set_ready("web-0")
    await wait_images(cluster, "one", "one")
    await cluster.set_ready("web-1")
    found = await cluster.wait(STATEFULSETS, "web", counted(replicas=2, readyReplicas=2))
    name = revision["metadata"]["name"]
    assert found["status"] == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "currentReplicas": 2,
        "updatedReplicas": 2,
        "currentRevision": name,
        "updateRevision": name,
        "collisionCount": 0,
    }
    text = "Create Pod web-1 in StatefulSet web successful"
    await cluster.wait_event("web", "SuccessfulCreate", text)
    assert (revision["revision"], revision["metadata"]["labels"]["app"]) == (1, "web")
    replaced = revision["data"]["spec"]["template"]
    assert (replaced["$patch"], replaced["metadata"]["labels"]) == ("replace", LABELS)


async def test_pods_are_parallel_where_that_is_asked_for(cluster: WorkloadCluster) -> None:
    await make_set(cluster, replicas=3, podManagementPolicy="Parallel", ordinals={"start": 5})
    pods = await cluster.wait_pods(3)
    assert {pod["metadata"]["name"] for pod in pods} == {"web-5", "web-6", "web-7"}
    await cluster.patch(STATEFULSETS, "web", {"spec": {"replicas": 1}}, "scale")
    (left,) = await cluster.wait_pods(1)
    assert left["metadata"]["name"] == "web-5"


async def test_scaling_down_is_in_reverse_order(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await make_set(cluster, replicas=3)
        await cluster.wait(STATEFULSETS, "web", counted(replicas=3, readyReplicas=3))
    await cluster.patch(PODS, "web-2", {"metadata": {"finalizers": ["ex.io/stay"]}})
    await cluster.patch(STATEFULSETS, "web", {"spec": {"replicas": 1}})
    await cluster.wait(PODS, "web-2", lambda pod: "deletionTimestamp" in pod["metadata"])
    await cluster.wait(STATEFULSETS, "web", counted(replicas=3, currentReplicas=2))
    assert "deletionTimestamp" not in (await cluster.get(PODS, "web-1"))["metadata"]
    await cluster.patch(PODS, "web-2", {"metadata": {"finalizers": None}})
    await wait_images(cluster, "one")
    text = "Delete Pod web-1 in StatefulSet web successful"
    await cluster.wait_event("web", "SuccessfulDelete", text)


async def test_an_update_replaces_the_last_pod_first(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await make_set(cluster, replicas=2)
        await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=2))
    await set_image(cluster, "two")
    await wait_images(cluster, "one", "two")
    await cluster.wait(STATEFULSETS, "web", counted(updatedReplicas=1, readyReplicas=1))
    async with cluster.kubelet():
        await wait_images(cluster, "two", "two")
        found = await cluster.wait(
            STATEFULSETS, "web", counted(updatedReplicas=2, readyReplicas=2, currentReplicas=2)
        )
    status = found["status"]
    assert status["currentRevision"] == status["updateRevision"]
    assert len(await cluster.list_all(CONTROLLERREVISIONS)) == 2


async def test_a_partition_keeps_the_former_revision_below_it(cluster: WorkloadCluster) -> None:
    rolling = {"rollingUpdate": {"partition": 1}}
    async with cluster.kubelet():
        await make_set(cluster, replicas=2, updateStrategy=rolling)
        await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=2))
        await set_image(cluster, "two")
        await wait_images(cluster, "one", "two")
        await cluster.wait(
            STATEFULSETS, "web", counted(readyReplicas=2, updatedReplicas=1, currentReplicas=1)
        )
        await cluster.delete(PODS, "web-0")
        await wait_images(cluster, "one", "two")
        rolling = {"rollingUpdate": {"partition": 0}}
        await cluster.patch(STATEFULSETS, "web", {"spec": {"updateStrategy": rolling}})
        await wait_images(cluster, "two", "two")


async def test_on_delete_leaves_pods_until_they_are_deleted(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await make_set(cluster, replicas=2, updateStrategy={"type": "OnDelete"})
        await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=2))
        await set_image(cluster, "two")
        await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=2, currentReplicas=2))
        await cluster.delete(PODS, "web-0")
        await wait_images(cluster, "two", "one")


async def test_undo_makes_the_former_revision_the_latest(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await make_set(cluster, replicas=1)
        await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=1))
        for image in ("two", "one"):
            await set_image(cluster, image)
            await wait_images(cluster, image)
    found = await cluster.list_all(CONTROLLERREVISIONS)
    assert sorted(each["revision"] for each in found) == [2, 3]


async def test_the_history_has_a_limit(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await make_set(cluster, replicas=1, revisionHistoryLimit=0)
        await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=1))
        await set_image(cluster, "two")
        await wait_images(cluster, "two")
        await cluster.wait_list(CONTROLLERREVISIONS, lambda found: len(found) == 1)


async def test_ended_pods_are_replaced(cluster: WorkloadCluster) -> None:
    await make_set(cluster, replicas=1)
    (pod,) = await wait_images(cluster, "one")
    await cluster.set_phase("web-0", "Failed")
    uid = pod["metadata"]["uid"]
    await cluster.wait_list(
        PODS, lambda pods: [each["metadata"]["uid"] != uid for each in pods] == [True]
    )


async def test_pods_have_claims_that_outlive_them(cluster: WorkloadCluster) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    pods = template(nodeName=NODE, container={"image": "one", "volumeMounts": mounts})
    await make_set(cluster, replicas=1, template=pods, volumeClaimTemplates=[CLAIM])
    (pod,) = await wait_images(cluster, "one")
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "data-web-0"}
    claim = await cluster.get(PERSISTENTVOLUMECLAIMS, "data-web-0")
    assert claim["metadata"]["labels"] == LABELS
    assert "ownerReferences" not in claim["metadata"]
    text = "Create Claim data-web-0 Pod web-0 in StatefulSet web success"
    await cluster.wait_event("web", "SuccessfulCreate", text)
    await cluster.patch(STATEFULSETS, "web", {"spec": {"replicas": 0}})
    await cluster.wait_pods(0)
    again = await cluster.get(PERSISTENTVOLUMECLAIMS, "data-web-0")
    assert again["metadata"]["uid"] == claim["metadata"]["uid"]


async def test_claims_are_deleted_as_the_retention_policy_says(cluster: WorkloadCluster) -> None:
    policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
    async with cluster.kubelet():
        created = await make_set(
            cluster,
            replicas=2,
            volumeClaimTemplates=[CLAIM],
            persistentVolumeClaimRetentionPolicy=policy,
        )
        await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=2))

    def owned(claim: Json) -> bool:
        owners = claim["metadata"].get("ownerReferences") or ()
        return [each["uid"] for each in owners] == [created["metadata"]["uid"]]

    for name in ("data-web-0", "data-web-1"):
        claim = await cluster.wait(PERSISTENTVOLUMECLAIMS, name, owned)
        assert claim["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": "web",
                "uid": created["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    await cluster.patch(STATEFULSETS, "web", {"spec": {"replicas": 1}})
    await wait_images(cluster, "one")

    def deleted(claims: list[Json]) -> bool:
        return [
            each["metadata"]["name"]
            for each in claims
            if "deletionTimestamp" not in each["metadata"]
        ] == ["data-web-0"]

    await cluster.wait_list(PERSISTENTVOLUMECLAIMS, deleted)


async def test_pods_wait_until_the_one_before_is_available(cluster: WorkloadCluster) -> None:
    await make_set(cluster, replicas=2, minReadySeconds=2)
    await wait_images(cluster, "one")
    await cluster.set_ready("web-0", since=cluster.now())
    await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=1, availableReplicas=0))
    await wait_images(cluster, "one", "one")


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
async def test_an_adopted_pod_gets_the_labels_of_its_identity(
    policy: str, cluster: WorkloadCluster
) -> None:
    body = pods_of("own")
    body["metadata"]["name"] = "web-0"
    await cluster.server.create(cluster.path(PODS), body)
    strategy = {"type": "OnDelete"}
    await make_set(cluster, podManagementPolicy=policy, updateStrategy=strategy, replicas=2)

    def is_identified(pod: Json) -> bool:
        wanted = {
            **LABELS,
            "statefulset.kubernetes.io/pod-name": "web-0",
            "apps.kubernetes.io/pod-index": "0",
        }
        return bool(pod["metadata"]["labels"] == wanted)

    async with cluster.kubelet():
        adopted = await cluster.wait(PODS, "web-0", is_identified)
        await cluster.wait(STATEFULSETS, "web", counted(readyReplicas=2))
    assert adopted["spec"]["containers"][0]["image"] == "own"
    assert "hostname" not in adopted["spec"]
    await cluster.wait_event(
        "web", "SuccessfulUpdate", "Update Pod web-0 in StatefulSet web successful"
    )
