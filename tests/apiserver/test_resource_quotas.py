"""ResourceQuotas, on both servers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, add_priority_class, merge_patch
from support.embedded_apiserver import pod
from support.quotas import NAMESPACE, QuotaServer

from batholith.model import crds
from batholith.model.names import (
    JOBS,
    PERSISTENTVOLUMECLAIMS,
    RESOURCEQUOTAS,
    SECRETS,
    SERVICES,
    Resource,
)

Json = dict[str, Any]
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")


@pytest.fixture
async def limited(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[QuotaServer]:
    async with servers.start(tmp_path, crds=crds.load()) as started:
        found = QuotaServer(started)
        await found.prepare()
        yield found


def container(name: str = "main", **resources: Json) -> Json:
    return {"name": name, "image": "busybox:1", "resources": resources}


def using(name: str, *, cpu: str = "", memory: str = "", limit: str = "", **spec: Any) -> Json:
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    limits = {"cpu": limit} if limit else {}
    return pod(name, containers=[container(requests=requests, limits=limits)], **spec)


def claim(name: str, size: str, storage_class: str = "") -> Json:
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
        },
    }


def service(name: str, kind: str, *ports: int, **spec: Any) -> Json:
    listed = [{"name": f"p{port}", "port": port} for port in ports]
    return {"metadata": {"name": name}, "spec": {"type": kind, "ports": listed, **spec}}


async def test_pods_beyond_the_quota_are_rejected(limited: QuotaServer) -> None:
    hard = {"pods": "2", "requests.cpu": "1", "memory": "1Gi", "limits.cpu": "2"}
    await limited.limit("few", hard)
    await limited.wait_amounts("few", dict.fromkeys(hard, "0"))
    one = using("one", cpu="600m", memory="512Mi", limit="1")
    assert await limited.message(limited.pods, one) == ""
    await limited.wait_amounts(
        "few", {"pods": "1", "requests.cpu": "600m", "memory": "512Mi", "limits.cpu": "1"}
    )
    assert await limited.message(
        limited.pods, using("two", cpu="500m", memory="768Mi", limit="1")
    ) == (
        'pods "two" is forbidden: exceeded quota: few, requested: memory=768Mi,requests.cpu=500m, '
        "used: memory=512Mi,requests.cpu=600m, limited: memory=1Gi,requests.cpu=1"
    )
    two = using("two", cpu="400m", memory="512Mi", limit="1")
    assert await limited.message(limited.pods, two) == ""
    assert "requested: limits.cpu=1,memory=1Mi,pods=1,requests.cpu=1m" in await limited.message(
        limited.pods, using("three", cpu="1m", memory="1Mi", limit="1")
    )


async def test_limited_amounts_must_be_specified(limited: QuotaServer) -> None:
    await limited.limit("few", {"cpu": "4", "limits.memory": "4Gi", "requests.storage": "1Gi"})
    first = container("first", requests={"cpu": "1"})
    body = pod("p", containers=[container(), container("b")], initContainers=[first])
    assert await limited.message(limited.pods, body) == (
        'pods "p" is forbidden: failed quota: few: must specify cpu for: b,main; '
        "limits.memory for: b,first,main"
    )
    whole = pod("p", resources={"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "1Gi"}})
    assert await limited.message(limited.pods, whole) == ""
    await limited.wait_amounts("few", {"cpu": "1", "limits.memory": "1Gi", "requests.storage": "0"})


async def test_a_dry_run_is_checked_and_not_charged(limited: QuotaServer) -> None:
    await limited.limit("few", {"pods": "1"})
    assert (await limited.create(limited.pods, pod("p"), dry_run=True)).status == 201
    assert (await limited.create(limited.pods, pod("p"), dry_run=True)).status == 201
    await limited.wait_used("few", pods="0")
    assert await limited.message(limited.pods, pod("p")) == ""
    assert (await limited.create(limited.pods, pod("q"), dry_run=True)).status == 403


async def test_a_deleted_pod_frees_the_quota(limited: QuotaServer) -> None:
    await limited.limit("few", {"pods": "1", "count/pods": "5"})
    assert await limited.message(limited.pods, pod("p")) == ""
    assert "exceeded quota: few" in await limited.message(limited.pods, pod("q"))
    await limited.server.request("DELETE", f"{limited.pods}/p")
    await limited.wait_amounts("few", {"pods": "0", "count/pods": "0"})
    assert await limited.message(limited.pods, pod("q")) == ""


async def test_a_finished_pod_is_counted_as_an_object_only(limited: QuotaServer) -> None:
    await limited.limit("few", {"pods": "1", "count/pods": "5", "requests.cpu": "1"})
    assert await limited.message(limited.pods, using("p", cpu="1")) == ""
    path = f"{limited.pods}/p/status"
    await merge_patch(limited.server, path, {"status": {"phase": "Succeeded"}})
    await limited.wait_amounts("few", {"pods": "0", "count/pods": "1", "requests.cpu": "0"})
    assert await limited.message(limited.pods, using("q", cpu="1")) == ""


async def test_objects_of_any_kind_are_counted(limited: QuotaServer) -> None:
    hard = {"count/deployments.apps": "1", f"count/{JOBS.plural}.{JOBS.group}": "1", "secrets": "1"}
    await limited.limit("few", {**hard, "count/nothing.example.com": "1"})
    labels = {"app": "x"}
    deployment: Json = {
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod("p")["spec"]},
        },
    }
    task = {"name": "t", "replicas": 1, "template": {"spec": pod("p")["spec"]}}
    job: Json = {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": "j"},
        "spec": {"schedulerName": "volcano", "tasks": [task]},
    }
    secret: Json = {"metadata": {"name": "s"}}
    for resource, body, name in (
        (DEPLOYMENTS, deployment, "count/deployments.apps"),
        (JOBS, job, f"count/{JOBS.plural}.{JOBS.group}"),
        (SECRETS, secret, "secrets"),
    ):
        path = resource.path(NAMESPACE)
        assert await limited.message(path, body) == ""
        body["metadata"]["name"] = "other"
        where = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        assert await limited.message(path, body) == (
            f'{where} "other" is forbidden: exceeded quota: few, requested: {name}=1, '
            f"used: {name}=1, limited: {name}=1"
        )
    await limited.wait_amounts("few", dict.fromkeys(hard, "1"))


async def test_quotas_are_counted(limited: QuotaServer) -> None:
    await limited.limit("few", {"resourcequotas": "2"})
    await limited.wait_used("few", resourcequotas="2")
    body = {"metadata": {"name": "more"}, "spec": {"hard": {"pods": "1"}}}
    assert "exceeded quota: few, requested: resourcequotas=1" in await limited.message(
        RESOURCEQUOTAS.path(NAMESPACE), body
    )


async def test_ports_and_balancers_of_services_are_limited(limited: QuotaServer) -> None:
    hard = {"services": "3", "services.nodeports": "2", "services.loadbalancers": "1"}
    await limited.limit("few", hard)
    path = SERVICES.path(NAMESPACE)
    assert await limited.message(path, service("a", "ClusterIP", 80, 81, 82)) == ""
    assert await limited.message(path, service("b", "NodePort", 80, 81)) == ""
    await limited.wait_amounts(
        "few", {"services": "2", "services.nodeports": "2", "services.loadbalancers": "0"}
    )
    assert "requested: services.nodeports=1, used: services.nodeports=2" in await limited.message(
        path, service("c", "LoadBalancer", 80)
    )
    unported = service("c", "LoadBalancer", 80, allocateLoadBalancerNodePorts=False)
    assert await limited.message(path, unported) == ""
    await limited.wait_amounts(
        "few", {"services": "3", "services.nodeports": "2", "services.loadbalancers": "1"}
    )
    response = await limited.server.request(
        "PATCH",
        f"{path}/a",
        {"spec": {"type": "NodePort"}},
        content_type="application/merge-patch+json",
    )
    assert (response.status, response.body["message"]) == (
        403,
        'services "a" is forbidden: exceeded quota: few, requested: services.nodeports=3, '
        "used: services.nodeports=2, limited: services.nodeports=2",
    )
    await merge_patch(limited.server, f"{path}/b", {"spec": {"type": "ClusterIP"}})
    await limited.wait_amounts(
        "few", {"services": "3", "services.nodeports": "0", "services.loadbalancers": "1"}
    )


async def test_storage_is_limited_by_class(limited: QuotaServer) -> None:
    gold = "gold.storageclass.storage.k8s.io"
    hard = {
        "persistentvolumeclaims": "3", "requests.storage": "10Gi",
        f"{gold}/requests.storage": "4Gi", f"{gold}/persistentvolumeclaims": "1",
    }  # fmt: skip
    await limited.limit("few", hard)
    path = PERSISTENTVOLUMECLAIMS.path(NAMESPACE)
    assert await limited.message(path, claim("a", "3Gi", "gold")) == ""
    assert await limited.message(path, claim("b", "2Gi", "gold")) == (
        'persistentvolumeclaims "b" is forbidden: exceeded quota: few, requested: '
        f"{gold}/persistentvolumeclaims=1,{gold}/requests.storage=2Gi, used: "
        f"{gold}/persistentvolumeclaims=1,{gold}/requests.storage=3Gi, limited: "
        f"{gold}/persistentvolumeclaims=1,{gold}/requests.storage=4Gi"
    )
    assert await limited.message(path, claim("b", "2Gi", "silver")) == ""
    await limited.wait_amounts(
        "few",
        {
            "persistentvolumeclaims": "2", "requests.storage": "5Gi",
            f"{gold}/requests.storage": "3Gi", f"{gold}/persistentvolumeclaims": "1",
        },
    )  # fmt: skip


async def test_extended_resources_and_scratch_space_are_limited(limited: QuotaServer) -> None:
    gpu = "example.com/gpu"
    hard = {f"requests.{gpu}": "2", "requests.ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"}
    await limited.limit("few", hard)
    amounts = {gpu: "2", "ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi", "cpu": "1"}
    body = pod("p", containers=[container(requests=amounts, limits=amounts)])
    assert await limited.message(limited.pods, body) == ""
    body["metadata"]["name"] = "q"
    assert f"requested: requests.ephemeral-storage=1Gi,requests.{gpu}=2, used:" in (
        await limited.message(limited.pods, body)
    )
    await limited.wait_amounts(
        "few",
        {f"requests.{gpu}": "2", "requests.ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi"},
    )


SCOPES: tuple[tuple[Json, Json, Json], ...] = (
    ({"scopes": ["Terminating"]}, using("in", activeDeadlineSeconds=9), using("out")),
    ({"scopes": ["NotTerminating"]}, using("in"), using("out", activeDeadlineSeconds=9)),
    ({"scopes": ["BestEffort"]}, using("in"), using("out", cpu="1")),
    ({"scopes": ["NotBestEffort"]}, using("in", memory="1Gi"), using("out")),
    ({"scopes": ["NotBestEffort", "Terminating"]}, using("in", cpu="1", activeDeadlineSeconds=9),
     using("out", cpu="1")),
    ({"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}},
     using("in", priorityClassName="high"), using("out", priorityClassName="low")),
    ({"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]}]}},
     using("in"), using("out", priorityClassName="high")),
    ({"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "Exists"}]}},
     using("in", priorityClassName="low"), using("out")),
    ({"scopeSelector": {"matchExpressions": [
        {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}]}},
     using("in", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
         {"topologyKey": "zone", "namespaces": ["other"]}]}}),
     using("out", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
         {"topologyKey": "zone"}]}})),
)  # fmt: skip


async def test_a_quota_with_scopes_counts_the_pods_in_them(limited: QuotaServer) -> None:
    for name, value in (("high", 10), ("low", 1)):
        await add_priority_class(limited.server, name, value)
    for index, (scopes, inside, outside) in enumerate(SCOPES):
        quota = f"few-{index}"
        await limited.limit(quota, {"pods": "1"}, **scopes)
        assert await limited.message(limited.pods, outside) == ""
        assert await limited.message(limited.pods, inside) == ""
        await limited.wait_used(quota, pods="1")
        again = {**inside, "metadata": {"name": "again"}}
        assert f"exceeded quota: {quota}, requested: pods=1, used: pods=1" in (
            await limited.message(limited.pods, again)
        )
        await limited.server.request("DELETE", RESOURCEQUOTAS.path(NAMESPACE, quota))
        for name in ("in", "out"):
            await limited.server.request("DELETE", f"{limited.pods}/{name}")


async def test_a_deadline_that_is_set_later_moves_a_pod_to_another_quota(
    limited: QuotaServer,
) -> None:
    await limited.limit("ending", {"pods": "1"}, scopes=["Terminating"])
    await limited.limit("lasting", {"pods": "2"}, scopes=["NotTerminating"])
    for name in ("p", "q"):
        assert await limited.message(limited.pods, pod(name)) == ""
    deadline = {"spec": {"activeDeadlineSeconds": 100}}
    await merge_patch(limited.server, f"{limited.pods}/p", deadline)
    await limited.wait_used("ending", pods="1")
    await limited.wait_used("lasting", pods="1")
    response = await limited.server.request(
        "PATCH", f"{limited.pods}/q", deadline, content_type="application/merge-patch+json"
    )
    assert (response.status, response.body["message"]) == (
        403,
        'pods "q" is forbidden: exceeded quota: ending, requested: pods=1, used: pods=1, '
        "limited: pods=1",
    )


async def test_a_changed_limit_is_applied(limited: QuotaServer) -> None:
    await limited.limit("few", {"pods": "1"})
    assert await limited.message(limited.pods, pod("p")) == ""
    await limited.limit("few", {"pods": "2", "requests.cpu": "1"})
    await limited.wait_amounts("few", {"pods": "1", "requests.cpu": "0"})
    assert await limited.message(limited.pods, using("q", cpu="1")) == ""
    await limited.limit("few", {"pods": "1"})
    await limited.wait_amounts("few", {"pods": "2"})
    assert "used: pods=2, limited: pods=1" in await limited.message(limited.pods, pod("r"))


async def test_concurrent_creations_do_not_exceed_a_limit_together(limited: QuotaServer) -> None:
    """INV-OW-7."""
    await limited.limit("few", {"pods": "4", "requests.cpu": "10"})
    bodies = [using(f"p{number}", cpu="1") for number in range(12)]
    responses = await asyncio.gather(*(limited.create(limited.pods, body) for body in bodies))
    statuses = sorted(response.status for response in responses)
    assert statuses == [201] * 4 + [403] * 8
    await limited.wait_amounts("few", {"pods": "4", "requests.cpu": "4"})


INVALID: tuple[tuple[Json, list[str]], ...] = (
    ({"hard": {"cups": "1"}}, [
        'spec.hard[cups]: Invalid value: "cups": must be a standard resource type or fully '
        "qualified",
        'spec.hard[cups]: Invalid value: "cups": must be a standard resource for quota',
    ]),
    ({"hard": {"storage": "1"}}, [
        'spec.hard[storage]: Invalid value: "storage": must be a standard resource for quota',
    ]),
    ({"hard": {"pods": "-1"}}, [
        'spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0',
    ]),
    ({"hard": {"pods": "1500m"}}, [
        'spec.hard[pods]: Invalid value: "1500m": must be an integer',
    ]),
    ({"hard": {"count/foos.example.com": "1500m"}}, [
        'spec.hard[count/foos.example.com]: Invalid value: "1500m": must be an integer',
    ]),
    ({"hard": {"pods": "1"}, "scopes": ["Never"]}, [
        'spec.scopes: Invalid value: ["Never"]: unsupported scope',
    ]),
    ({"hard": {"services": "1"}, "scopes": ["Terminating"]}, [
        'spec.scopes: Invalid value: ["Terminating"]: unsupported scope applied to resource',
    ]),
    ({"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}, [
        'spec.scopes: Invalid value: ["BestEffort","NotBestEffort"]: conflicting scopes',
    ]),
    ({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [
        {"scopeName": "Terminating", "operator": "In", "values": ["x"]}]}}, [
        "spec.scopeSelector.matchExpressions.operator: Invalid value: \"In\": must be 'Exists' "
        "when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "
        "ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or "
        "ResourceQuotaScopeCrossNamespacePodAffinity",
    ]),
    ({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "In"}]}}, [
        "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value "
        "when `operator` is 'In' or 'NotIn' for scope selector",
    ]),
    ({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]}]}}, [
        'spec.scopeSelector.matchExpressions.values: Invalid value: ["a"]: must be no value when '
        "`operator` is 'Exist' or 'DoesNotExist' for scope selector",
    ]),
)  # fmt: skip


async def test_invalid_quotas_are_rejected(limited: QuotaServer) -> None:
    path = RESOURCEQUOTAS.path(NAMESPACE)
    for spec, expected in INVALID:
        response = await limited.server.request(
            "POST", path, {"metadata": {"name": "bad"}, "spec": spec}
        )
        assert response.status == 422, (spec, response.body)
        causes = [
            f"{each['field']}: {each['message']}" for each in response.body["details"]["causes"]
        ]
        assert sorted(causes) == sorted(expected), spec


async def test_scopes_cannot_be_changed(limited: QuotaServer) -> None:
    await limited.limit("few", {"pods": "1"}, scopes=["Terminating"])
    response = await limited.server.request(
        "PATCH",
        RESOURCEQUOTAS.path(NAMESPACE, "few"),
        {"spec": {"scopes": ["NotTerminating"]}},
        content_type="application/merge-patch+json",
    )
    assert response.status == 422
    assert response.body["message"].endswith(
        'spec.scopes: Invalid value: ["NotTerminating"]: field is immutable'
    )


async def test_a_request_above_its_limit_causes_a_warning(limited: QuotaServer) -> None:
    hard = {"requests.cpu": "2", "limits.cpu": "1"}
    body = {"metadata": {"name": "odd"}, "spec": {"hard": hard}}
    response = await limited.create(RESOURCEQUOTAS.path(NAMESPACE), body)
    assert response.warnings == [
        "ResourceQuota requests.cpu (2) should be less than limits.cpu (1)"
    ]
