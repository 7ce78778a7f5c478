"""Kubernetes' own PodGroups on an API server: what the scheduler writes of them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_servers import ServerFactory, add_node, merge_patch
from support.embedded_apiserver import Server
from support.polling import wait_until_true
from support.running_controller import FakeRecorder, running

from batholith.model import crds
from batholith.model.names import NATIVE_PODGROUPS, PODS, QUEUES, WHY
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.writers.status_updater import WriteIntervals

Json = dict[str, Any]
SETTINGS = SchedulerSettings(write_intervals=WriteIntervals(podgroup=0.05, pod=0.05, queue=0.05))


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, crds=crds.load()) as started:
        body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": "default"}}
        await started.create(QUEUES.path(), body | {"spec": {"weight": 1}})
        state = {"status": {"state": "Open"}}
        await merge_patch(started, QUEUES.path("", "default", "status"), state)
        yield started


async def add_group(server: Server, name: str, minimum: int) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    body = {"metadata": {"name": name}, "spec": spec}
    await server.create(NATIVE_PODGROUPS.path("default"), body)


async def add_pod(server: Server, name: str, group: str) -> None:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    spec = {
        "schedulerName": "volcano",
        "schedulingGroup": {"podGroupName": group},
        "containers": [container],
    }
    await server.create(PODS.path("default"), {"metadata": {"name": name}, "spec": spec})


async def condition_of(server: Server, name: str, status: str) -> Json:
    """The condition of a PodGroup, once it has that *status*."""
    found: list[Json] = []

    async def has_it() -> bool:
        group = await server.get(NATIVE_PODGROUPS.path("default", name))
        found[:] = (group.get("status") or {}).get("conditions") or []
        return any(each["status"] == status for each in found)

    await wait_until_true(has_it)
    (condition,) = found
    return condition


async def test_gangs_start_or_wait_and_report_it_as_kube_scheduler_does(server: Server) -> None:
    """INV-NG-9, INV-NG-10."""
    await add_node(server, "node", cpu="3")
    recorder = FakeRecorder()
    async with (
        server.client("scheduler") as client,
        running(Scheduler(client, settings=SETTINGS, recorder=recorder)),
    ):
        await add_group(server, "fits", 2)
        for name in ("a", "b"):
            await add_pod(server, name, "fits")
        scheduled = await condition_of(server, "fits", "True")
        assert (scheduled["type"], scheduled["reason"]) == ("PodGroupScheduled", "Scheduled")
        for name in ("a", "b"):
            assert (await server.get(PODS.path("default", name)))["spec"]["nodeName"] == "node"
        await add_group(server, "waits", 2)
        for name in ("c", "d"):
            await add_pod(server, name, "waits")
        waiting = await condition_of(server, "waits", "False")
        assert waiting["reason"] == "Unschedulable"
        assert "1 of 2 pods cannot be scheduled" in waiting["message"]

        async def is_explained() -> bool:
            pods = [await server.get(PODS.path("default", name)) for name in ("c", "d")]
            return all(WHY in (each["metadata"].get("annotations") or {}) for each in pods)

        await wait_until_true(is_explained)
        for name in ("c", "d"):
            pod = await server.get(PODS.path("default", name))
            conditions = [
                each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled"
            ]
            assert [(each["status"], each["reason"]) for each in conditions] == [
                ("False", "Unschedulable")
            ]
            why = msgspec.json.decode(pod["metadata"]["annotations"][WHY])
            assert why["pods"]["needed"] == 2
        await add_node(server, "another", cpu="3")
        later = await condition_of(server, "waits", "True")
        assert later["lastTransitionTime"] >= waiting["lastTransitionTime"]
        group = await server.get(NATIVE_PODGROUPS.path("default", "waits"))
        assert WHY not in (group["metadata"].get("annotations") or {})
    kinds = {(kind, reason) for kind, _, _, reason, _ in recorder.events}
    assert ("Pod", "Scheduled") in kinds
    assert ("Pod", "FailedScheduling") in kinds
    assert not any(kind == "PodGroup" for kind, _ in kinds)
