"""HorizontalPodAutoscalers on the metrics that other API servers have."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.api_servers import EmbeddedServerFactory
from support.extension_server import ExtensionServer, extension_server
from support.polling import wait_until_true
from support.workload_cluster import WorkloadCluster, embedded_workloads, template

from batholith.local.workloads.autoscaler_types import AUTOSCALERS
from batholith.model.names import API_SERVICES, DEPLOYMENTS

Json = dict[str, Any]
pytestmark = pytest.mark.cluster
LABELS = {"app": "web"}
CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
BELOW_CUSTOM = f"/apis/{CUSTOM}/v1beta2"
BELOW_EXTERNAL = f"/apis/{EXTERNAL}/v1beta1"
SELECTOR = {"matchLabels": {"x": "y"}}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[WorkloadCluster]:
    async with embedded_workloads(tmp_path / "cluster") as started:
        yield started


@pytest.fixture
async def metrics(cluster: WorkloadCluster, tmp_path: Path) -> AsyncIterator[ExtensionServer]:
    ca = cluster.server.pki.front_proxy_ca
    async with extension_server(tmp_path, client_ca=ca) as serving:
        for root in (BELOW_CUSTOM, BELOW_EXTERNAL):
            listed = {"kind": "APIResourceList", "groupVersion": root[6:], "resources": []}
            serving.documents[root] = listed
        await serving.expose(cluster.server, EmbeddedServerFactory())
        for version, group in (("v1beta2", CUSTOM), ("v1beta1", EXTERNAL)):
            service = serving.api_service(group=group, version=version)
            service["metadata"]["name"] = f"{version}.{group}"
            await cluster.server.create(API_SERVICES.path(), service)
            await wait_available(cluster, f"{version}.{group}")
        yield serving


async def wait_available(cluster: WorkloadCluster, name: str) -> None:
    async def is_available() -> bool:
        found = await cluster.server.get(API_SERVICES.path("", name))
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any((each["type"], each["status"]) == ("Available", "True") for each in conditions)

    await wait_until_true(is_available)


def value(amount: str, name: str = "x") -> Json:
    return {"describedObject": {"kind": "Any", "name": name}, "value": amount}


async def make_deployment(cluster: WorkloadCluster) -> list[str]:
    """Create a Deployment of two pods that are ready; return their names."""
    spec = {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": template()}
    await cluster.create(DEPLOYMENTS, "web", spec)
    async with cluster.kubelet():
        found = await cluster.wait(
            DEPLOYMENTS, "web", lambda obj: (obj.get("status") or {}).get("readyReplicas") == 2
        )
    assert found["spec"]["replicas"] == 2
    pods = await cluster.server.get("/api/v1/namespaces/default/pods")
    return [pod["metadata"]["name"] for pod in pods["items"]]


async def autoscale(cluster: WorkloadCluster, metric: Json) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 10, "metrics": [metric]}
    await cluster.create(AUTOSCALERS, "web", spec)


async def wait_active(cluster: WorkloadCluster, reason: str) -> tuple[Json, str]:
    """Wait until the condition ScalingActive has *reason*; return the status and its message."""

    def conditions(obj: Json) -> dict[str, Json]:
        found = (obj.get("status") or {}).get("conditions") or ()
        return {each["type"]: each for each in found}

    found = await cluster.wait(
        AUTOSCALERS,
        "web",
        lambda obj: conditions(obj).get("ScalingActive", {}).get("reason") == reason,
    )
    return found["status"], conditions(found)["ScalingActive"]["message"]


def _object(kind: str, api_version: str, **target: str) -> Json:
    about = {"apiVersion": api_version, "kind": kind, "name": "o"}
    (form,) = target
    wanted = {"type": form[0].upper() + form[1:], **target}
    source = {"describedObject": about, "metric": {"name": "m"}, "target": wanted}
    return {"type": "Object", "object": source}


def _external(**target: str) -> Json:
    (form,) = target
    wanted = {"type": form[0].upper() + form[1:], **target}
    metric = {"name": "q", "selector": SELECTOR}
    return {"type": "External", "external": {"metric": metric, "target": wanted}}


IN_DEFAULT = f"{BELOW_CUSTOM}/namespaces/default"
QUEUE = f"{BELOW_EXTERNAL}/namespaces/default/q"


@pytest.mark.parametrize(
    ("metric", "path", "values", "replicas", "current"),
    [
        (_object("Service", "v1", value="5"), f"{IN_DEFAULT}/services/o/m", ["10"], 4, "10"),
        (
            _object("Deployment", "apps/v1", averageValue="2"),
            f"{IN_DEFAULT}/deployments.apps/o/m", ["9"], 5, "4500m",
        ),
        (_object("Namespace", "v1", value="5"), f"{IN_DEFAULT}/metrics/m", ["5200m"], 2, "5200m"),
        (_external(value="4"), QUEUE, ["4", "3500m"], 4, "7500m"),
        (_external(averageValue="2500m"), QUEUE, ["4", "3500m"], 3, "3750m"),
    ],
    ids=["object", "object average", "namespace within tolerance", "external", "external average"],
)  # fmt: skip
async def test_a_deployment_follows_a_value_of_another_api_server(
    metric: Json, path: str, values: list[str], replicas: int, current: str,
    cluster: WorkloadCluster, metrics: ExtensionServer,
) -> None:  # fmt: skip
    metrics.documents[path] = {"items": [value(each) for each in values]}
    await make_deployment(cluster)
    await autoscale(cluster, metric)
    status, _ = await wait_active(cluster, "ValidMetricFound")
    await cluster.wait(DEPLOYMENTS, "web", lambda obj: obj["spec"]["replicas"] == replicas)
    (shown,) = status["currentMetrics"]
    source = "object" if metric["type"] == "Object" else "external"
    assert shown["type"] == metric["type"]
    assert list(shown[source]["current"].values()) == [current]
    assert shown[source]["metric"] == metric[source]["metric"]


async def test_a_deployment_follows_a_metric_of_its_pods(
    cluster: WorkloadCluster, metrics: ExtensionServer
) -> None:
    names = await make_deployment(cluster)
    path = f"{IN_DEFAULT}/pods/*/m"
    metrics.documents[path] = {"items": [value("6", names[0]), value("10", names[1])]}
    target = {"type": "AverageValue", "averageValue": "4"}
    source = {"metric": {"name": "m", "selector": SELECTOR}, "target": target}
    await autoscale(cluster, {"type": "Pods", "pods": source})
    status, message = await wait_active(cluster, "ValidMetricFound")
    assert message.endswith("from pods metric m")
    await cluster.wait(DEPLOYMENTS, "web", lambda obj: obj["spec"]["replicas"] == 4)
    (shown,) = status["currentMetrics"]
    assert shown["pods"]["current"] == {"averageValue": "8"}
    (sent, *_) = (each["path"] for each in metrics.requests if each["path"].startswith(path))
    assert parse_qs(urlsplit(sent).query) == {
        "labelSelector": ["app=web"],
        "metricLabelSelector": ["x=y"],
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "unable to fetch metrics from external metrics API"),
        ({"items": []}, "no metrics returned from external metrics API"),
        ({"items": 7}, "unable to fetch metrics from external metrics API"),
        ({"items": [value("odd")]}, "the value of the metric is no quantity"),
    ],
    ids=["unknown", "none", "malformed", "no number"],
)
async def test_a_metric_that_cannot_be_read_is_named_in_a_condition(
    document: Json | None, message: str, cluster: WorkloadCluster, metrics: ExtensionServer
) -> None:
    if document is not None:
        metrics.documents[QUEUE] = document
    await make_deployment(cluster)
    await autoscale(cluster, _external(value="1"))
    _, text = await wait_active(cluster, "FailedGetExternalMetric")
    assert message in text
    assert (await cluster.get(DEPLOYMENTS, "web"))["spec"]["replicas"] == 2
