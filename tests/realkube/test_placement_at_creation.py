"""Placement at creation on a real API server: what is written, and what leads to bindings."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import audit_log
from support.embedded_apiserver import MERGE
from support.fault_proxy import ErrorResponse, FaultPolicy, HttpProxy
from support.polling import wait_until_true
from support.realkube import RealKubeOptions, RealServer, real_server, require_realkube
from support.running_controller import FakeRecorder, running
from support.volcano_objects import sleeping_job

from batholith.kube.client.client import Client
from batholith.local.agent.settings import SimulationSettings
from batholith.model import crds
from batholith.model.names import (
    JOBS,
    LIMITRANGES,
    MUTATING_BINDINGS,
    MUTATING_CONFIGURATIONS,
    MUTATING_POLICIES,
    NAMESPACES,
    NODES,
    PLAN,
    PODGROUPS,
    PODS,
)
from batholith.model.placement import Plan, decode_plan
from batholith.testing import components

pytestmark = pytest.mark.timeout(400)

Json = dict[str, Any]
JOB_COUNT, REPLICAS = 20, 50


def job(name: str, replicas: int, *, cpu: str = "10m") -> Json:
    return sleeping_job(name, replicas, cpu=cpu)


def passed_on(method: str, path: str) -> None:
    """Inject no fault."""


@asynccontextmanager
async def cluster(
    directory: Path, fault_policy: FaultPolicy = passed_on
) -> AsyncIterator[RealServer]:
    """A real server with our components in this process, and simulated nodes.

    *fault_policy* is for the requests of the controllers.
    """
    require_realkube()
    options = RealKubeOptions(audit=True)
    async with (
        real_server(directory, options, crds=crds.load()) as server,
        AsyncExitStack() as stack,
    ):
        proxy = HttpProxy(server.url, ca=server.ca, own=server.kube.pki.server)
        proxy.fault_policy = fault_policy
        await stack.enter_async_context(proxy)
        clients = {
            user: await stack.enter_async_context(server.client(user))
            for user in ("agent", "scheduler")
        }
        through = replace(server.credentials_of("controllers"), server=proxy.url)
        client = Client(through, user_agent="batholith-tests")
        clients["controllers"] = await stack.enter_async_context(client)
        recorder: Any = FakeRecorder()
        services = {
            **components.agent(clients["agent"], SimulationSettings(nodes=4), directory),
            **components.controllers(clients["controllers"], recorder, place_at_creation=True),
            **components.scheduler(clients["scheduler"], recorder, place_at_creation=True),
        }
        for each in services.values():
            await stack.enter_async_context(running(each))
        yield server


async def run(server: RealServer, *bodies: Json) -> None:
    """Create jobs, and wait until all of their pods run."""
    for body in bodies:
        await server.create(JOBS.path("default"), body)

    async def all_run() -> bool:
        found = await server.get(JOBS.path("default"))
        counts = {
            each["metadata"]["name"]: each.get("status", {}).get("running", 0)
            for each in found["items"]
        }
        return all(
            counts[body["metadata"]["name"]] == body["spec"]["tasks"][0]["replicas"]
            for body in bodies
        )

    await wait_until_true(all_run, seconds=200)


async def test_a_pod_costs_little_more_than_its_creation(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        await run(server, *(job(f"j{number}", REPLICAS) for number in range(JOB_COUNT)))
        counts = Counter(audit_log.component_writes(server.kube.audit()))
        pods = await server.get(PODS.path("default"))
    assert counts["create pods/binding"] == 0, counts
    assert counts["create pods"] == JOB_COUNT * REPLICAS
    assert sum(counts.values()) <= 1.2 * JOB_COUNT * REPLICAS, counts
    assert len(pods["items"]) == JOB_COUNT * REPLICAS
    for pod in pods["items"]:
        scheduled = [c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert [each["status"] for each in scheduled] == ["True"]


async def test_what_may_change_a_pod_leads_to_bindings(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        limits = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
        await server.create(
            LIMITRANGES.path("default"), {"metadata": {"name": "l"}, "spec": limits}
        )
        await settled(server, "a", bound=True)
        await server.request("DELETE", LIMITRANGES.path("default", "l"))
        await settled(server, "b", bound=False)
        await server.create(MUTATING_CONFIGURATIONS.path(), configuration())
        await settled(server, "c", bound=True)
        await server.request("DELETE", MUTATING_CONFIGURATIONS.path(name="m"))
        await settled(server, "d", bound=False)
        await server.create(MUTATING_POLICIES.path(), POLICY)
        await server.create(
            MUTATING_BINDINGS.path(),
            {"metadata": {"name": "b"}, "spec": {"policyName": "p"}},
        )
        await settled(server, "e", bound=True)


def configuration(**selectors: Json) -> Json:
    """A webhook for new pods that cannot be reached."""
    webhook = {
        "name": "mutate.example.com",
        "rules": [CREATED_PODS],
        "clientConfig": {"url": "https://127.0.0.1:1/mutate"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        **selectors,
    }
    return {"metadata": {"name": "m"}, "webhooks": [webhook]}


CREATED_PODS = {
    "operations": ["CREATE"],
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
}
POLICY = {
    "metadata": {"name": "p"},
    "spec": {
        "matchConstraints": {"resourceRules": [CREATED_PODS]},
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": "Object{}"},
            }
        ],
    },
}


@pytest.mark.soak
async def test_webhooks_and_policies_for_other_pods_have_no_effect(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        # All of these would be called for the pods but for one selector.
        selector = {"matchLabels": {"inject": "yes"}}
        await server.create(MUTATING_CONFIGURATIONS.path(), configuration(objectSelector=selector))
        await server.create(MUTATING_POLICIES.path(), POLICY)
        await server.create(
            MUTATING_BINDINGS.path(),
            {
                "metadata": {"name": "b"},
                "spec": {
                    "policyName": "p",
                    "matchResources": {"namespaceSelector": selector},
                },
            },
        )
        labelled = job("a", 2)
        labelled["spec"]["tasks"][0]["template"]["metadata"] = {"labels": {"inject": "yes"}}
        await settled(server, "a", bound=True, body=labelled)
        before = Counter(audit_log.component_writes(server.kube.audit()))["create pods/binding"]
        await run(server, job("b", 20))
        assert (
            Counter(audit_log.component_writes(server.kube.audit()))["create pods/binding"]
            == before
        )
        await server.request("DELETE", MUTATING_CONFIGURATIONS.path(name="m"))
        await settled(server, "c", bound=False, body=labelled)
        selected = {"metadata": {"labels": {"inject": "yes"}}}
        await patch(server, NAMESPACES.path(name="default"), selected)
        await settled(server, "d", bound=True)


async def settled(server: RealServer, name: str, *, bound: bool, body: Json | None = None) -> None:
    """Run jobs until the pods of one are bound, or are not: informers see rules a little later."""
    for attempt in range(40):
        before = Counter(audit_log.component_writes(server.kube.audit()))["create pods/binding"]
        again = {**(body or job(name, 2)), "metadata": {"name": f"{name}{attempt}"}}
        await run(server, again)
        after = Counter(audit_log.component_writes(server.kube.audit()))["create pods/binding"]
        if (after > before) is bound:
            return
        await asyncio.sleep(0.25)
    raise AssertionError(f"job {name}: the pods are {'never' if bound else 'always'} bound")


@pytest.mark.soak
async def test_members_of_a_node_that_is_deleted_get_another_one(tmp_path: Path) -> None:
    """The gang fills two nodes; one of them, which has no kubelet, is deleted before its pods are
    created."""
    refused: list[str] = []
    release = asyncio.Event()

    def refuse(method: str, path: str) -> ErrorResponse | None:
        if method == "POST" and path.partition("?")[0].endswith("/pods") and not release.is_set():
            refused.append(path)
            return ErrorResponse(503, "ServiceUnavailable")
        return None

    async with cluster(tmp_path, refuse) as server:
        await server.create(NODES.path(), bare_node("lost"))
        # The server taints new nodes until the node controller finds them ready.
        await patch(server, NODES.path(name="lost"), {"spec": {"taints": None}})
        await label(server, "sim-0")
        body = job("j", 40, cpu="1")
        spec = body["spec"]["tasks"][0]["template"]["spec"]
        spec["nodeSelector"] = {"pool": "a"}
        await server.create(JOBS.path("default"), body)

        async def is_planned() -> bool:
            found = await plan_of(server)
            return found is not None and bool(refused)

        await wait_until_true(is_planned)
        first = await plan_of(server)
        assert first is not None
        assert set(first.nodes.values()) == {"lost", "sim-0"}
        await label(server, "sim-1")
        await server.request("DELETE", NODES.path(name="lost"))

        async def is_planned_again() -> bool:
            found = await plan_of(server)
            return found is not None and found.id != first.id

        await wait_until_true(is_planned_again)
        plan = await plan_of(server)
        assert plan is not None
        assert (plan.members, plan.version, plan.until) == (first.members, 0, first.until)
        assert plan.nodes.keys() == first.nodes.keys()
        assert set(plan.nodes.values()) == {"sim-0", "sim-1"}
        release.set()

        async def all_run() -> bool:
            found = await server.get(JOBS.path("default", "j"))
            return bool(found.get("status", {}).get("running", 0) == 40)

        await wait_until_true(all_run, seconds=100)
        counts = Counter(audit_log.component_writes(server.kube.audit()))
        pods = (await server.get(PODS.path("default")))["items"]
    assert counts["create pods"] == 40
    assert counts["create pods/binding"] == 0
    assert {pod["spec"]["nodeName"] for pod in pods} == {"sim-0", "sim-1"}


def bare_node(name: str) -> Json:
    """A ready node of the pool, without a kubelet."""
    offered = {"cpu": "32", "memory": "64Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "-"}
    return {
        "metadata": {"name": name, "labels": {"pool": "a"}},
        "status": {"capacity": offered, "allocatable": offered, "conditions": [ready]},
    }


async def label(server: RealServer, node: str) -> None:
    """Put a node into the pool."""
    await patch(server, NODES.path(name=node), {"metadata": {"labels": {"pool": "a"}}})


async def patch(server: RealServer, path: str, body: Json) -> None:
    """Patch an object, which must succeed."""
    response = await server.request("PATCH", path, body, content_type=MERGE)
    assert response.status == 200, response.body


async def plan_of(server: RealServer) -> Plan | None:
    """The plan of the only PodGroup."""
    groups = (await server.get(PODGROUPS.path("default")))["items"]
    found = [each["metadata"]["annotations"].get(PLAN) for each in groups]
    return decode_plan(found[0]) if found and found[0] else None


@pytest.mark.soak
async def test_a_gang_that_does_not_fit_has_pending_pods(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        await server.create(JOBS.path("default"), job("j", 5, cpu="20"))

        async def has_pods() -> bool:
            return len((await server.get(PODS.path("default")))["items"]) == 5

        await wait_until_true(has_pods)
        pods = (await server.get(PODS.path("default")))["items"]
        groups = (await server.get(PODGROUPS.path("default")))["items"]
    assert not any(pod["spec"].get("nodeName") for pod in pods)
    assert not any(PLAN in group["metadata"]["annotations"] for group in groups)
