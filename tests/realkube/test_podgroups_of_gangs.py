"""Jobs of one pod without a PodGroup on a real API server: what is written."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import audit_log
from support.polling import wait_until_true
from support.realkube import RealKubeOptions, RealServer, real_server, require_realkube
from support.running_controller import FakeRecorder, running
from support.volcano_objects import sleeping_job

from batholith.local.agent.settings import SimulationSettings
from batholith.model import crds
from batholith.model.described_podgroup import PodGroupsOf
from batholith.model.names import JOBS, NODES, PODGROUPS, PODS, QUEUES, WHY
from batholith.testing import components

pytestmark = pytest.mark.timeout(300)

Json = dict[str, Any]
JOB_COUNT = 200
NODE_COUNT = 4


def job(name: str, *, cpu: str = "10m") -> Json:
    return sleeping_job(name, 1, cpu=cpu)


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[RealServer]:
    """A real server with our components in this process, and simulated nodes."""
    require_realkube()
    options = RealKubeOptions(audit=True)
    async with (
        real_server(directory, options, crds=crds.load()) as server,
        AsyncExitStack() as stack,
    ):
        clients = {
            user: await stack.enter_async_context(server.client(user))
            for user in ("agent", "controllers", "scheduler")
        }
        recorder: Any = FakeRecorder()
        services = {
            **components.agent(clients["agent"], SimulationSettings(nodes=NODE_COUNT), directory),
            **components.controllers(
                clients["controllers"], recorder, podgroups_of=PodGroupsOf.GANGS
            ),
            **components.scheduler(clients["scheduler"], recorder),
        }
        for each in services.values():
            await stack.enter_async_context(running(each))

        async def is_ready() -> bool:
            queues = (await server.get(QUEUES.path()))["items"]
            nodes = (await server.get(NODES.path()))["items"]
            usable = [
                each
                for each in nodes
                if each.get("status", {}).get("allocatable") and not each["spec"].get("taints")
            ]
            open_queues = [q for q in queues if q.get("status", {}).get("state") == "Open"]
            return len(usable) == NODE_COUNT and len(open_queues) == len(queues) == 2

        await wait_until_true(is_ready)
        yield server


@pytest.mark.soak
async def test_a_job_of_one_pod_costs_its_pod_its_binding_and_its_status(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        path = JOBS.path("default")
        async with asyncio.TaskGroup() as tasks:
            for number in range(JOB_COUNT):
                tasks.create_task(server.create(path, job(f"j{number}")))

        async def all_run() -> bool:
            found = await server.get(JOBS.path("default"))
            states = [each.get("status", {}).get("state", {}) for each in found["items"]]
            return [each.get("phase") for each in states].count("Running") == JOB_COUNT

        await wait_until_true(all_run, seconds=120)
        counts = Counter(audit_log.component_writes(server.kube.audit()))
        groups = (await server.get(PODGROUPS.path("default")))["items"]
    assert not groups
    assert counts["create pods"] == counts["create pods/binding"] == JOB_COUNT
    assert not counts["patch pods/status"], counts
    # A status is written once, but twice for the jobs at both ends of the burst.
    assert sum(counts.values()) <= 3.5 * JOB_COUNT, counts


async def test_the_explanation_is_written_with_the_condition(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        await server.create(JOBS.path("default"), job("j", cpu="1000"))

        async def is_explained() -> bool:
            pods = (await server.get(PODS.path("default")))["items"]
            return any(WHY in pod["metadata"].get("annotations", {}) for pod in pods)

        await wait_until_true(is_explained)
        (pod,) = (await server.get(PODS.path("default")))["items"]
        counts = Counter(audit_log.component_writes(server.kube.audit()))

        async def has_reason() -> bool:
            found = await server.get(JOBS.path("default", "j"))
            reason = found.get("status", {}).get("state", {}).get("reason")
            return bool(reason == "PodGroupPending")

        await wait_until_true(has_reason)
    (condition,) = pod["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert counts["patch pods/status"] == 1, counts
    assert not counts["patch pods"], counts
