"""Evictions on a real server: they respect budgets, and the rights of the scheduler suffice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import add_priority_class
from support.kubectl import Kubectl, needs_kubectl
from support.manifests import dumped, kustomized
from support.polling import wait_until_true
from support.rbac import (
    ComponentProcesses,
    Permission,
    forbidden_requests,
    redirected,
    used_permissions,
)
from support.realkube import (
    WORKLOADS,
    RealKubeOptions,
    RealServer,
    free_ports,
    real_server,
    require_realkube,
)

from batholith.model.names import (
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    QUEUES,
    SERVICEACCOUNTS,
)
from batholith.model.quantity import parse
from batholith.scheduler import conf

pytestmark = pytest.mark.timeout(300)  # four processes and a fresh server

TEST_NAMESPACE = "default"
OPTIONS = RealKubeOptions(controllers=(*WORKLOADS, "disruption"), audit=True)
PREEMPTING = conf.DEFAULT.replace("enqueue, allocate", "allocate, preempt").replace(
    "name: gang", "name: gang\n    enablePreemptable: false"
)
"""Without ``enqueue``, which admits no gang beyond the capability of its queue."""


async def test_victim_is_evicted_within_its_budget_and_rights(tmp_path: Path) -> None:
    needs_kubectl()
    require_realkube()
    async with real_server(tmp_path, OPTIONS) as server:
        async with _components(server, tmp_path) as components:
            for name, value in (("low", 1), ("high", 1000)):
                await add_priority_class(server, name, value)
            cpu = await _more_than_half_a_node(server)
            await _add(server, "victim", priority="low", cpu=cpu)
            await wait_until_true(lambda: _is_ready(server, "victim"))
            selector = {"matchLabels": {"app": "victim"}}
            await server.create(
                POD_DISRUPTION_BUDGETS.path(TEST_NAMESPACE),
                {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}},
            )
            budget = POD_DISRUPTION_BUDGETS.path(TEST_NAMESPACE, "b")
            await wait_until_true(lambda: _counts_one(server, budget))
            await _add(server, "urgent", priority="high", cpu=cpu)
            await wait_until_true(lambda: _was_refused(server), seconds=30)
            victim = await _pod(server, "victim")
            assert not victim["metadata"].get("deletionTimestamp")
            assert (await _pod(server, "urgent"))["status"]["nominatedNodeName"]
            deleted = await server.request("DELETE", budget)
            assert deleted.status == 200, deleted.body
            await wait_until_true(lambda: _is_ready(server, "urgent"))
            assert forbidden_requests(server.kube.audit()) == []
            await components.stop()
        log = server.kube.audit()
    did = used_permissions(log, "scheduler")
    for right in (
        Permission("", "pods/eviction", "create"),
        Permission("", "pods/status", "patch"),
        Permission("policy", "poddisruptionbudgets", "watch"),
    ):
        assert any(map(right.covers, did)), right
    evictions = [line for line in log if line.get("objectRef", {}).get("subresource") == "eviction"]
    codes = {line["responseStatus"]["code"] for line in evictions if "responseStatus" in line}
    assert {429, 201} <= codes


@asynccontextmanager
async def _components(server: RealServer, directory: Path) -> AsyncIterator[ComponentProcesses]:
    """The manifests applied; controllers, a scheduler that preempts, and one node."""
    found = kustomized()
    kubectl = Kubectl(server, directory)
    (port,) = free_ports(1)
    url = f"https://127.0.0.1:{port}"
    await kubectl("apply", "-f", "-", stdin=dumped(redirected(found, url).values()))
    text = directory / "scheduler.yaml"
    text.write_text(PREEMPTING)
    components = ComponentProcesses(found, kubectl, directory, url=server.url)
    try:
        health = {":11251": 0, ":8081": 0}
        await components.start("admission", f"--webhook-url={url}", ports={**health, "8443": port})
        await components.start("controllers", ports=health)
        await components.start("scheduler", f"--scheduler-conf={text}", ports=health)
        simulated = ("--simulate=1", f"--data-dir={directory / 'agent'}")
        await components.run(
            "agent", "agent", *simulated, f"--kubeconfig={server.kubeconfig_of('agent')}"
        )
        await wait_until_true(lambda: _accepts_pods(server))
        yield components
    except BaseException:
        print(await kubectl("get", "pods,podgroups,pdb,events", "-A", "-o=wide"))  # noqa: T201
        for each in components.running:
            print(f"== {each.name}\n{each.log.read_text()[-3000:]}")  # noqa: T201
        raise
    finally:
        await components.stop()


async def _accepts_pods(server: RealServer) -> bool:
    """Whether the default queue is open, and pods have a service account."""
    queue = await server.request("GET", QUEUES.path(name="default"))
    account = await server.request("GET", SERVICEACCOUNTS.path(TEST_NAMESPACE, "default"))
    return account.status == 200 and "'state': 'Open'" in str(queue.body)


async def _more_than_half_a_node(server: RealServer) -> str:
    """CPU of which a node has not twice as much."""

    async def has_node() -> bool:
        """The agent creates its node first, and then writes what that has."""
        nodes = (await server.get(NODES.path()))["items"]
        return any("allocatable" in node["status"] for node in nodes)

    await wait_until_true(has_node)
    (node,) = (await server.get(NODES.path()))["items"]
    return f"{int(parse(node['status']['allocatable']['cpu']).milli_value() * 0.55)}m"


async def _add(server: RealServer, name: str, *, priority: str, cpu: str) -> None:
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": cpu}},
    }
    spec = {
        "schedulerName": "volcano",
        "priorityClassName": priority,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    body = {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    await server.create(PODS.path(TEST_NAMESPACE), body)


async def _pod(server: RealServer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await server.get(PODS.path(TEST_NAMESPACE, name))
    return found


async def _is_ready(server: RealServer, name: str) -> bool:
    conditions = (await _pod(server, name))["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


async def _counts_one(server: RealServer, budget: str) -> bool:
    status = (await server.get(budget)).get("status", {})
    return bool(status.get("currentHealthy") == 1 and status.get("disruptionsAllowed") == 0)


async def _was_refused(server: RealServer) -> bool:
    """Whether an eviction was refused, after its condition was written."""
    conditions = (await _pod(server, "victim"))["status"].get("conditions", [])
    marked = any(each["type"] == "DisruptionTarget" for each in conditions)
    return marked and any(
        line.get("objectRef", {}).get("subresource") == "eviction"
        and line.get("responseStatus", {}).get("code") == 429
        for line in server.kube.audit()
    )
