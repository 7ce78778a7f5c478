"""Gangs recover from a lost node of the embedded cluster, by their own policies."""

from collections.abc import Sequence
from typing import Any

import pytest

from batholith.local.agent.settings import SimulationSettings
from batholith.local.apiserver.controllers.node_health import NodeLifecycleSettings
from batholith.model.names import COMMANDS, JOBS, KEEP_NODES, NODES, PODS, REPLACE_NODES
from batholith.testing import Cluster

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
STOP = "simulate.batholith.io/stop"


def fast_cluster(nodes: int = 3) -> Cluster:
    """A cluster in which nodes are lost, and their pods deleted, within seconds."""
    simulation = SimulationSettings(nodes=nodes, cpus=4, lease_seconds=1)
    lifecycle = NodeLifecycleSettings(
        node_monitor_period=0.2,
        node_monitor_grace_period=1.5,
        node_eviction_rate=10,
        pod_gc_period=0.2,
        pod_gc_quarantine=0.4,
    )
    return Cluster(nodes=simulation, node_lifecycle=lifecycle)


def gang(replicas: int, policies: Sequence[Json] = ()) -> Json:
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "tolerationSeconds": 0,
         "effect": "NoExecute"}
        for key in ("not-ready", "unreachable")
    ]  # fmt: skip
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "3"}},
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "tolerations": tolerations,
        "terminationGracePeriodSeconds": 1,
    }
    return {
        "metadata": {"name": "j"},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": replicas,
            "policies": list(policies),
            "tasks": [{"name": "t", "replicas": replicas, "template": {"spec": spec}}],
        },
    }


def nodes_of(cluster: Cluster) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in cluster.pods_of("j")}


def ready(node: Json) -> str:
    (condition,) = [each for each in node["status"]["conditions"] if each["type"] == "Ready"]
    return str(condition["status"])


@pytest.mark.parametrize(
    ("policies", "retries"),
    [([], 0), ([{"event": "PodEvicted", "action": "RestartJob"}], 1)],
    ids=["no policy", "restart"],
)
async def test_a_gang_restarts_on_other_nodes(policies: list[Json], retries: int) -> None:
    async with fast_cluster() as cluster:
        await cluster.create(JOBS, gang(2, policies))
        await cluster.wait_for_phase(JOBS, "j", "Running")
        before = {pod["metadata"]["uid"] for pod in cluster.pods_of("j")}
        lost = min(nodes_of(cluster))
        await cluster.patch(NODES, lost, {"metadata": {"annotations": {STOP: "true"}}})
        await cluster.wait_for(NODES, lost, lambda node: ready(node) == "Unknown")
        await cluster.wait_until(
            lambda: any(
                "deletionTimestamp" in pod["metadata"]
                for pod in cluster.pods_of("j")
                if pod["spec"]["nodeName"] == lost
            )
        )
        # Its kubelet does not confirm the deletion; an administrator removes the node.
        await cluster.delete(NODES, lost)
        await cluster.wait_until(
            lambda: (
                lost not in nodes_of(cluster)
                and len(cluster.pods_of("j")) == 2
                and all(
                    (pod.get("status") or {}).get("phase") == "Running"
                    for pod in cluster.pods_of("j")
                )
            )
        )
        after = {pod["metadata"]["uid"] for pod in cluster.pods_of("j")}
        assert len(before & after) == (0 if policies else 1)
        job = await cluster.wait_for_phase(JOBS, "j", "Running")
        assert job["status"].get("retryCount", 0) == retries


async def test_pods_of_a_lost_node_are_replaced_without_an_administrator() -> None:
    """The others run on, and no retry is counted."""
    async with fast_cluster() as cluster:
        job = gang(2)
        job["metadata"]["annotations"] = {REPLACE_NODES: "true"}
        await cluster.create(JOBS, job)
        await cluster.wait_for_phase(JOBS, "j", "Running")
        before = {pod["metadata"]["uid"] for pod in cluster.pods_of("j")}
        lost = min(nodes_of(cluster))
        await cluster.patch(NODES, lost, {"metadata": {"annotations": {STOP: "true"}}})
        await cluster.wait_until(
            lambda: (
                lost not in nodes_of(cluster)
                and [(pod.get("status") or {}).get("phase") for pod in cluster.pods_of("j")]
                == ["Running", "Running"]
            ),
            timeout=60,
        )
        after = {pod["metadata"]["uid"] for pod in cluster.pods_of("j")}
        assert len(before & after) == 1
        stored = await cluster.get(JOBS, "j")
        assert stored["status"].get("retryCount", 0) == 0


async def test_a_node_that_reports_again_keeps_its_pods() -> None:
    async with fast_cluster() as cluster:
        job = gang(2)
        for toleration in job["spec"]["tasks"][0]["template"]["spec"]["tolerations"]:
            toleration["tolerationSeconds"] = 600
        await cluster.create(JOBS, job)
        await cluster.wait_for_phase(JOBS, "j", "Running")
        lost = min(nodes_of(cluster))
        await cluster.patch(NODES, lost, {"metadata": {"annotations": {STOP: "true"}}})
        await cluster.wait_for(NODES, lost, lambda node: node["spec"]["taints"])
        await cluster.patch(NODES, lost, {"metadata": {"annotations": {STOP: None}}})
        await cluster.wait_for(
            NODES, lost, lambda node: ready(node) == "True" and not node["spec"].get("taints")
        )
        assert not any(
            "deletionTimestamp" in pod["metadata"] for pod in cluster.objects(PODS).values()
        )


async def test_a_rejected_pod_is_created_again_without_a_retry() -> None:
    async with fast_cluster() as cluster:
        job = gang(2, [{"event": "*", "action": "RestartJob"}])
        template = job["spec"]["tasks"][0]["template"]
        template["metadata"] = {"annotations": {"simulate.batholith.io/start-delay": "600s"}}
        await cluster.create(JOBS, job)
        await cluster.wait_until(lambda: len(nodes_of(cluster) - {""}) == 2)
        before = {pod["metadata"]["uid"] for pod in cluster.pods_of("j")}
        name = cluster.pods_of("j")[0]["metadata"]["name"]
        status = {
            "phase": "Failed",
            "reason": "OutOfcpu",
            "message": "Node didn't have enough resource: cpu",
            "containerStatuses": None,
        }
        await cluster.patch(PODS, name, {"status": status}, subresource="status")
        await cluster.wait_until(
            lambda: (
                len({pod["metadata"]["uid"] for pod in cluster.pods_of("j")} & before) == 1
                and len(nodes_of(cluster) - {""}) == 2
                and len(cluster.pods_of("j")) == 2
            )
        )
        stored = await cluster.get(JOBS, "j")
        assert stored["status"].get("retryCount", 0) == stored["status"].get("version", 0) == 0
        assert stored["status"]["state"]["phase"] == "Pending"


@pytest.mark.parametrize("keep", ["", "1m"])
async def test_a_gang_that_restarts_gets_its_nodes_if_they_are_kept(keep: str) -> None:
    """Else the gang that has waited for them may start."""
    async with fast_cluster(nodes=2) as cluster:
        job = gang(2)
        job["metadata"]["annotations"] = {KEEP_NODES: keep} if keep else {}
        await cluster.create(JOBS, job)
        await cluster.wait_for_phase(JOBS, "j", "Running")
        before = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in cluster.pods_of("j")}
        other = gang(2)
        other["metadata"]["name"] = "other"
        await cluster.create(JOBS, other)
        await cluster.wait_for_phase(JOBS, "other", "Pending")
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "j", "uid": ""}
        command = {"metadata": {"name": "c"}, "action": "RestartJob", "target": target}
        await cluster.create(COMMANDS, command)
        if not keep:
            await cluster.wait_for_phase(JOBS, "other", "Running")
            return
        await cluster.wait_for(JOBS, "j", lambda job: job["status"].get("retryCount") == 1)
        await cluster.wait_for_phase(JOBS, "j", "Running")
        after = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in cluster.pods_of("j")}
        assert after == before
        assert (await cluster.get(JOBS, "other"))["status"]["state"]["phase"] == "Pending"
