"""DaemonSets, as kube-controller-manager runs them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.api_servers import add_node, merge_patch
from support.workload_cluster import NODE, WorkloadCluster, counted, template

from batholith.model.names import (
    CONTROLLERREVISIONS,
    DAEMONSETS,
    NODES,
    PODS,
    TEMPLATE_GENERATION,
)

Json = dict[str, Any]
pytestmark = pytest.mark.cluster
LABELS = {"app": "web"}
OTHER, THIRD = "node-2", "node-3"
ALL = (NODE, OTHER, THIRD)


@pytest.fixture(autouse=True)
async def nodes(cluster: WorkloadCluster) -> AsyncIterator[None]:
    """Two nodes more, without labels and taints."""
    for name in (OTHER, THIRD):
        if (await cluster.server.request("GET", NODES.path("", name))).status == 404:
            await add_node(cluster.server, name)
    yield
    # The nodes of the real server are those of all its tests.
    await cluster.delete(DAEMONSETS, "web", "?propagationPolicy=Background")
    for name in ALL:
        await change_node(cluster, name, {"spec": {"taints": None, "unschedulable": None}})
        await change_node(cluster, name, {"metadata": {"labels": {"disk": None}}})


async def change_node(cluster: WorkloadCluster, name: str, body: Json) -> None:
    await merge_patch(cluster.server, NODES.path("", name), body)


async def make_set(cluster: WorkloadCluster, **spec: Any) -> Json:
    spec = {"selector": {"matchLabels": LABELS}, "template": pods_of("one"), **spec}
    return await cluster.create(DAEMONSETS, "web", spec)


def pods_of(image: str, **spec: Any) -> Json:
    return template(container={"image": image}, **spec)


async def set_image(cluster: WorkloadCluster, image: str) -> None:
    spec = {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}
    await cluster.patch(DAEMONSETS, "web", {"spec": spec})


def node_of(pod: Json) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (term,) = required["nodeSelectorTerms"]
    (field,) = term["matchFields"]
    assert (field["key"], field["operator"]) == ("metadata.name", "In")
    return str(field["values"][0])


def images(pods: list[Json]) -> list[tuple[str, str]]:
    return sorted(
        (node_of(pod), pod["spec"]["containers"][0]["image"])
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    )


async def wait_images(cluster: WorkloadCluster, **wanted: str) -> list[Json]:
    """Wait until exactly these nodes have a pod each, of these images."""
    expected = sorted((name.replace("_", "-"), image) for name, image in wanted.items())
    return await cluster.wait_list(PODS, lambda pods: images(pods) == expected)


async def bind(cluster: WorkloadCluster, pods: list[Json]) -> None:
    """Bind pods to their nodes: kube-controller-manager looks for bound pods of a changed node."""
    for pod in pods:
        if pod["spec"].get("nodeName"):
            continue
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node_of(pod)}
        body = {"metadata": {"name": name}, "target": target}
        await cluster.server.create(cluster.path(PODS, name, "binding"), body)


async def test_each_node_gets_a_pod(cluster: WorkloadCluster) -> None:
    created = await make_set(cluster)
    pods = await wait_images(cluster, node_1="one", node_2="one", node_3="one")
    (revision,) = await cluster.list_all(CONTROLLERREVISIONS)
    digest = revision["metadata"]["labels"]["controller-revision-hash"]
    assert revision["metadata"]["name"] == f"web-{digest}"
    for pod in pods:
        meta = pod["metadata"]
        assert meta["generateName"] == "web-"
        assert meta["labels"].items() >= {**LABELS, "controller-revision-hash": digest}.items()
        assert meta["ownerReferences"][0]["uid"] == created["metadata"]["uid"]
        tolerated = {
            (each["key"], each["effect"])
            for each in pod["spec"]["tolerations"]
            if each["operator"] == "Exists" and "tolerationSeconds" not in each
        }
        assert tolerated == {
            ("node.kubernetes.io/not-ready", "NoExecute"),
            ("node.kubernetes.io/unreachable", "NoExecute"),
            ("node.kubernetes.io/disk-pressure", "NoSchedule"),
            ("node.kubernetes.io/memory-pressure", "NoSchedule"),
            ("node.kubernetes.io/pid-pressure", "NoSchedule"),
            ("node.kubernetes.io/unschedulable", "NoSchedule"),
        }
        await cluster.wait_event("web", "SuccessfulCreate", f"Created pod: {meta['name']}")
    async with cluster.kubelet():
        found = await cluster.wait(DAEMONSETS, "web", counted(numberAvailable=3))
    assert found["status"] == {
        "observedGeneration": 1,
        "currentNumberScheduled": 3,
        "desiredNumberScheduled": 3,
        "numberMisscheduled": 0,
        "numberReady": 3,
        "numberAvailable": 3,
        "updatedNumberScheduled": 3,
    }


def _generation(obj: Json) -> str | None:
    found: str | None = obj["metadata"]["annotations"].get(TEMPLATE_GENERATION)
    return found


async def test_pods_have_the_generation_of_their_template(cluster: WorkloadCluster) -> None:
    assert _generation(await make_set(cluster)) == "1"
    pods = await wait_images(cluster, node_1="one", node_2="one", node_3="one")
    assert {each["metadata"]["labels"]["pod-template-generation"] for each in pods} == {"1"}
    own = {"metadata": {"annotations": {TEMPLATE_GENERATION: "7"}}}
    assert _generation(await cluster.patch(DAEMONSETS, "web", own)) == "1"
    assert (
        _generation(await cluster.patch(DAEMONSETS, "web", {"spec": {"minReadySeconds": 1}})) == "1"
    )
    await set_image(cluster, "two")
    assert _generation(await cluster.get(DAEMONSETS, "web")) == "2"

    def are_of_second(pods: list[Json]) -> bool:
        labels = [pod["metadata"]["labels"] for pod in pods]
        return [each["pod-template-generation"] for each in labels] == ["2"] * 3

    await cluster.wait_list(PODS, are_of_second)


async def test_an_orphan_of_the_same_template_generation_is_kept(cluster: WorkloadCluster) -> None:
    labels = {**LABELS, "pod-template-generation": "1"}
    body = template(labels, nodeName=NODE, container={"image": "own"})
    body["metadata"]["name"] = "own"
    orphan = await cluster.server.create(cluster.path(PODS), body)
    await make_set(cluster)
    await cluster.wait(DAEMONSETS, "web", counted(updatedNumberScheduled=3))
    kept = await cluster.get(PODS, "own")
    assert kept["metadata"]["uid"] == orphan["metadata"]["uid"]


async def test_pods_follow_labels_and_taints_of_nodes(cluster: WorkloadCluster) -> None:
    await change_node(cluster, OTHER, {"metadata": {"labels": {"disk": "fast"}}})
    await make_set(cluster, template=pods_of("one", nodeSelector={"disk": "fast"}))
    await bind(cluster, await wait_images(cluster, node_2="one"))
    await cluster.wait(DAEMONSETS, "web", counted(currentNumberScheduled=1))
    await change_node(cluster, THIRD, {"metadata": {"labels": {"disk": "fast"}}})
    await bind(cluster, await wait_images(cluster, node_2="one", node_3="one"))
    await cluster.wait(DAEMONSETS, "web", counted(currentNumberScheduled=2))
    await change_node(cluster, OTHER, {"metadata": {"labels": {"disk": None}}})
    await wait_images(cluster, node_3="one")
    await cluster.wait(DAEMONSETS, "web", counted(currentNumberScheduled=1))
    taint = {"key": "ex.io/t", "effect": "NoExecute"}
    await change_node(cluster, THIRD, {"spec": {"taints": [taint]}})
    await cluster.wait_pods(0)


async def test_required_affinity_and_tolerations_are_regarded(cluster: WorkloadCluster) -> None:
    taint = {"key": "ex.io/t", "value": "v", "effect": "NoSchedule"}
    await change_node(cluster, OTHER, {"spec": {"taints": [taint]}})
    names = {"key": "metadata.name", "operator": "NotIn", "values": [THIRD]}
    required = {"nodeSelectorTerms": [{"matchFields": [names]}]}
    spec = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "tolerations": [{"key": "ex.io/t", "operator": "Equal", "value": "v"}],
    }
    await make_set(cluster, template=pods_of("one", **spec))
    await wait_images(cluster, node_1="one", node_2="one")


async def test_a_rolling_update_keeps_to_its_limit(cluster: WorkloadCluster) -> None:
    await make_set(cluster)
    async with cluster.kubelet():
        await cluster.wait(DAEMONSETS, "web", counted(numberAvailable=3))
    await set_image(cluster, "two")
    await cluster.wait_list(
        PODS,
        lambda pods: sorted(image for _, image in images(pods)) == ["one", "one", "two"],
    )
    await cluster.wait(DAEMONSETS, "web", counted(updatedNumberScheduled=1, numberUnavailable=1))
    async with cluster.kubelet():
        await wait_images(cluster, node_1="two", node_2="two", node_3="two")
        await cluster.wait(DAEMONSETS, "web", counted(updatedNumberScheduled=3, numberAvailable=3))


async def test_a_surge_starts_new_pods_beside_the_old_ones(cluster: WorkloadCluster) -> None:
    strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await make_set(cluster, updateStrategy=strategy)
    async with cluster.kubelet():
        await cluster.wait(DAEMONSETS, "web", counted(numberAvailable=3))
    await set_image(cluster, "two")
    await cluster.wait_list(
        PODS,
        lambda pods: sorted(image for _, image in images(pods)) == ["one", "one", "one", "two"],
    )
    async with cluster.kubelet():
        await wait_images(cluster, node_1="two", node_2="two", node_3="two")


async def test_on_delete_leaves_pods_until_they_are_deleted(cluster: WorkloadCluster) -> None:
    await make_set(cluster, updateStrategy={"type": "OnDelete"})
    pods = await wait_images(cluster, node_1="one", node_2="one", node_3="one")
    await set_image(cluster, "two")
    await cluster.wait(DAEMONSETS, "web", counted(updatedNumberScheduled=0))
    deleted = next(pod for pod in pods if node_of(pod) == OTHER)
    await cluster.delete(PODS, deleted["metadata"]["name"])
    await wait_images(cluster, node_1="one", node_2="two", node_3="one")


async def test_failed_pods_are_replaced(cluster: WorkloadCluster) -> None:
    await make_set(cluster)
    pods = await wait_images(cluster, node_1="one", node_2="one", node_3="one")
    failed = pods[0]["metadata"]
    await cluster.set_phase(failed["name"], "Failed")
    await cluster.wait_deleted(PODS, failed["name"])
    await wait_images(cluster, node_1="one", node_2="one", node_3="one")
    text = (
        f"Found failed daemon pod {cluster.namespace}/{failed['name']} on node "
        f"{node_of(pods[0])}, will try to kill it"
    )
    await cluster.wait_event("web", "FailedDaemonPod", text)


async def test_the_history_has_a_limit(cluster: WorkloadCluster) -> None:
    await make_set(cluster, revisionHistoryLimit=0)
    async with cluster.kubelet():
        await cluster.wait(DAEMONSETS, "web", counted(numberAvailable=3))
        await set_image(cluster, "two")
        await wait_images(cluster, node_1="two", node_2="two", node_3="two")
        await cluster.wait_list(CONTROLLERREVISIONS, lambda found: len(found) == 1)
