"""Jobs that wait suspended for their queue, with the scheduler that admits them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from support.api_servers import ServerFactory, add_node
from support.embedded_apiserver import Server
from support.polling import wait_for, wait_until_true
from support.running_controller import running

from batholith.admission import WEBHOOKS
from batholith.kube.informer.informer import Informer
from batholith.model import crds
from batholith.model.names import BATCH_JOBS, PODGROUPS, PODS, QUEUES
from batholith.model.podgroup import PodGroup
from batholith.podgroup_ctrl.suspendable_kinds import KINDS
from batholith.podgroup_ctrl.suspension import SuspensionController
from batholith.queue_ctrl.controller import QueueController
from batholith.scheduler.scheduler import Scheduler

Json = dict[str, Any]


def job(name: str, cpu: str) -> Json:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    template = {
        "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "team"}},
        "spec": {"schedulerName": "volcano", "restartPolicy": "Never", "containers": [container]},
    }
    metadata = {"name": name, "labels": {"batholith.io/suspend-by": "queue"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"suspend": True, "template": template},
    }


async def is_resumed(server: Server, name: str) -> bool:
    found = await server.get(BATCH_JOBS.path("default", name))
    return found["spec"]["suspend"] is False


async def test_jobs_are_resumed_as_far_as_their_queue_has_capacity(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            servers.start(tmp_path, webhooks=WEBHOOKS, crds=crds.load())
        )
        client = await stack.enter_async_context(server.client("admin"))
        groups = Informer(client, PODGROUPS, PodGroup)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        watching = tasks.create_task(groups.run())
        stack.callback(watching.cancel)
        await add_node(server, "node", cpu="32", memory="128Gi")
        for controller in (
            QueueController(client),
            SuspensionController(client, KINDS[0]),
            Scheduler(client),
        ):
            await stack.enter_async_context(running(controller))
        queue = {
            "apiVersion": QUEUES.api_version,
            "kind": QUEUES.kind,
            "metadata": {"name": "team"},
            "spec": {"weight": 1, "capability": {"cpu": "4"}},
        }
        await server.create(QUEUES.path(), queue)
        await server.create(BATCH_JOBS.path("default"), job("first", "3"))
        await wait_until_true(lambda: is_resumed(server, "first"))
        await server.create(BATCH_JOBS.path("default"), job("second", "3"))
        await wait_for(
            lambda: any(
                group.status.phase == "Pending" and group.status.conditions for group in groups
            )
        )
        assert not await is_resumed(server, "second")
        pods = f"{PODS.path('default')}?labelSelector=job-name=second"
        assert (await server.get(pods))["items"] == []
        # The end of the first one: its PodGroup is deleted with it.
        first = (await server.get(BATCH_JOBS.path("default", "first")))["metadata"]["uid"]
        for path in (
            BATCH_JOBS.path("default", "first"),
            PODGROUPS.path("default", f"podgroup-{first}"),
        ):
            await server.request("DELETE", f"{path}?propagationPolicy=Background")
        await wait_until_true(lambda: is_resumed(server, "second"))
