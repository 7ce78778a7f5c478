"""A scheduler that is killed between two bindings leaves no stranded gang."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.components import component
from support.polling import wait_for
from support.scheduled_gangs import GangServer

from batholith.local.agent.settings import SimulationSettings
from batholith.model.names import GROUP_NAME, JOBS, NODES, PODGROUPS, PODS
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.testing import Cluster, RequestMatcher

Json = dict[str, Any]
MEMBERS = 4
KILLED = "killed-scheduler"


def bindings(nth: int, *, agent: str = "", count: int | None = 1) -> RequestMatcher:
    return RequestMatcher("create", "pods/binding", nth=nth, count=count, user_agent=agent)


@asynccontextmanager
async def killed_scheduler(server: GangServer | Cluster, **settings: Any) -> AsyncIterator[None]:
    """A scheduler that binds one pod at a time, and is killed at the end of the block.

    What it sends from then on does not arrive.
    """
    client = await server.client(KILLED).__aenter__()
    given = SchedulerSettings(max_bindings_in_flight=1, **settings)
    task = asyncio.create_task(Scheduler(client, settings=given).run())
    yield
    server.faults.lose_request(RequestMatcher(user_agent=KILLED, count=None))
    server.faults.lose_request(RequestMatcher("watch", user_agent=KILLED, count=None))
    task.cancel()
    await client.__aexit__(None, None, None)
    await asyncio.gather(task, return_exceptions=True)


def kill_points() -> list[Any]:
    """Before each binding, and after it without a response."""
    return [
        pytest.param(number, executed, id=f"{'after' if executed else 'before'}-{number}")
        for number in range(1, MEMBERS + 1)
        for executed in (False, True)
    ]


async def killed_at(server: GangServer, number: int, *, executed: bool) -> None:
    """Let a scheduler allocate the gang *g*, and kill it at its binding of this number."""
    matcher = bindings(number, agent=KILLED)
    hold = server.faults.hold_response if executed else server.faults.hold
    held = hold(matcher)
    async with killed_scheduler(server):
        await held.wait_held()
    assert len(server.nodes_of("g")) == number - (not executed)


@pytest.mark.parametrize(("number", "executed"), kill_points())
async def test_the_next_scheduler_completes_the_gang(number: int, executed: bool) -> None:
    async with GangServer() as server:
        server.prepare()
        for node in range(MEMBERS):
            server.node(f"n{node}")
        server.gang("g", MEMBERS)
        await killed_at(server, number, executed=executed)
        # Another gang would use what is left, and is older.
        bound = len(server.nodes_of("g"))
        left = max(MEMBERS - bound, 1)
        server.gang("older", left)
        server.put(PODGROUPS, "older", metadata={"creationTimestamp": "2020-01-01T00:00:00Z"})
        first, second = ("g", "older") if bound else ("older", "g")
        async with server.scheduler():
            await server.wait_bound(first, MEMBERS)
            assert server.nodes_of(second) == []


@pytest.mark.parametrize(("number", "executed"), kill_points())
async def test_without_room_the_members_are_evicted(number: int, executed: bool) -> None:
    async with GangServer() as server:
        server.prepare()
        for node in range(MEMBERS):
            server.node(f"n{node}")
        server.gang("g", MEMBERS)
        await killed_at(server, number, executed=executed)
        bound = len(server.nodes_of("g"))
        for node in range(MEMBERS):
            if f"n{node}" not in server.nodes_of("g"):
                server.member("other", node, node=f"n{node}", schedulerName="other")
        async with server.scheduler(stranded_gang_timeout=0.2) as run:
            if bound in (0, MEMBERS):
                await wait_for(lambda: "g-0" in {e[1] for e in run.recorder.events} or bound)
                assert len(server.nodes_of("g")) == bound
                return
            await wait_for(
                lambda: (
                    not any(
                        pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
                        for pod in server.objects(PODS).values()
                        if pod["metadata"]["annotations"][GROUP_NAME] == "g"
                    )
                )
            )
            assert run.metric(
                "batholith_scheduler_replaced_pods_total", reason="GangIncomplete"
            ) == float(bound)
            assert any("was never complete" in each for each in run.events("GangIncomplete"))


def job() -> Json:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "1"}},
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
    }
    return {
        "metadata": {"name": "j"},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": MEMBERS,
            "maxRetry": 3,
            "policies": [{"event": "*", "action": "RestartJob"}],
            "tasks": [{"name": "t", "replicas": MEMBERS, "template": {"spec": spec}}],
        },
    }


def free(cluster: Cluster) -> list[str]:
    used = {pod["spec"].get("nodeName", "") for pod in cluster.objects(PODS).values()}
    return sorted(cluster.objects(NODES).keys() - used)


async def block(cluster: Cluster, node: str) -> None:
    """Another scheduler fills a node."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    await cluster.create(PODS, {"metadata": {"name": f"block-{node}"}, "spec": spec})


@pytest.mark.cluster
async def test_the_eviction_costs_a_job_no_retry_and_no_policy() -> None:
    simulation = SimulationSettings(nodes=MEMBERS, cpus=1)
    async with Cluster(nodes=simulation, scheduler=False) as cluster:
        held = cluster.faults.hold(bindings(3, agent=KILLED))
        async with killed_scheduler(cluster):
            await cluster.create(JOBS, job())
            await held.wait_held()
        for node in free(cluster):
            await block(cluster, node)
        before = {pod["metadata"]["uid"] for pod in cluster.pods_of("j")}
        async with cluster.client() as client:
            settings = SchedulerSettings(stranded_gang_timeout=0.2)
            scheduler = asyncio.create_task(Scheduler(client, settings=settings).run())
            await cluster.wait_until(
                lambda: (
                    len(cluster.pods_of("j")) == MEMBERS
                    and len(before & {pod["metadata"]["uid"] for pod in cluster.pods_of("j")}) == 2
                    and not any(pod["spec"].get("nodeName") for pod in cluster.pods_of("j"))
                )
            )
            for name in [name for name in cluster.objects(PODS) if "/block-" in name]:
                await cluster.delete(PODS, name.partition("/")[2])
            found = await cluster.wait_for_phase(JOBS, "j", "Running")
            scheduler.cancel()
            await asyncio.wait([scheduler])
    status = found["status"]
    assert (status.get("retryCount", 0), status.get("version", 0)) == (0, 0)
    phases = [each["status"] for each in status["conditions"]]
    assert "Restarting" not in phases


@pytest.mark.process
async def test_a_killed_process_leaves_no_stranded_gang() -> None:
    async with GangServer() as server:
        server.prepare()
        for node in range(MEMBERS):
            server.node(f"n{node}")
        server.gang("g", MEMBERS)
        flags = ("--kubeconfig", str(server.kubeconfig), "--leader-elect=false")
        held = server.faults.hold(bindings(2))
        rest = server.faults.hold(bindings(1, count=None))
        async with component("scheduler", *flags) as first:
            await held.wait_held()
            await first.stop(9)
        server.faults.clear()
        held.release()
        rest.release()
        async with component("scheduler", *flags, "--stranded-gang-timeout=300s"):
            await server.wait_bound("g", MEMBERS)
