"""Disruption budgets are maintained, and `kubectl drain` proceeds as far as they allow."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, add_node
from support.embedded_apiserver import MERGE, PODS, RawResponse, Server, pod
from support.kubectl import Kubectl, needs_kubectl
from support.polling import wait_until_true

from batholith.local.apiserver.errors.status import StatusError
from batholith.local.apiserver.verbs.disruption_budgets import (
    SYNC_FAILED,
    check_disruption_allowed,
    with_condition,
)
from batholith.model import crds

Json = dict[str, Any]
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, crds=crds.load()) as running:
        yield running


async def running(
    server: Server, name: str, *, ready: bool = True, owner: Json | None = None, node: str = ""
) -> None:
    """A running pod of the app db with no grace period."""
    created = pod(name, terminationGracePeriodSeconds=0)
    created["metadata"]["labels"] = {"app": "db"}
    if node:
        created["spec"]["nodeName"] = node
    if owner is not None:
        created["metadata"]["ownerReferences"] = [owner]
    await server.create(PODS, created)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    path = f"{PODS}/{name}/status"
    response = await server.request("PATCH", path, {"status": status}, content_type=MERGE)
    assert response.status == 200, response.body


async def budget(server: Server, **spec: Any) -> None:
    """The budget b of the app db."""
    spec.setdefault("selector", {"matchLabels": {"app": "db"}})
    await server.create(BUDGETS, {"metadata": {"name": "b"}, "spec": spec})


async def status_of(server: Server) -> Json:
    found = await server.get(f"{BUDGETS}/b")
    status: Json = found.get("status") or {}
    return status if status.get("observedGeneration") == found["metadata"]["generation"] else {}


async def wait_counted(server: Server, **wanted: int) -> Json:
    """Wait until the budget's counters are as given."""

    async def is_counted() -> bool:
        status = await status_of(server)
        return bool(status) and {key: status.get(key, 0) for key in wanted} == wanted

    await wait_until_true(is_counted)
    return await status_of(server)


async def evict(server: Server, name: str) -> RawResponse:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return await server.request("POST", f"{PODS}/{name}/eviction", body)


def denial_cause(refused: RawResponse) -> str:
    assert (refused.status, refused.body["reason"]) == (429, "TooManyRequests")
    (cause,) = refused.body["details"]["causes"]
    return str(cause["message"])


def owned_by(found: Json) -> Json:
    keys = {"apiVersion": found["apiVersion"], "kind": found["kind"]}
    meta = found["metadata"]
    return {**keys, "name": meta["name"], "uid": meta["uid"], "controller": True}


async def replica_set(server: Server, replicas: int) -> Json:
    """The owner reference of a ReplicaSet without a controller."""
    labels = {"app": "db"}
    container = {"name": "c", "image": "i"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    created = await server.create(SETS, {"metadata": {"name": "db"}, "spec": spec})
    return owned_by({"apiVersion": "apps/v1", "kind": "ReplicaSet", **created})


async def volcano_job(server: Server) -> Json:
    """The owner reference of a Volcano Job."""
    task = {"replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    spec = {"minAvailable": 1, "tasks": [task]}
    head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j"}}
    return owned_by(await server.create(JOBS, {**head, "spec": spec}))


async def test_min_available_is_counted_and_consumed(server: Server) -> None:
    for name in ("one", "other"):
        await running(server, name)
    await running(server, "unready", ready=False)
    await budget(server, minAvailable=1)
    counted = await wait_counted(
        server, disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1, expectedPods=3
    )
    (condition,) = counted["conditions"]
    assert (condition["type"], condition["status"]) == ("DisruptionAllowed", "True")
    assert (condition["reason"], condition["observedGeneration"]) == ("SufficientPods", 1)

    assert (await evict(server, "one")).status == 201
    counted = await wait_counted(
        server, disruptionsAllowed=0, currentHealthy=1, desiredHealthy=1, expectedPods=2
    )
    assert counted["conditions"][0]["reason"] == "InsufficientPods"
    assert not counted.get("disruptedPods")
    cause = "The disruption budget b needs 1 healthy pods and has 1 currently"
    assert denial_cause(await evict(server, "other")) == cause

    await running(server, "third")  # a replacement of the evicted pod
    await wait_counted(server, disruptionsAllowed=1, currentHealthy=2, expectedPods=3)
    assert (await evict(server, "other")).status == 201


async def test_a_changed_budget_is_counted_again(server: Server) -> None:
    await running(server, "one")
    await budget(server, minAvailable=1)
    await wait_counted(server, disruptionsAllowed=0, observedGeneration=1)
    patch = {"spec": {"minAvailable": 0}}
    await server.request("PATCH", f"{BUDGETS}/b", patch, content_type=MERGE)
    await wait_counted(server, disruptionsAllowed=1, observedGeneration=2)
    await server.request("DELETE", f"{PODS}/one")
    await wait_counted(server, disruptionsAllowed=0, expectedPods=0)


@pytest.mark.parametrize(
    ("spec", "desired"),
    [
        ({"maxUnavailable": 1}, 3),
        ({"maxUnavailable": "30%"}, 2),
        ({"minAvailable": "30%"}, 2),
        ({"maxUnavailable": 9}, 0),
    ],
)
async def test_percentages_are_of_the_controllers_replicas(
    server: Server, spec: Json, desired: int
) -> None:
    owner = await replica_set(server, 4)
    for number in range(3):
        await running(server, f"p{number}", owner=owner)
    await budget(server, **spec)
    await wait_counted(
        server,
        expectedPods=4,
        desiredHealthy=desired,
        currentHealthy=3,
        disruptionsAllowed=3 - desired,
    )


async def test_pods_without_a_controller_do_not_count_for_percentages(server: Server) -> None:
    await running(server, "bare")
    await budget(server, maxUnavailable=1)
    await wait_counted(server, expectedPods=0, disruptionsAllowed=0)


async def test_a_percentage_without_a_scale_subresource_denies_with_the_reason(
    server: Server,
) -> None:
    await running(server, "p", owner=await volcano_job(server))
    await budget(server, maxUnavailable=1)

    async def failed() -> bool:
        status = (await server.get(f"{BUDGETS}/b")).get("status") or {}
        return any(each["reason"] == "SyncFailed" for each in status.get("conditions") or ())

    await wait_until_true(failed)
    refused = await evict(server, "p")
    status = (await server.get(f"{BUDGETS}/b"))["status"]
    cause = "The disruption budget b is still being processed by the server."
    if "observedGeneration" in status:  # Kubernetes' controller counted it before it saw the pod
        assert "because it failed sync" in denial_cause(refused)
    else:
        assert denial_cause(refused) == cause  # never counted; the condition has the reason
    assert "does not implement the scale subresource" in status["conditions"][0]["message"]


def test_a_budget_that_cannot_be_counted_has_a_condition_with_the_reason() -> None:
    found: Json = {"metadata": {"name": "b"}, "status": {"currentHealthy": 2}}
    found["status"] = with_condition(found["status"], SYNC_FAILED, "no scale")
    with pytest.raises(StatusError) as refused:
        check_disruption_allowed(found)
    (cause,) = (refused.value.details or {})["causes"]
    assert cause["message"].endswith("pods currently because it failed sync: no scale")


async def test_concurrent_evictions_do_not_exceed_the_budget(server: Server) -> None:
    for number in range(6):
        await running(server, f"p{number}")
    await budget(server, minAvailable=5)
    await wait_counted(server, disruptionsAllowed=1)
    responses = await asyncio.gather(*(evict(server, f"p{number}") for number in range(6)))
    assert sorted(response.status for response in responses).count(201) == 1
    assert {response.status for response in responses} == {201, 429}


def test_a_budget_that_is_not_counted_yet_denies_evictions() -> None:
    found: Json = {"metadata": {"name": "b", "generation": 2}, "status": {"observedGeneration": 1}}
    with pytest.raises(StatusError) as refused:
        check_disruption_allowed(found)
    (cause,) = (refused.value.details or {})["causes"]
    assert cause["message"] == "The disruption budget b is still being processed by the server."
    assert (refused.value.details or {})["retryAfterSeconds"] == 10


@pytest.fixture
async def drained(server: Server, tmp_path: Path) -> Kubectl:
    """kubectl, and a node to drain."""
    needs_kubectl()
    await add_node(server, "n1")
    return Kubectl(server, tmp_path)


@pytest.mark.process
async def test_a_drain_proceeds_as_the_budget_allows(server: Server, drained: Kubectl) -> None:
    owner = await replica_set(server, 3)
    for name in ("one", "two", "three"):
        await running(server, name, owner=owner, node="n1")
    await budget(server, minAvailable=2)
    await wait_counted(server, disruptionsAllowed=1)
    draining = await drained.start("drain", "n1", "--timeout=150s")

    async def one_deleted() -> bool:
        return len((await server.get(PODS))["items"]) < 3

    await wait_until_true(one_deleted)
    await wait_counted(server, disruptionsAllowed=0, currentHealthy=2)
    for number in range(3):  # as their controller would, elsewhere
        await running(server, f"new-{number}", owner=owner, node="n2")
    out, err = await draining.communicate()
    assert draining.returncode == 0, err
    left = {each["metadata"]["name"] for each in (await server.get(PODS))["items"]}
    assert left == {"new-0", "new-1", "new-2"}
    assert b"node/n1 drained" in out
    assert (await server.get("/api/v1/nodes/n1"))["spec"]["unschedulable"] is True


@pytest.mark.process
async def test_a_drain_reports_why_it_is_blocked(server: Server, drained: Kubectl) -> None:
    owner = await replica_set(server, 1)
    await running(server, "p", owner=owner, node="n1")
    await budget(server, minAvailable=1)
    await wait_counted(server, disruptionsAllowed=0)
    result = await drained.run("drain", "n1", "--timeout=1s")
    assert result.code != 0
    assert "Cannot evict pod as it would violate the pod's disruption budget" in result.err


@pytest.mark.process
async def test_pods_of_jobs_are_drained_and_bare_pods_with_force(
    server: Server, drained: Kubectl
) -> None:
    await running(server, "bare", node="n1")
    result = await drained.run("drain", "n1")
    assert result.code != 0
    assert "(use --force to override): default/bare" in result.err
    await server.request("DELETE", f"{PODS}/bare")
    await running(server, "p", owner=await volcano_job(server), node="n1")
    await budget(server, minAvailable=0)
    await wait_counted(server, disruptionsAllowed=1)
    assert "node/n1 drained" in await drained("drain", "n1")
    await running(server, "again", node="n1")
    await wait_counted(server, disruptionsAllowed=1)
    assert "node/n1 drained" in await drained("drain", "n1", "--force")
