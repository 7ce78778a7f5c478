"""HorizontalPodAutoscalers on simulated pods, whose annotations define what they use."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from batholith.kube.errors import NotFoundError
from batholith.model.names import SIMULATED_CPU, SIMULATED_MEMORY
from batholith.testing import Cluster

Json = dict[str, Any]
DEPLOYMENTS, AUTOSCALERS = "deployments", "horizontalpodautoscalers"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(scheduler=True, nodes=1) as cluster:
        yield cluster


def deployment(replicas: int = 2, cpu: str = "100m") -> Json:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "inf"],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    annotations = {
        SIMULATED_CPU: cpu,
        SIMULATED_MEMORY: "32Mi",
        "simulate.batholith.io/run-for": "inf",
    }
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": annotations},
        "spec": {"containers": [container]},
    }
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": template,
    }
    return {"metadata": {"name": "web"}, "spec": spec}


def autoscaler(*metrics: Json, kind: str = "Deployment", **spec: Any) -> Json:
    target = {"apiVersion": "apps/v1", "kind": kind, "name": "web"}
    given = {"metrics": list(metrics)} if metrics else {}
    spec = {"scaleTargetRef": target, "maxReplicas": 10, **given, **spec}
    return {"metadata": {"name": "web"}, "spec": spec}


def cpu(percent: int) -> Json:
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


async def replicas(cluster: Cluster, count: int) -> None:
    await cluster.wait_for(DEPLOYMENTS, "web", lambda obj: obj["spec"]["replicas"] == count)


async def all_ready(cluster: Cluster, count: int) -> None:
    await cluster.wait_for(DEPLOYMENTS, "web", lambda obj: obj["status"]["readyReplicas"] == count)


async def condition(cluster: Cluster, kind: str, reason: str) -> Json:
    def found(obj: Json) -> list[Json]:
        return [
            each
            for each in obj["status"]["conditions"]
            if each["type"] == kind and each["reason"] == reason
        ]

    obj = await cluster.wait_for(AUTOSCALERS, "web", lambda obj: bool(found(obj)))
    return found(obj)[0]


async def test_a_deployment_grows_to_its_target_and_its_status_says_why(cluster: Cluster) -> None:
    await cluster.create(DEPLOYMENTS, deployment())
    await all_ready(cluster, 2)
    await cluster.create(AUTOSCALERS, autoscaler(cpu(50)))
    await replicas(cluster, 4)
    assert (await condition(cluster, "AbleToScale", "SucceededRescale"))["status"] == "True"
    active = await condition(cluster, "ScalingActive", "ValidMetricFound")
    assert active["message"].endswith("cpu resource utilization (percentage of request)")
    found = await cluster.get(AUTOSCALERS, "web")
    current = {"averageUtilization": 100, "averageValue": "100m"}
    assert found["status"]["currentMetrics"] == [
        {"type": "Resource", "resource": {"name": "cpu", "current": current}}
    ]
    assert found["status"]["desiredReplicas"] == 4
    await cluster.wait_until(
        lambda: any(
            event["reason"] == "SuccessfulRescale"
            and event["message"]
            == "New size: 4; reason: cpu resource utilization (percentage of request) above target"
            for event in cluster.objects("events").values()
        )
    )


async def test_a_deployment_shrinks_after_five_minutes(cluster: Cluster) -> None:
    await cluster.create(DEPLOYMENTS, deployment(replicas=4, cpu="10m"))
    await all_ready(cluster, 4)
    await cluster.create(AUTOSCALERS, autoscaler(cpu(50)))
    await condition(cluster, "AbleToScale", "ScaleDownStabilized")
    await cluster.advance(240)
    assert (await cluster.get(DEPLOYMENTS, "web"))["spec"]["replicas"] == 4
    await cluster.advance(90)
    await replicas(cluster, 1)


@pytest.mark.parametrize(
    ("metric", "reason", "group"),
    [
        (
            {
                "type": "External",
                "external": {
                    "metric": {"name": "queue"},
                    "target": {"type": "Value", "value": "1"},
                },
            },
            "FailedGetExternalMetric",
            "external.metrics.k8s.io",
        ),
        (
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "requests"},
                    "target": {"type": "AverageValue", "averageValue": "1"},
                },
            },
            "FailedGetPodsMetric",
            "custom.metrics.k8s.io",
        ),
    ],
)
async def test_a_metric_of_an_api_that_is_not_served_gives_a_condition(
    cluster: Cluster, metric: Json, reason: str, group: str
) -> None:
    await cluster.create(DEPLOYMENTS, deployment())
    await cluster.create(AUTOSCALERS, autoscaler(metric))
    found = await condition(cluster, "ScalingActive", reason)
    assert found["status"] == "False"
    assert group in found["message"]


async def test_a_target_that_is_missing_gives_a_condition(cluster: Cluster) -> None:
    await cluster.create(AUTOSCALERS, autoscaler(cpu(50), kind="Deplyoment"))
    found = await condition(cluster, "AbleToScale", "FailedGetScale")
    assert found["message"] == (
        "the HPA controller was unable to get the target's current scale: "
        'no matches for kind "Deplyoment" in group "apps"'
    )


async def test_usage_is_listed_as_by_metrics_server(cluster: Cluster) -> None:
    await cluster.create(DEPLOYMENTS, deployment(cpu="250m"))
    await all_ready(cluster, 2)
    root = "/apis/metrics.k8s.io/v1beta1"
    async with cluster.client() as client:
        path = f"{root}/namespaces/default/pods?labelSelector=app%3Dweb"
        listed: Json = await client.get_path(path, view=dict)
        none: Json = await client.get_path(f"{root}/pods?labelSelector=app%3Ddb", view=dict)
        service: Json = await client.get_path(
            "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io", view=dict
        )
    assert (listed["kind"], none["items"]) == ("PodMetricsList", [])
    usages = [each["containers"] for each in listed["items"]]
    usage = {"cpu": "250000000n", "memory": "32768Ki"}
    assert usages == [[{"name": "main", "usage": usage}]] * 2
    name = listed["items"][0]["metadata"]["name"]
    # A pod of a node that runs processes cannot claim its usage.
    cluster.put("nodes", "sim-0", metadata={"labels": {"batholith.io/runtime": "unshare"}})
    async with cluster.client() as client:
        with pytest.raises(NotFoundError, match=name):
            await client.get_path(f"{root}/namespaces/default/pods/{name}", view=dict)
    (available,) = service["status"]["conditions"]
    assert (available["type"], available["status"]) == ("Available", "True")
