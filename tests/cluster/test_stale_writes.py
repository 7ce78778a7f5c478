"""A delayed write of a former leader must not take effect.

Each test delays one write. Before it arrives, the next leader or a kubelet writes a change that the
old leader has not observed.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, add_node, merge_patch
from support.delayed_write import DelayedWriteClient
from support.embedded_apiserver import Server
from support.polling import wait_until_true
from support.running_controller import Controller, running

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.settings import JobSettings
from batholith.kube.client.client import Client
from batholith.kube.errors import ConflictError
from batholith.model import crds
from batholith.model.names import (
    COMMANDS,
    CONFIGMAPS,
    GROUP_NAME,
    JOBS,
    PODGROUPS,
    PODS,
    QUEUES,
    Resource,
)
from batholith.podgroup_ctrl.controller import PodGroupController
from batholith.queue_ctrl.controller import QueueController
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.writers.status_updater import WriteIntervals

Json = dict[str, Any]
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
FAST_ELECTION = SchedulerSettings(
    write_intervals=WriteIntervals(podgroup=0.05, pod=0.05, queue=0.05)
)


def jobs(client: Client) -> Controller:
    return JobController(client, settings=JobSettings(status_delay=0.05))


def scheduling(client: Client) -> Controller:
    return Scheduler(client, settings=FAST_ELECTION)


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, crds=crds.load()) as started:
        body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": "default"}}
        await started.create(QUEUES.path(), body | {"spec": {"weight": 1}})
        await merge_patch(
            started, QUEUES.path("", "default", "status"), {"status": {"state": "Open"}}
        )
        yield started


class DelayedWrite:
    """A delayed write, and the client for changes before it arrives."""

    def __init__(self, client: DelayedWriteClient) -> None:
        self._client = client

    @asynccontextmanager
    async def rejected_after(self) -> AsyncIterator[None]:
        """The block is what happens while the write is on its way; it must then be refused."""
        await self._client.held.wait()
        yield
        await self._client.deliver()
        assert isinstance(self._client.error, ConflictError), self._client.error


@asynccontextmanager
async def delayed_leader(
    server: Server, new_controller: Callable[[Client], Controller], *, method: str, in_path: str
) -> AsyncIterator[DelayedWrite]:
    """A leader whose first *method* request to a path with *in_path* is delayed."""
    credentials = server.credentials_of("admin")
    async with (
        DelayedWriteClient(credentials, method, in_path) as client,
        running(new_controller(client)),
    ):
        yield DelayedWrite(client)


async def exists(server: Server, path: str) -> bool:
    return (await server.request("GET", path)).status == 200


async def submit(server: Server, **spec: Any) -> Json:
    """A job of two pods."""
    template = {"spec": {"containers": [{"name": "main", "image": "busybox:1"}]}}
    content = {
        "minAvailable": 2,
        "maxRetry": 3,
        "queue": "default",
        "schedulerName": "volcano",
        "tasks": [{"name": "t", "replicas": 2, "minAvailable": 2, "template": template}],
        **spec,
    }
    body = {
        "apiVersion": JOBS.api_version,
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": content,
    }
    return await server.create(JOBS.path("default"), body)


async def run_job(server: Server, **spec: Any) -> None:
    """Such a job, admitted and run by the test."""
    created = await submit(server, **spec)
    group = PODGROUPS.path("default", f"j-{created['metadata']['uid']}")
    await wait_until_true(lambda: exists(server, group))
    await merge_patch(server, group, {"status": {"phase": "Inqueue"}})
    for index in range(2):
        pod = PODS.path("default", f"j-t-{index}")
        await wait_until_true(lambda pod=pod: exists(server, pod))  # type: ignore[misc]
        await merge_patch(server, f"{pod}/status", {"status": {"phase": "Running"}})


async def group_of_job(server: Server) -> str:
    (group,) = (await server.get(PODGROUPS.path("default")))["items"]
    return PODGROUPS.path("default", group["metadata"]["name"])


async def command(server: Server, action: str) -> None:
    job = await server.get(JOBS.path("default", "j"))
    target = {
        "apiVersion": JOBS.api_version,
        "kind": "Job",
        "name": "j",
        "uid": job["metadata"]["uid"],
    }
    body = {"apiVersion": COMMANDS.api_version, "kind": "Command", "metadata": {"name": "c"}}
    await server.create(COMMANDS.path("default"), body | {"action": action, "target": target})


# The controllers.


async def test_a_job_status(server: Server) -> None:
    async with delayed_leader(server, jobs, method="PATCH", in_path="/jobs/j/status") as delayed:
        path = JOBS.path("default", "j")
        await submit(server)
        async with delayed.rejected_after():
            await merge_patch(
                server, f"{path}/status", {"status": {"state": {"phase": "Completed"}}}
            )
        assert (await server.get(path))["status"]["state"] == {"phase": "Completed"}


async def test_the_end_of_a_pod_that_has_done_its_work_meanwhile(server: Server) -> None:
    async with delayed_leader(server, jobs, method="DELETE", in_path="/pods/") as delayed:
        await run_job(server)
        await command(server, "AbortJob")
        async with delayed.rejected_after():
            for name in ("j-t-0", "j-t-1"):
                path = PODS.path("default", name, "status")
                await merge_patch(server, path, {"status": {"phase": "Succeeded"}})
        for name in ("j-t-0", "j-t-1"):
            pod = await server.get(PODS.path("default", name))
            assert "deletionTimestamp" not in pod["metadata"]


async def test_the_size_of_a_gang(server: Server) -> None:
    async with delayed_leader(server, jobs, method="PATCH", in_path="/podgroups/") as delayed:
        await run_job(server)
        group = await group_of_job(server)
        await merge_patch(server, JOBS.path("default", "j"), {"spec": {"minAvailable": 1}})
        async with delayed.rejected_after():
            await merge_patch(server, group, {"spec": {"minMember": 7}})
        assert (await server.get(group))["spec"]["minMember"] == 7


async def test_the_hosts_that_a_plugin_lists(server: Server) -> None:
    async with delayed_leader(server, jobs, method="PATCH", in_path="/configmaps/") as delayed:
        await run_job(server, plugins={"svc": []})
        job = await server.get(JOBS.path("default", "j"))
        (task,) = job["spec"]["tasks"]
        more = {"spec": {"tasks": [task | {"replicas": 3}]}}
        await merge_patch(server, JOBS.path("default", "j"), more)
        hosts = CONFIGMAPS.path("default", "j-svc")
        async with delayed.rejected_after():
            await merge_patch(server, hosts, {"data": {"t.host": "newer"}})
        assert (await server.get(hosts))["data"]["t.host"] == "newer"


async def test_the_end_of_a_group_that_is_in_use_again(server: Server) -> None:
    async with delayed_leader(
        server, PodGroupController, method="DELETE", in_path="/podgroups/"
    ) as delayed:
        container = {"name": "main", "image": "busybox:1"}
        labels = {"app": "s"}
        spec = {
            "replicas": 1,
            "serviceName": "s",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        }
        body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}}
        owner = await server.create(STATEFULSETS.path("default"), body | {"spec": spec})
        uid = owner["metadata"]["uid"]
        reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": uid}
        meta = {"name": "s-0", "ownerReferences": [reference | {"controller": True}]}
        pod = {"schedulerName": "volcano", "containers": [container]}
        await server.create(
            PODS.path("default"), {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod}
        )
        group = PODGROUPS.path("default", f"podgroup-{uid}")
        await wait_until_true(lambda: exists(server, group))
        await merge_patch(server, STATEFULSETS.path("default", "s"), {"spec": {"replicas": 0}})
        await server.request("DELETE", PODS.path("default", "s-0"))
        async with delayed.rejected_after():
            await merge_patch(server, group, {"status": {"phase": "Inqueue"}})
        assert await exists(server, group)


async def test_quirk_p9_the_group_of_a_pod_that_is_another_by_now(server: Server) -> None:
    path = PODS.path("default", "p")
    async with delayed_leader(
        server, PodGroupController, method="PATCH", in_path="/pods/p"
    ) as delayed:
        container = {"name": "main", "image": "busybox:1"}
        spec = {"schedulerName": "volcano", "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
        await server.create(PODS.path("default"), pod)
        async with delayed.rejected_after():
            await server.request("DELETE", path, {"gracePeriodSeconds": 0})
            await server.create(PODS.path("default"), pod)
        assert GROUP_NAME not in (await server.get(path))["metadata"].get("annotations", {})


async def test_the_state_of_a_queue(server: Server) -> None:
    path = QUEUES.path("", "default")
    async with delayed_leader(
        server, QueueController, method="PATCH", in_path="/queues/q/status"
    ) as delayed:
        body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": "q"}}
        await server.create(QUEUES.path(), body | {"spec": {"weight": 1}})
        path = QUEUES.path("", "q")
        async with delayed.rejected_after():
            await merge_patch(server, f"{path}/status", {"status": {"state": "Closed"}})
        assert (await server.get(path))["status"]["state"] == "Closed"


# The scheduler.


async def add_gang(server: Server, *, cpu: str) -> None:
    body = {"apiVersion": PODGROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "g"}}
    await server.create(
        PODGROUPS.path("default"), body | {"spec": {"minMember": 1, "queue": "default"}}
    )
    meta = {"name": "p", "annotations": {GROUP_NAME: "g"}}
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": "volcano", "containers": [container]}
    await server.create(
        PODS.path("default"), {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    )


async def bind(server: Server, node: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": node},
    }
    await server.create(PODS.path("default", "p", "binding"), body)


async def test_that_a_pod_finds_no_place_when_it_has_one(server: Server) -> None:
    await add_node(server, "a")
    async with delayed_leader(
        server, scheduling, method="PATCH", in_path="/pods/p/status"
    ) as delayed:
        await add_gang(server, cpu="100")
        async with delayed.rejected_after():
            await bind(server, "a")
        status = (await server.get(PODS.path("default", "p")))["status"]
        result = {each["type"]: each["status"] for each in status.get("conditions", ())}
        assert result.get("PodScheduled") == "True"


async def test_a_binding_of_a_pod_of_which_the_next_leader_has_spoken(server: Server) -> None:
    await add_node(server, "a")
    async with delayed_leader(server, scheduling, method="POST", in_path="/binding") as delayed:
        await add_gang(server, cpu="1")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        async with delayed.rejected_after():
            status = {"status": {"conditions": [condition]}}
            await merge_patch(server, PODS.path("default", "p", "status"), status)
        assert "nodeName" not in (await server.get(PODS.path("default", "p")))["spec"]


async def test_quirk_p15_the_status_of_a_gang(server: Server) -> None:
    group = PODGROUPS.path("default", "g")
    async with delayed_leader(
        server, scheduling, method="PATCH", in_path="/podgroups/g"
    ) as delayed:
        await add_gang(server, cpu="1")
        async with delayed.rejected_after():
            await merge_patch(server, group, {"status": {"phase": "Running"}})
        assert (await server.get(group))["status"]["phase"] == "Running"


async def test_what_a_queue_has_allocated(server: Server) -> None:
    await add_node(server, "a")
    path = QUEUES.path("", "default")
    async with delayed_leader(
        server, scheduling, method="PATCH", in_path="/queues/default"
    ) as delayed:
        await add_gang(server, cpu="1")
        async with delayed.rejected_after():
            await merge_patch(server, f"{path}/status", {"status": {"allocated": {"cpu": "77"}}})
        assert (await server.get(path))["status"]["allocated"] == {"cpu": "77"}
