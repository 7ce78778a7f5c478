"""Simulated nodes: pods run by their annotations and commands, without processes."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster, agent_cluster
from support.api_servers import ServerFactory

from batholith.local.agent.settings import SimulationSettings
from batholith.model.names import LEASES, NODES, PODS

Json = dict[str, Any]


def simulated(servers: ServerFactory, tmp_path: Path, **more: Any) -> Any:
    return agent_cluster(servers, tmp_path, simulation=SimulationSettings(nodes=3, **more))


async def run(cluster: AgentCluster, name: str, *command: str, node: int = 0, **given: Any) -> Json:
    """Create a pod on a simulated node; *given* are annotations and fields of the spec."""
    notes = {key: given.pop(key) for key in list(given) if "_" in key}
    pod = manifest(name, container(*command, image=given.pop("image", "busybox")), **given)
    pod["metadata"]["annotations"] = {
        f"simulate.batholith.io/{key.replace('_', '-')}": value for key, value in notes.items()
    }
    pod["spec"] |= {"nodeName": f"sim-{node}"}
    return await cluster.create(pod)


async def test_simulated_nodes_are_registered_with_their_capacity(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with simulated(servers, tmp_path, cpus=8, memory="16Gi") as w, w.agent():
        nodes = (await w.client.list(NODES, view=dict)).items
        assert sorted(node["metadata"]["name"] for node in nodes) == ["sim-0", "sim-1", "sim-2"]
        assert {node["status"]["allocatable"]["cpu"] for node in nodes} == {"8"}
        leases = await w.client.list(LEASES, namespace="kube-node-lease", view=dict)
        assert len(leases.items) == 3


async def test_commands_are_simulated(servers: ServerFactory, tmp_path: Path) -> None:
    async with simulated(servers, tmp_path) as w, w.agent():
        await run(w, "good", "sleep", "0.2", restartPolicy="Never")
        await run(w, "bad", "sh", "-c", "sleep 0.1; exit 3", node=1, restartPolicy="Never")
        await run(w, "web", image="nginx", node=2)
        good = await w.phase("good", "Succeeded", "Failed")
        assert good["status"]["phase"] == "Succeeded"
        assert good["status"]["podIP"].startswith("10.")
        bad = await w.phase("bad", "Succeeded", "Failed")
        state = bad["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (state["exitCode"], state["reason"]) == (3, "Error")
        web = await w.phase("web", "Running")
        assert {c["type"]: c["status"] for c in web["status"]["conditions"]}["Ready"] == "True"


async def test_annotations_control_the_simulation(servers: ServerFactory, tmp_path: Path) -> None:
    async with simulated(servers, tmp_path) as w, w.agent():
        await run(w, "never", "true", never_start="true")
        await run(w, "exits", image="nginx", run_for="100ms", exit_code="9", restartPolicy="Never")
        exits = await w.phase("exits", "Succeeded", "Failed")
        state = exits["status"]["containerStatuses"][0]["state"]["terminated"]
        assert state["exitCode"] == 9
        assert (await w.pod("never")).get("status", {}).get("phase", "Pending") == "Pending"


async def test_probes_and_hooks_of_simulated_pods_succeed(
    servers: ServerFactory, tmp_path: Path
) -> None:
    never = {"exec": {"command": ["false"]}}
    asked: Json = {"readinessProbe": never, "livenessProbe": never, "startupProbe": never}
    async with simulated(servers, tmp_path) as w, w.agent():
        one = container("sleep", "600", lifecycle={"postStart": never}, **asked)
        pod = manifest("p", one)
        await w.create({**pod, "spec": {**pod["spec"], "nodeName": "sim-0"}})
        seen = await w.phase("p", "Running")
        assert seen["status"]["containerStatuses"][0]["ready"]


async def test_simulated_restarts_are_counted(servers: ServerFactory, tmp_path: Path) -> None:
    async with simulated(servers, tmp_path) as w, w.agent():
        await run(w, "p", "sh", "-c", "exit 1", restartPolicy="OnFailure")
        pod = await w.wait_pod(
            "p", lambda pod: str(pod["status"]).count("CrashLoopBackOff") and
            pod["status"]["containerStatuses"][0]["restartCount"] >= 2,
        )  # fmt: skip
        assert pod["status"]["phase"] == "Running"
        last = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
        assert last["exitCode"] == 1


@pytest.mark.parametrize(("ignores", "grace", "code"), [("false", 60, 143), ("true", 1, 137)])
async def test_deleted_simulated_pod_exits_and_is_removed(
    servers: ServerFactory, tmp_path: Path, ignores: str, grace: int, code: int
) -> None:
    async with simulated(servers, tmp_path, stop_delay=0.1) as w, w.agent():
        await run(w, "p", "sleep", "60", ignore_term=ignores)
        runs = await w.phase("p", "Running")
        await w.delete("p", grace=grace)
        pod = await w.phase("p", "Succeeded", "Failed", since=runs["metadata"]["resourceVersion"])
        state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (pod["status"]["phase"], state["exitCode"]) == ("Failed", code)
        await w.wait_pod_deleted("p")


async def test_pods_that_never_ran_or_are_terminated_can_be_deleted(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with simulated(servers, tmp_path) as w, w.agent():
        await run(w, "never", "true", never_start="true")
        await run(w, "over", "true", restartPolicy="Never")
        await w.phase("over", "Succeeded")
        for name in ("never", "over"):
            await w.delete(name)
            await w.wait_pod_deleted(name)


async def test_next_agent_resumes_simulated_pods(servers: ServerFactory, tmp_path: Path) -> None:
    async with simulated(servers, tmp_path) as w:
        async with w.agent():
            created = await run(w, "short", "sleep", "1", restartPolicy="Never")
            await run(w, "long", "sleep", "60", restartPolicy="Never")
            await w.phase("short", "Running", since=created["metadata"]["resourceVersion"])
            before = await w.phase("long", "Running")
        await run(w, "new", "true", restartPolicy="Never")
        async with w.agent():
            await w.phase("short", "Succeeded")
            await w.phase("new", "Succeeded")
            after = await w.pod("long")
            started = before["status"]["containerStatuses"][0]["state"]["running"]
            assert after["status"]["containerStatuses"][0]["state"]["running"] == started
            await w.delete("long", grace=1)
            await w.wait_pod_deleted("long")


async def test_simulated_pod_needs_two_status_writes_at_most(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with simulated(servers, tmp_path) as w, w.agent():
        names = [f"p{number}" for number in range(40)]
        start = (await w.client.list(PODS, view=dict)).resource_version
        pods = (
            run(w, name, "sleep", "0.5", node=n % 3, restartPolicy="Never")
            for n, name in enumerate(names)
        )
        await asyncio.gather(*pods)
        versions: Counter[str] = Counter()
        over: set[str] = set()
        watch = w.client.watch(PODS, view=dict, namespace="default", resource_version=start)
        async for event in watch:
            name = event.object["metadata"]["name"]
            versions[name] += 1
            if event.object.get("status", {}).get("phase") == "Succeeded":
                over.add(name)
            if len(over) == len(names):
                break
        assert max(versions.values()) <= 3, "created, running, succeeded"
