"""What becomes of a pod's status when the server will not take it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.agent import container, decode_pod, manifest
from support.fake_apiserver import FakeApi
from support.polling import wait_for

from batholith.agent.pods.status_manager import PodStatusManager
from batholith.agent.settings import AgentSettings, ShutdownRequest, SimulationSettings
from batholith.agent.simulated.simulator import Simulator
from batholith.agent.state.core_types import Pod
from batholith.kube.client.client import Client
from batholith.machinery.clock import SystemClock
from batholith.model.names import PODS


@asynccontextmanager
async def reporting(api: FakeApi, pod: Pod) -> AsyncIterator[tuple[PodStatusManager, list[Pod]]]:
    """A reporter that wants *pod* to be Running, and what it is told."""
    told: list[Pod] = []
    status = {"phase": "Running"}
    async with Client(api.credentials, user_agent="t") as client:
        made = PodStatusManager(
            client, clock=SystemClock(), render=lambda: (pod, status), on_written=told.append
        )
        task = asyncio.create_task(made.run())
        yield made, told
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def phase(api: FakeApi) -> Any:
    return api.objects(PODS)["d/p"].get("status", {}).get("phase")


async def test_a_status_that_met_a_conflict_is_written_after_all() -> None:
    async with FakeApi() as api:
        pod = decode_pod(api.put(PODS, "p"))
        async with reporting(api, pod) as (reporter, told):
            api.inject_fault(409, method="PATCH", path="/status", times=2)
            reporter.mark_dirty(promptly=True)
            await reporter.wait_written()
            assert phase(api) == "Running"
            assert len(told) == 3, "it was read anew each time"


async def test_a_status_that_was_forbidden_is_written_once_it_may_be() -> None:
    async with FakeApi() as api:
        pod = decode_pod(api.put(PODS, "p"))
        async with reporting(api, pod) as (reporter, _):
            api.inject_fault(403, method="PATCH", path="/status", times=2)
            reporter.mark_dirty(promptly=True)
            await wait_for(lambda: reporter.is_forbidden)
            await reporter.wait_written()
            assert phase(api) == "Running"
            assert not reporter.is_forbidden


async def test_a_conflict_with_a_namesake_is_final() -> None:
    async with FakeApi() as api:
        stored = api.put(PODS, "p")
        other = decode_pod({"metadata": {**stored["metadata"], "uid": "another"}})
        async with reporting(api, other) as (reporter, told):
            api.inject_fault(409, method="PATCH", path="/status")
            reporter.mark_dirty(promptly=True)
            await reporter.wait_written()
            assert phase(api) is None
            assert told == []


async def test_a_simulated_pod_s_status_is_written_after_a_conflict(tmp_path: Path) -> None:
    async with FakeApi() as api, Client(api.credentials, user_agent="t") as client:
        settings = AgentSettings(data_dir=tmp_path)
        one = SimulationSettings(nodes=1)
        made = Simulator(client, settings=settings, simulation=one, clock=SystemClock())
        ready, stop = asyncio.Event(), ShutdownRequest()
        task = asyncio.create_task(made.run(ready, stop))
        await ready.wait()
        api.inject_fault(409, method="PATCH", path="/status", times=2)
        spec = {**manifest("p", container("true"), restartPolicy="Never")["spec"]}
        api.put(PODS, "p", spec={**spec, "nodeName": "sim-0"})
        await wait_for(lambda: phase(api) == "Succeeded")
        stop.requested.set()
        await task
