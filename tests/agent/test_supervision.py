"""A failed task of the agent is counted and restarted."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import FAST, NODE
from support.controller_api import ControllerApi
from support.polling import wait_for

from batholith.kube.supervision import TASK_RESTARTS
from batholith.local.agent.node_status import NodeStatusManager
from batholith.local.agent.pods.containers import PodContainers
from batholith.local.agent.pods.pod_worker import PodWorker
from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.runtime import logs
from batholith.local.agent.runtime.runs import IsolationLevel, kill_tagged
from batholith.local.agent.service import Agent
from batholith.local.agent.settings import AgentSettings, SimulationSettings
from batholith.local.agent.simulated import simulator
from batholith.machinery.clock import SystemClock
from batholith.model.names import LEASES, PODS

FAULTS = [RuntimeError, asyncio.CancelledError]


class FastClock(SystemClock):
    """Shortens all waits."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.02))


@pytest.fixture
async def api() -> AsyncIterator[ControllerApi]:
    async with ControllerApi() as created:
        yield created


@pytest.fixture
async def node(api: ControllerApi, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Return a function that starts an agent, which stops with the test."""
    running: list[asyncio.Task[None]] = []
    settings = AgentSettings(
        data_dir=tmp_path / "agent", node_name=NODE, back_off=FAST, sandbox=IsolationLevel.PLAIN
    )
    async with api.client() as client:

        async def start(simulation: SimulationSettings | None = None) -> None:
            chosen = AgentSettings(
                data_dir=settings.data_dir,
                node_name=NODE,
                back_off=FAST,
                sandbox=IsolationLevel.PLAIN,
                simulation=simulation,
            )
            ready = asyncio.Event()
            agent = Agent(client, settings=chosen, clock=FastClock())
            running.append(asyncio.create_task(agent.run(ready=ready)))
            await wait_for(lambda: ready.is_set() or running[0].done())

        yield start
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    for path in (tmp_path / "agent/pods").glob("*"):
        while kill_tagged(path.name):
            continue


def run(api: ControllerApi, name: str, script: str, node: str = NODE) -> None:
    spec = manifest(name, container("sh", "-c", script), restartPolicy="Never")["spec"]
    api.put(PODS, name, spec={**spec, "nodeName": node})


def phase(api: ControllerApi, name: str) -> object:
    return api.objects(PODS)[f"d/{name}"].get("status", {}).get("phase")


def renewed(api: ControllerApi) -> object:
    (lease,) = api.objects(LEASES).values()
    return lease["spec"]["renewTime"]


class FailOnce:
    """Raises `error` once, and then calls the original."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.error: BaseException | None = None
        self.calls = 0
        real = getattr(owner, name)

        def call(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            return real(*arguments, **more)

        monkeypatch.setattr(owner, name, call)


@pytest.mark.process
@pytest.mark.parametrize("error", FAULTS, ids=["error", "cancelled inside"])
@pytest.mark.parametrize(
    ("owner", "name", "task"),
    [
        (NodeStatusManager, "_heartbeat", "node heartbeat"),
        (logs, "punch_log_head", "log trimming"),
        (PodContainers, "check_memory", "memory guard"),
        (PodWorker, "_sync", "pod worker"),
    ],
)
async def test_node_tasks_are_restarted_after_an_error(
    api: ControllerApi,
    node: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    task: str,
    error: type[BaseException],
) -> None:
    once = FailOnce(monkeypatch, owner, name)
    await node()
    run(api, "p", "sleep 600")
    await wait_for(lambda: phase(api, "p") == "Running")
    counted, once.error = TASK_RESTARTS[task], error("as planned")
    if name == "_sync":
        api.put(PODS, "p", metadata={"labels": {"a": "b"}})
    await wait_for(lambda: once.error is None)
    await wait_for(lambda: TASK_RESTARTS[task] == counted + 1)
    calls, before = once.calls, renewed(api)
    await wait_for(lambda: once.calls > calls)
    await wait_for(lambda: renewed(api) != before)
    run(api, "q", "true")
    await wait_for(lambda: phase(api, "q") == "Succeeded")


@pytest.mark.process
async def test_failed_pod_removal_is_retried(
    api: ControllerApi, node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = FailOnce(monkeypatch, PodDir, "remove")
    await node()
    run(api, "p", "true")
    await wait_for(lambda: phase(api, "p") == "Succeeded")
    (pod_dir,) = (tmp_path / "agent/pods").iterdir()
    once.error = OSError("as planned")
    api.remove(PODS, "p")
    await wait_for(lambda: not pod_dir.exists())
    assert once.calls == 2


@pytest.mark.parametrize("error", FAULTS, ids=["error", "cancelled inside"])
async def test_simulated_pods_continue_after_an_error_of_a_writer(
    api: ControllerApi,
    node: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    once = FailOnce(monkeypatch, simulator.Simulator, "_write_one")
    await node(SimulationSettings(nodes=1, writers=1))
    counted, once.error = TASK_RESTARTS["status writer"], error("as planned")
    run(api, "p", "true", "sim-0")
    await wait_for(lambda: phase(api, "p") == "Succeeded")
    assert TASK_RESTARTS["status writer"] == counted + 1


async def test_failing_simulated_pod_does_not_affect_others(
    api: ControllerApi, node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = FailOnce(monkeypatch, simulator.Simulator, "_dispatch")
    await node(SimulationSettings(nodes=1))
    counted, once.error = TASK_RESTARTS["simulated pod"], RuntimeError("as planned")
    for name in ("p", "q"):
        run(api, name, "true", "sim-0")
    await wait_for(lambda: "Succeeded" in (phase(api, "p"), phase(api, "q")))
    assert TASK_RESTARTS["simulated pod"] == counted + 1
