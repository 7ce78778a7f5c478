"""The podgroup controller against the embedded API server, with our CRDs and admission rules."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import Server
from support.polling import wait_for, wait_until_true
from support.running_controller import FakeRecorder, running

from batholith.admission import WEBHOOKS
from batholith.machinery.clock import Clock
from batholith.machinery.testing import FakeClock
from batholith.model import crds
from batholith.model.names import PODGROUPS, PODS
from batholith.podgroup_ctrl.controller import PodGroupController
from batholith.queue_ctrl.controller import QueueController

Json = dict[str, Any]
GROUP = "scheduling.k8s.io/group-name"


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, webhooks=WEBHOOKS, crds=crds.load()) as started:
        yield started


@asynccontextmanager
async def running_controllers(
    server: Server, *, recorder: FakeRecorder | None = None, clock: Clock | None = None
) -> AsyncIterator[None]:
    """Both controllers, for the length of the block."""
    async with server.client("controllers") as client, running(QueueController(client)):
        controller = PodGroupController(client, recorder=recorder, clock=clock)
        async with running(controller):
            yield


def pod(name: str, *, scheduler: str = "volcano", **meta: Any) -> Json:
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }


async def annotation(server: Server, name: str) -> str | None:
    seen = await server.get(PODS.path("default", name))
    bound: str | None = seen["metadata"].get("annotations", {}).get(GROUP)
    return bound


async def test_pods_of_our_scheduler_get_groups_and_the_rest_is_left_alone(
    server: Server,
) -> None:
    """Scenarios bare-pod and bare-pod-group."""
    async with running_controllers(server):
        for body in (
            pod("p"),
            pod("mine", annotations={GROUP: "mine"}),
            pod("job", labels={"volcano.sh/job-name": "j", "volcano.sh/task-index": "0"}),
            pod("other", scheduler="default-scheduler"),
            pod(
                "q",
                labels={"a": "b"},
                annotations={
                    "scheduling.volcano.sh/queue-name": "default",
                    "scheduling.volcano.sh/group-min-member": "1",
                    "volcano.sh/preemptable": "true",
                },
            ),
        ):
            await server.create(PODS.path("default"), body)

        async def both_bound() -> bool:
            return bool(await annotation(server, "p") and await annotation(server, "q"))

        await wait_until_true(both_bound)
    groups = (await server.get(PODGROUPS.path("default")))["items"]
    uids = {
        name: (await server.get(PODS.path("default", name)))["metadata"]["uid"] for name in "pq"
    }
    by_name = {group["metadata"]["name"]: group for group in groups}
    assert by_name.keys() == {f"podgroup-{uid}" for uid in uids.values()}
    first, second = (by_name[f"podgroup-{uids[name]}"] for name in "pq")
    assert first["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "blockOwnerDeletion": True,
            "controller": True,
            "kind": "Pod",
            "name": "p",
            "uid": uids["p"],
        }
    ]
    assert first["spec"] == {
        "minMember": 1,
        "minResources": {
            "count/pods": "1",
            "cpu": "100m",
            "memory": "64Mi",
            "pods": "1",
            "requests.cpu": "100m",
            "requests.memory": "64Mi",
        },
        "queue": "default",
    }
    assert first["status"] == {"phase": "Pending"}
    assert second["metadata"]["annotations"] == {"volcano.sh/preemptable": "true"}
    assert "labels" not in second["metadata"]
    assert await annotation(server, "mine") == "mine"
    assert await annotation(server, "job") is None
    assert await annotation(server, "other") is None


async def test_a_group_goes_with_its_pod(server: Server) -> None:
    async with running_controllers(server):
        await server.create(PODS.path("default"), pod("p"))

        async def groups() -> int:
            return len((await server.get(PODGROUPS.path("default")))["items"])

        async def bound() -> bool:
            return bool(await annotation(server, "p"))

        async def is_deleted() -> bool:
            return await groups() == 0

        await wait_until_true(bound)
        assert await groups() == 1
        await server.request("DELETE", PODS.path("default", "p"), {"gracePeriodSeconds": 0})
        await wait_until_true(is_deleted)


async def test_quirk_p17_pods_wait_for_their_queue_and_are_told_so(server: Server) -> None:
    """The queue opens and the PodGroup is created at once; the clock is frozen, so no retry is
    due."""
    notes = FakeRecorder()
    named = {"scheduling.volcano.sh/queue-name": "team"}
    async with running_controllers(server, recorder=notes, clock=FakeClock()):
        await server.create(PODS.path("default"), pod("p", annotations=named))
        await wait_for(lambda: notes.events)
        queue = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": "team"},
            "spec": {},
        }
        await server.create("/apis/scheduling.volcano.sh/v1beta1/queues", queue)

        async def bound() -> bool:
            return bool(await annotation(server, "p"))

        await wait_until_true(bound)
    kind, name, level, reason, message = notes.events[0]
    assert (kind, name, level, reason) == ("Pod", "p", "Warning", "PodGroupRefused")
    assert "team" in message
