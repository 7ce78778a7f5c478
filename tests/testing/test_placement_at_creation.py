"""Jobs whose pods are created with their node, in a cluster with all components."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.volcano_objects import sleeping_job

from batholith.model.names import (
    COMMANDS,
    GROUP_NAME,
    JOBS,
    LIMITRANGES,
    MEMBERS,
    MUTATING_CONFIGURATIONS,
    NODES,
    PLACE_AT_CREATION,
    PLAN,
    PODGROUPS,
    PODS,
    PRIORITYCLASSES,
)
from batholith.model.placement import Plan, decode_plan
from batholith.testing import Cluster, RequestMatcher

Json = dict[str, Any]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=3, place_at_creation=True) as started:
        yield started


def job(name: str, replicas: int, *, cpu: str = "1", **more: Any) -> Json:
    return sleeping_job(name, replicas, cpu=cpu, **more)


def bindings(cluster: Cluster) -> int:
    return sum(each.path.endswith("/binding") for each in cluster.faults.requests)


def created(cluster: Cluster, job_name: str) -> dict[str, str]:
    """The node with which each pod was created, by uid; empty for none."""
    return {
        change.object["metadata"]["uid"]: change.object["spec"].get("nodeName", "")
        for change in cluster.changes
        if change.resource == PODS
        and change.type == "ADDED"
        and change.object["metadata"]["name"].startswith(f"{job_name}-")
    }


async def run(cluster: Cluster, body: Json) -> list[Json]:
    """Create a job and wait until all of its pods run."""
    name = body["metadata"]["name"]
    await cluster.create(JOBS, body)
    replicas = body["spec"]["tasks"][0]["replicas"]
    await cluster.wait_for(JOBS, name, lambda it: it["status"]["running"] == replicas)
    return cluster.pods_of(name)


async def test_pods_are_created_with_their_node_and_nothing_is_bound(cluster: Cluster) -> None:
    pods = await run(cluster, job("j", 6))
    assert bindings(cluster) == 0
    assert all(created(cluster, "j").values())
    assert len(created(cluster, "j")) == 6
    for pod in pods:
        scheduled = [c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert [each["status"] for each in scheduled] == ["True"]
    (group,) = cluster.objects(PODGROUPS).values()
    assert group["status"]["phase"] == "Running"
    assert PLAN not in group["metadata"]["annotations"]


async def test_the_plan_costs_no_write(cluster: Cluster) -> None:
    await run(cluster, job("j", 6))
    patches = [each for each in cluster.faults.requests if each.resource == "podgroups"]
    patches = [each for each in patches if each.verb == "patch"]
    assert b'"Inqueue"' in patches[0].body
    assert PLAN.encode() in patches[0].body
    assert sum(PLAN.encode() in each.body for each in patches) == 2  # written, and removed
    assert all(b'"phase"' in each.body for each in patches)


async def test_a_gang_that_does_not_fit_gets_pending_pods(cluster: Cluster) -> None:
    await cluster.create(JOBS, job("j", 4, cpu="20"))
    await cluster.wait_until(lambda: len(cluster.pods_of("j")) == 4)
    assert set(created(cluster, "j").values()) == {""}
    assert bindings(cluster) == 0


def put_webhook(cluster: Cluster, **more: Any) -> None:
    """Let a webhook change new pods; nothing serves it, and that is ignored."""
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"]}
    hook = {
        "name": "mutate.example.com",
        "rules": [{**rule, "resources": ["pods"]}],
        "clientConfig": {"url": "https://127.0.0.1:1/mutate"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        **more,
    }
    cluster.put(MUTATING_CONFIGURATIONS, "m", webhooks=[hook])


@pytest.mark.parametrize(
    "selectors",
    [
        {"objectSelector": {"matchLabels": {"inject": "yes"}}},
        {"namespaceSelector": {"matchLabels": {"inject": "yes"}}},
    ],
)
async def test_a_webhook_for_other_pods_has_no_effect(cluster: Cluster, selectors: Json) -> None:
    put_webhook(cluster, **selectors)
    await run(cluster, job("j", 2))
    assert all(created(cluster, "j").values())
    assert bindings(cluster) == 0


@pytest.mark.parametrize("why", ["annotation", "limit range", "webhook", "gate"])
async def test_what_may_change_a_pod_leads_to_the_normal_path(cluster: Cluster, why: str) -> None:
    body = job("j", 2)
    match why:
        case "annotation":
            body["metadata"]["annotations"][PLACE_AT_CREATION] = "false"
        case "limit range":
            spec = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
            await cluster.create(LIMITRANGES, {"metadata": {"name": "l"}, "spec": spec})
        case "webhook":
            put_webhook(cluster)
        case _:
            template = body["spec"]["tasks"][0]["template"]
            template["metadata"] = {
                "annotations": {"scheduling.volcano.sh/queue-allocation-gate": "true"}
            }
    await run(cluster, body)
    assert set(created(cluster, "j").values()) == {""}
    assert bindings(cluster) == 2
    (group,) = cluster.objects(PODGROUPS).values()
    assert MEMBERS not in group["metadata"].get("annotations", {})


async def test_annotations_of_the_job_are_not_taken_for_those_of_controllers(
    cluster: Cluster,
) -> None:
    forged = {MEMBERS: "forged", PLAN: "forged", "other": "kept"}
    await run(cluster, job("j", 2, annotations=forged))
    (group,) = cluster.objects(PODGROUPS).values()
    annotations = group["metadata"]["annotations"]
    assert annotations["other"] == "kept"
    assert "forged" not in annotations.values()
    assert all(created(cluster, "j").values())


async def test_a_rejected_create_ends_the_plan_and_the_gang_keeps_its_places(
    cluster: Cluster,
) -> None:
    cluster.faults.error(
        RequestMatcher("create", PODS, nth=3, count=1), 403, message="exceeded quota"
    )
    await run(cluster, job("j", 6))
    nodes = sorted(created(cluster, "j").values())
    assert nodes[0] == ""
    assert nodes[-1] != ""
    assert len(nodes) == 6
    assert bindings(cluster) == nodes.count("")


async def test_a_gang_whose_create_is_rejected_loses_no_place_to_another(
    cluster: Cluster,
) -> None:
    """Three nodes of 32 CPUs each: the gang leaves none, and another one asks for one.

    None of its pods is on a node yet, so it is not stranded: only what is reserved for it counts.
    """
    value = {"metadata": {"name": "high"}, "value": 1000}
    await cluster.create(PRIORITYCLASSES, value)
    cluster.faults.error(RequestMatcher("create", PODS), 403, message="exceeded quota")
    held = cluster.faults.hold(RequestMatcher("create", PODS))
    await cluster.create(JOBS, job("j", 96))
    await held.wait_held()
    spec = {"minMember": 1, "queue": "default", "priorityClassName": "high"}
    await cluster.create(PODGROUPS, {"metadata": {"name": "g"}, "spec": spec})
    body = job("other", 1, cpu="1")["spec"]["tasks"][0]["template"]
    body["metadata"] = {"name": "other", "annotations": {GROUP_NAME: "g"}}
    body["spec"]["schedulerName"] = "volcano"
    await cluster.create(PODS, body)
    await cluster.wait_for(PODS, "other", lambda it: it["status"]["conditions"])
    held.release()
    await cluster.wait_for(JOBS, "j", lambda it: it["status"]["running"] == 96)
    assert not cluster.objects(PODS)["default/other"]["spec"].get("nodeName")
    nodes = list(created(cluster, "j").values())
    assert nodes.count("") == bindings(cluster) == 96


async def test_no_pod_is_created_twice_though_responses_are_lost(cluster: Cluster) -> None:
    cluster.faults.lose_response(RequestMatcher("create", PODS, count=2))
    cluster.faults.lose_response(RequestMatcher("patch", PODGROUPS, count=1))
    cluster.faults.lose_response(RequestMatcher("create", PODGROUPS, count=1))
    await run(cluster, job("j", 6))
    assert len(created(cluster, "j")) == 6
    assert bindings(cluster) == sum(not node for node in created(cluster, "j").values())


async def test_a_restarted_job_is_planned_again(cluster: Cluster) -> None:
    first = {pod["metadata"]["uid"] for pod in await run(cluster, job("j", 3))}
    uid = cluster.objects(JOBS)["default/j"]["metadata"]["uid"]
    target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "j", "uid": uid}
    await cluster.create(
        COMMANDS, {"metadata": {"name": "c"}, "action": "RestartJob", "target": target}
    )
    await cluster.wait_for(JOBS, "j", lambda it: it["status"]["version"] == 1)
    await cluster.wait_until(
        lambda: (
            [
                pod["status"]["phase"]
                for pod in cluster.pods_of("j")
                if pod["metadata"]["uid"] not in first
            ]
            == ["Running"] * 3
        )
    )
    assert len(created(cluster, "j")) == 6
    assert bindings(cluster) == 0


async def test_a_pod_that_is_created_again_is_unplaced(cluster: Cluster) -> None:
    pods = await run(cluster, job("j", 3))
    policies = pods[0]["metadata"]["uid"]
    await cluster.delete(PODS, "j-t-0")
    await cluster.wait_until(
        lambda: (
            [
                pod["status"]["phase"]
                for pod in cluster.pods_of("j")
                if pod["metadata"]["uid"] != policies
            ]
            == ["Running"] * 3
        )
    )
    assert sorted(map(bool, created(cluster, "j").values())) == [False, True, True, True]
    assert bindings(cluster) == 1


async def test_pods_of_a_node_that_is_lost_before_they_are_created_get_another(
    cluster: Cluster,
) -> None:
    """One pod exists and the creation of two is in flight when a node of all three is cordoned."""
    held = cluster.faults.hold(RequestMatcher("create", PODS, nth=2, count=2))
    await cluster.create(JOBS, job("j", 48))
    await held.wait_held(2)
    first = plan_of(cluster)
    in_flight = {("t", 1), ("t", 2)}
    lost = next(node for key, node in first.nodes.items() if key > ("t", 2))
    await cluster.patch(NODES, lost, {"spec": {"unschedulable": True}})
    await cluster.wait_until(lambda: plan_of(cluster).id != first.id)
    plan = plan_of(cluster)
    assert (plan.members, plan.version, plan.until) == (first.members, 0, first.until)
    assert plan.nodes.keys() >= first.nodes.keys() - {("t", 0)}
    assert lost not in plan.nodes.values()
    held.release()
    await cluster.wait_for(JOBS, "j", lambda it: it["status"]["running"] == 48)
    late = {
        ("t", int(pod["metadata"]["name"].rpartition("-")[2]))
        for pod in cluster.pods_of("j")
        if pod["spec"]["nodeName"] == lost
    }
    assert late <= {("t", 0)} | in_flight
    assert len(created(cluster, "j")) == 48
    assert all(created(cluster, "j").values())
    assert bindings(cluster) == 0


def plan_of(cluster: Cluster) -> Plan:
    """The plan of the only PodGroup."""
    (group,) = cluster.objects(PODGROUPS).values()
    plan = decode_plan(group["metadata"]["annotations"][PLAN])
    assert plan is not None
    return plan


async def test_pods_beyond_a_scaled_job_follow_the_normal_path(cluster: Cluster) -> None:
    await run(cluster, job("j", 3))
    await cluster.patch(
        JOBS, "j", {"spec": {"minAvailable": 3, "tasks": [{**job("j", 5)["spec"]["tasks"][0]}]}}
    )
    await cluster.wait_for(JOBS, "j", lambda it: it["status"]["running"] == 5)
    assert len(created(cluster, "j")) == 5
    assert bindings(cluster) == 2
