"""Deployments, as kube-controller-manager rolls them out."""

from collections.abc import Callable
from typing import Any

import pytest
from support.embedded_apiserver import wait_owners_observed
from support.workload_cluster import NODE, WorkloadCluster, template

from batholith.model.names import DEPLOYMENTS, PODS, REPLICASETS

Json = dict[str, Any]
pytestmark = pytest.mark.cluster
LABELS = {"app": "web"}
REVISION = "deployment.kubernetes.io/revision"


def pods_of(image: str) -> Json:
    return template(nodeName=NODE, container={"image": image})


async def deploy(cluster: WorkloadCluster, name: str = "web", **spec: Any) -> Json:
    spec = {"selector": {"matchLabels": LABELS}, "template": pods_of("one"), **spec}
    return await cluster.create(DEPLOYMENTS, name, spec, annotations={"note": "kept"})


async def set_image(cluster: WorkloadCluster, image: str, name: str = "web") -> None:
    containers = [{"name": "c", "image": image}]
    spec = {"template": {"spec": {"containers": containers}}}
    await cluster.patch(DEPLOYMENTS, name, {"spec": spec})


def condition(obj: Json, kind: str) -> tuple[str, str, str]:
    for each in (obj.get("status") or {}).get("conditions") or ():
        if each["type"] == kind:
            return each["status"], each["reason"], each["message"]
    return "", "", ""


def observed(holds: Callable[[Json], object]) -> Callable[[Json], bool]:
    """*holds* of the status, once it is of the current generation."""

    def check(obj: Json) -> bool:
        status = obj.get("status") or {}
        current = status.get("observedGeneration") == obj["metadata"]["generation"]
        return current and bool(holds(obj))

    return check


def counted(**wanted: int) -> Callable[[Json], bool]:
    return observed(
        lambda obj: all(obj["status"].get(key, 0) == count for key, count in wanted.items())
    )


def complete(replicas: int) -> Callable[[Json], bool]:
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    holds = counted(**dict.fromkeys(counts, replicas), unavailableReplicas=0)
    return lambda obj: holds(obj) and condition(obj, "Progressing")[1] == "NewReplicaSetAvailable"


def images(sets: list[Json]) -> dict[str, int]:
    """Replicas by image."""
    return {
        each["spec"]["template"]["spec"]["containers"][0]["image"]: each["spec"]["replicas"]
        for each in sets
    }


async def sets_of(cluster: WorkloadCluster, **wanted: int) -> dict[str, Json]:
    """The ReplicaSets by image, once they have these replicas."""
    found = await cluster.wait_list(REPLICASETS, lambda sets: images(sets) == wanted)
    return {each["spec"]["template"]["spec"]["containers"][0]["image"]: each for each in found}


async def sets_with(cluster: WorkloadCluster, image: str) -> None:
    """Wait until the ReplicaSet of *image* has one replica."""
    await cluster.wait_list(REPLICASETS, lambda sets: images(sets).get(image) == 1)


async def test_a_deployment_becomes_available(cluster: WorkloadCluster) -> None:
    created = await deploy(cluster, replicas=3)
    one = (await sets_of(cluster, one=3))["one"]
    digest = one["metadata"]["labels"]["pod-template-hash"]
    assert one["metadata"]["name"] == f"web-{digest}"
    assert one["metadata"]["labels"] == {**LABELS, "pod-template-hash": digest}
    assert one["spec"]["selector"] == {"matchLabels": {**LABELS, "pod-template-hash": digest}}
    assert one["metadata"]["annotations"] == {
        "note": "kept",
        REVISION: "1",
        "deployment.kubernetes.io/desired-replicas": "3",
        "deployment.kubernetes.io/max-replicas": "4",
    }
    (owner,) = one["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (created["metadata"]["uid"], True)
    text = f"Scaled up replica set web-{digest} from 0 to 3"
    await cluster.wait_event("web", "ScalingReplicaSet", text)
    waiting = await cluster.wait(
        DEPLOYMENTS, "web", counted(replicas=3, updatedReplicas=3, unavailableReplicas=3)
    )
    assert condition(waiting, "Available")[:2] == ("False", "MinimumReplicasUnavailable")
    async with cluster.kubelet():
        found = await cluster.wait(DEPLOYMENTS, "web", complete(3))
    assert found["metadata"]["annotations"][REVISION] == "1"
    assert condition(found, "Available") == (
        "True", "MinimumReplicasAvailable", "Deployment has minimum availability.",
    )  # fmt: skip
    assert condition(found, "Progressing") == (
        "True",
        "NewReplicaSetAvailable",
        f'ReplicaSet "web-{digest}" has successfully progressed.',
    )
    status = {key: value for key, value in found["status"].items() if key != "conditions"}
    assert status == {
        "observedGeneration": 1,
        "replicas": 3,
        "updatedReplicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
        "terminatingReplicas": 0,
    }


async def test_a_rolling_update_keeps_to_its_limits(cluster: WorkloadCluster) -> None:
    rolling = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    async with cluster.kubelet():
        await deploy(cluster, replicas=4, strategy=rolling)
        await cluster.wait(DEPLOYMENTS, "web", complete(4))
    await set_image(cluster, "two")
    await sets_of(cluster, one=3, two=2)
    async with cluster.kubelet():
        await sets_of(cluster, one=0, two=4)
        found = await cluster.wait(DEPLOYMENTS, "web", complete(4))
    assert found["metadata"]["annotations"][REVISION] == "2"
    await cluster.wait_pods(4)


async def test_recreate_ends_all_old_pods_first(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await deploy(cluster, replicas=2, strategy={"type": "Recreate"})
        await cluster.wait(DEPLOYMENTS, "web", complete(2))
    first, second = await cluster.wait_pods(2)
    name = first["metadata"]["name"]
    await cluster.patch(PODS, name, {"metadata": {"finalizers": ["ex.io/stay"]}})
    await set_image(cluster, "two")
    await cluster.wait_deleted(PODS, second["metadata"]["name"])
    await cluster.wait(DEPLOYMENTS, "web", counted(availableReplicas=0))
    assert images(await cluster.list_all(REPLICASETS)) == {"one": 0}
    await cluster.patch(PODS, name, {"metadata": {"finalizers": None}})
    async with cluster.kubelet():
        await sets_of(cluster, one=0, two=2)
        await cluster.wait(DEPLOYMENTS, "web", complete(2))


async def test_undo_reuses_the_replica_set_and_renumbers_its_revision(
    cluster: WorkloadCluster,
) -> None:
    async with cluster.kubelet():
        await deploy(cluster, replicas=1)
        await cluster.wait(DEPLOYMENTS, "web", complete(1))
        await set_image(cluster, "two")
        await sets_of(cluster, one=0, two=1)
        await cluster.wait(DEPLOYMENTS, "web", complete(1))
        await set_image(cluster, "one")
        sets = await sets_of(cluster, one=1, two=0)
        found = await cluster.wait(DEPLOYMENTS, "web", complete(1))
    annotations = sets["one"]["metadata"]["annotations"]
    assert annotations[REVISION] == found["metadata"]["annotations"][REVISION] == "3"
    assert annotations["deployment.kubernetes.io/revision-history"] == "1"


async def test_old_replica_sets_are_kept_up_to_the_limit(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await deploy(cluster, replicas=1, revisionHistoryLimit=1)
        await cluster.wait(DEPLOYMENTS, "web", complete(1))
        for image in ("two", "three"):
            await set_image(cluster, image)
            await sets_with(cluster, image)
            await cluster.wait(DEPLOYMENTS, "web", complete(1))
        await sets_of(cluster, two=0, three=1)


async def test_a_paused_deployment_is_scaled_but_not_rolled_out(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await deploy(cluster, replicas=1)
        await cluster.wait(DEPLOYMENTS, "web", complete(1))
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
        await set_image(cluster, "two")
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 2}}, "scale")
        await sets_of(cluster, one=2)
        paused = await cluster.wait(DEPLOYMENTS, "web", counted(replicas=2, availableReplicas=2))
        assert condition(paused, "Progressing") == (
            "Unknown", "DeploymentPaused", "Deployment is paused",
        )  # fmt: skip
        assert "updatedReplicas" not in paused["status"]
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
        await sets_of(cluster, one=0, two=2)
        await cluster.wait(DEPLOYMENTS, "web", complete(2))


async def test_a_rollout_without_progress_times_out(cluster: WorkloadCluster) -> None:
    await deploy(cluster, replicas=1, progressDeadlineSeconds=1)
    late = await cluster.wait(
        DEPLOYMENTS, "web", lambda obj: condition(obj, "Progressing")[0] == "False"
    )
    status, reason, message = condition(late, "Progressing")
    assert (status, reason) == ("False", "ProgressDeadlineExceeded")
    assert message.endswith(" has timed out progressing.")
    async with cluster.kubelet():
        await cluster.wait(DEPLOYMENTS, "web", complete(1))


async def test_scaling_in_a_rollout_is_proportional(cluster: WorkloadCluster) -> None:
    rolling = {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}
    async with cluster.kubelet():
        await deploy(cluster, replicas=4, strategy=rolling)
        await cluster.wait(DEPLOYMENTS, "web", complete(4))
    await set_image(cluster, "two")
    await sets_of(cluster, one=4, two=2)
    await cluster.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 10}})
    await sets_of(cluster, one=8, two=4)


async def test_a_failed_creation_is_shown(cluster: WorkloadCluster) -> None:
    body = template(nodeName=NODE, serviceAccountName="missing")
    await deploy(cluster, replicas=1, template=body)
    found = await cluster.wait(
        DEPLOYMENTS, "web", lambda obj: condition(obj, "ReplicaFailure")[0] == "True"
    )
    _, reason, message = condition(found, "ReplicaFailure")
    assert reason == "FailedCreate"
    assert 'serviceaccount "missing" not found' in message


async def test_deployments_adopt_replica_sets_that_they_left(cluster: WorkloadCluster) -> None:
    async with cluster.kubelet():
        await deploy(cluster, replicas=2)
        await cluster.wait(DEPLOYMENTS, "web", complete(2))
        before = {pod["metadata"]["uid"] for pod in await cluster.wait_pods(2)}
        labels = {"app": "other"}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template(labels)}
        await wait_owners_observed(cluster.server, cluster.path(REPLICASETS), {"spec": spec})
        await cluster.delete(DEPLOYMENTS, "web", "?propagationPolicy=Orphan")
        await cluster.wait_deleted(DEPLOYMENTS, "web")
        created = await deploy(cluster, replicas=2)
        await cluster.wait(DEPLOYMENTS, "web", complete(2))
    (found,) = await cluster.list_all(REPLICASETS)
    assert found["metadata"]["ownerReferences"][0]["uid"] == created["metadata"]["uid"]
    assert {pod["metadata"]["uid"] for pod in await cluster.wait_pods(2)} == before


async def test_a_name_that_is_taken_is_a_collision(cluster: WorkloadCluster) -> None:
    await deploy(cluster, replicas=1)
    one = (await sets_of(cluster, one=1))["one"]
    await cluster.delete(DEPLOYMENTS, "web", "?propagationPolicy=Background")
    await cluster.wait_list(REPLICASETS, lambda sets: not sets)
    other = {"app": "other"}
    foreign = {
        "metadata": {"name": one["metadata"]["name"]},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": other},
            "template": template(other),
        },
    }
    await cluster.server.create(cluster.path(REPLICASETS), foreign)
    await deploy(cluster, replicas=1)
    found = await cluster.wait(
        DEPLOYMENTS, "web", lambda obj: (obj.get("status") or {}).get("collisionCount") == 1
    )
    assert found["status"]["collisionCount"] == 1
    sets = await cluster.wait_list(REPLICASETS, lambda sets: len(sets) == 2)
    assert len({each["metadata"]["name"] for each in sets}) == 2


async def test_replica_sets_and_pods_end_with_their_deployment(cluster: WorkloadCluster) -> None:
    await deploy(cluster, replicas=2)
    await cluster.wait_pods(2)
    await cluster.delete(DEPLOYMENTS, "web", "?propagationPolicy=Foreground")
    await cluster.wait_deleted(DEPLOYMENTS, "web")
    await cluster.wait_pods(0)
    assert await cluster.list_all(REPLICASETS) == []
