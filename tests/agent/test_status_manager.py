"""Pod status writes that the API server rejects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, decode_pod, manifest
from support.controller_api import ControllerApi
from support.polling import wait_for

from batholith.local.agent.pods import status_manager
from batholith.local.agent.pods.status_manager import PodStatusManager
from batholith.local.agent.settings import AgentSettings, ShutdownRequest, SimulationSettings
from batholith.local.agent.simulated.simulator import Simulator
from batholith.local.agent.state.core_types import Pod
from batholith.machinery.clock import SystemClock
from batholith.model.names import PODS


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_manager, "INITIAL_BACKOFF", 0.01)


@asynccontextmanager
async def running_manager(
    api: ControllerApi, pod: Pod
) -> AsyncIterator[tuple[PodStatusManager, list[Pod]]]:
    """Run a status manager that writes Running; yield it with the written pods."""
    written: list[Pod] = []
    status = {"phase": "Running"}
    async with api.client() as client:
        created = PodStatusManager(
            client, clock=SystemClock(), render=lambda: (pod, status), on_written=written.append
        )
        task = asyncio.create_task(created.run())
        yield created, written
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def phase(api: ControllerApi) -> Any:
    return api.objects(PODS)["d/p"].get("status", {}).get("phase")


async def test_status_is_written_after_a_conflict() -> None:
    async with ControllerApi() as api:
        pod = decode_pod(api.put(PODS, "p"))
        async with running_manager(api, pod) as (manager, written):
            api.fail(409, "PATCH", "/status", count=2)
            manager.mark_dirty(promptly=True)
            await manager.wait_written()
            assert phase(api) == "Running"
            assert len(written) == 3, "it was read again each time"


async def test_the_set_up_of_a_pod_is_written_alone_only_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for delay in (3600.0, 0.01):
        monkeypatch.setattr(status_manager, "_SETUP_DELAY", delay)
        async with ControllerApi() as api:
            pod = decode_pod(api.put(PODS, "p"))
            async with running_manager(api, pod) as (manager, written):
                manager.mark_set_up()
                if delay == 3600.0:
                    manager.mark_dirty(promptly=True)
                await wait_for(lambda: phase(api) == "Running")
                await manager.wait_written()
                assert len(written) == 1


async def test_forbidden_status_is_written_once_permitted() -> None:
    async with ControllerApi() as api:
        pod = decode_pod(api.put(PODS, "p"))
        async with running_manager(api, pod) as (manager, _):
            api.fail(403, "PATCH", "/status", count=2)
            manager.mark_dirty(promptly=True)
            await wait_for(lambda: manager.is_forbidden)
            await manager.wait_written()
            assert phase(api) == "Running"
            assert not manager.is_forbidden


async def test_conflict_with_a_pod_of_another_uid_is_final() -> None:
    async with ControllerApi() as api:
        stored = api.put(PODS, "p")
        other = decode_pod({"metadata": {**stored["metadata"], "uid": "another"}})
        async with running_manager(api, other) as (manager, written):
            api.fail(409, "PATCH", "/status")
            manager.mark_dirty(promptly=True)
            await manager.wait_written()
            assert phase(api) is None
            assert written == []


async def test_a_simulated_pod_s_status_is_written_after_a_conflict(tmp_path: Path) -> None:
    async with ControllerApi() as api, api.client() as client:
        settings = AgentSettings(data_dir=tmp_path)
        one = SimulationSettings(nodes=1)
        created = Simulator(client, settings=settings, simulation=one, clock=SystemClock())
        ready, stop = asyncio.Event(), ShutdownRequest()
        task = asyncio.create_task(created.run(ready, stop))
        await ready.wait()
        api.fail(409, "PATCH", "/status", count=2)
        spec = {**manifest("p", container("true"), restartPolicy="Never")["spec"]}
        api.put(PODS, "p", spec={**spec, "nodeName": "sim-0"})
        await wait_for(lambda: phase(api) == "Succeeded")
        stop.requested.set()
        await task
