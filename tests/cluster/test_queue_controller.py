"""The queue controller against the embedded API server, with our CRDs and admission rules."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, merge_patch
from support.delayed_write import DelayedWriteClient
from support.embedded_apiserver import Server
from support.polling import wait_until_true
from support.running_controller import running

from batholith.admission import WEBHOOKS
from batholith.kube.client.events import EventRecorder
from batholith.model import crds
from batholith.model.names import COMMANDS, EVENTS, PODGROUPS, QUEUES
from batholith.queue_ctrl.controller import QueueController, QueueSettings

Json = dict[str, Any]


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, webhooks=WEBHOOKS, crds=crds.load()) as started:
        yield started


async def read(server: Server, name: str) -> Json:
    response = await server.request("GET", QUEUES.path(name=name))
    return response.body if response.status == 200 else {}


async def is_in(server: Server, name: str, state: str) -> bool:
    return bool((await read(server, name)).get("status", {}).get("state") == state)


async def create_queue(server: Server, name: str, **spec: Any) -> None:
    await server.create(QUEUES.path(), {**named("Queue"), "metadata": {"name": name}, "spec": spec})


def named(kind: str) -> Json:
    version = {"Command": "bus.volcano.sh/v1alpha1"}.get(kind, "scheduling.volcano.sh/v1beta1")
    return {"apiVersion": version, "kind": kind}


async def command(server: Server, action: str, queue: str) -> None:
    seen = await read(server, queue)
    target = {**named("Queue"), "name": queue, "uid": seen["metadata"]["uid"]}
    body = {
        **named("Command"),
        "metadata": {"generateName": f"{queue}-"},
        "action": action,
        "target": target,
    }
    await server.create(COMMANDS.path("default"), body)


async def count(server: Server, path: str) -> int:
    return len((await server.get(path))["items"])


async def queue_events(server: Server) -> list[tuple[str, ...]]:
    """Our events about queues: a real server records Events, too."""
    events = (await server.get(EVENTS.path()))["items"]
    return [
        (e["involvedObject"]["kind"], e["type"], e["reason"], e["message"])
        for e in events
        if e["source"].get("component") == "vc-controller-manager"
    ]


async def no_commands(server: Server) -> bool:
    return await count(server, COMMANDS.path("default")) == 0


async def test_a_queue_closes_when_it_is_empty_and_opens_again(server: Server) -> None:
    """Scenario queue-close-open, by the same steps; its events too."""
    async with server.client("controllers") as client:
        recorder = EventRecorder(client, component="vc-controller-manager")
        writing = asyncio.create_task(recorder.run())
        async with running(QueueController(client, recorder=recorder)):
            await wait_until_true(lambda: is_in(server, "default", "Open"))
            await create_queue(server, "gq-a", weight=1)
            await wait_until_true(lambda: is_in(server, "gq-a", "Open"))
            group = {"metadata": {"name": "g"}, "spec": {"queue": "gq-a", "minMember": 2}}
            await server.create(PODGROUPS.path("default"), {**named("PodGroup"), **group})
            await command(server, "CloseQueue", "gq-a")
            await wait_until_true(lambda: is_in(server, "gq-a", "Closing"))
            delayed = {"metadata": {"name": "delayed"}, "spec": {"queue": "gq-a"}}

            async def is_refused() -> bool:
                """By webhooks that observe the queue with a delay."""
                path = f"{PODGROUPS.path('default')}?dryRun=All"
                response = await server.request("POST", path, {**named("PodGroup"), **delayed})
                return response.status >= 400 and "Closing" in response.body["message"]

            await wait_until_true(is_refused)
            await server.request("DELETE", PODGROUPS.path("default", "g"))
            await wait_until_true(lambda: is_in(server, "gq-a", "Closed"))
            await command(server, "OpenQueue", "gq-a")
            await wait_until_true(lambda: is_in(server, "gq-a", "Open"))

            async def all_done() -> bool:
                return await count(server, COMMANDS.path()) == 0

            await wait_until_true(all_done)

            async def is_recorded() -> bool:
                return bool(await queue_events(server))

            await wait_until_true(is_recorded)
        writing.cancel()
        await asyncio.wait([writing])
    final = await read(server, "gq-a")
    assert final["metadata"]["annotations"] == {"volcano.sh/closed-by-parent": "false"}
    assert final["spec"] == {
        "dequeueStrategy": "traverse",
        "parent": "root",
        "reclaimable": True,
        "weight": 1,
    }
    assert final["status"] == {"state": "Open"}
    assert await queue_events(server) == [("Queue", "Normal", "CloseQueue", "Close queue succeed")]


async def test_children_close_with_their_parent(server: Server) -> None:
    """Scenario queue-tree."""
    async with server.client("controllers") as client, running(QueueController(client)):
        await create_queue(server, "gq-p", weight=1)
        await wait_until_true(lambda: is_in(server, "gq-p", "Open"))
        for child in ("gq-c1", "gq-c2"):
            await create_queue(server, child, weight=1, parent="gq-p")
            await wait_until_true(lambda: is_in(server, child, "Open"))  # noqa: B023
        await command(server, "CloseQueue", "gq-p")
        for name in ("gq-p", "gq-c1", "gq-c2"):
            await wait_until_true(lambda: is_in(server, name, "Closed"))  # noqa: B023
    marks = [
        (await read(server, name))["metadata"].get("annotations") for name in ("gq-p", "gq-c1")
    ]
    assert marks == [None, {"volcano.sh/closed-by-parent": "true"}]


async def test_quirk_q12_closing_a_child_keeps_what_others_write_meanwhile(server: Server) -> None:
    async with server.client("controllers") as client, running(QueueController(client)):
        await create_queue(server, "p", weight=1)
        await create_queue(server, "q", weight=1, parent="p")
        await wait_until_true(lambda: is_in(server, "q", "Open"))
    credentials = server.credentials_of("controllers")
    async with (
        DelayedWriteClient(credentials, "PATCH", "/queues/q") as stored,
        running(QueueController(stored)),
    ):
        await command(server, "CloseQueue", "p")
        await stored.held.wait()
        note = {"metadata": {"annotations": {"theirs": "stays"}}}
        await merge_patch(server, QUEUES.path(name="q"), note)
        await stored.deliver()
    async with server.client("controllers") as client, running(QueueController(client)):
        await wait_until_true(lambda: is_in(server, "q", "Closed"))
    seen = await read(server, "q")
    assert seen["metadata"]["annotations"] == {
        "theirs": "stays",
        "volcano.sh/closed-by-parent": "true",
    }


async def test_quirk_q14_a_state_that_somebody_wrote_by_hand_is_no_obstacle(
    server: Server,
) -> None:
    async with server.client("controllers") as client, running(QueueController(client)):
        await create_queue(server, "q", weight=1)
        await wait_until_true(lambda: is_in(server, "q", "Open"))
        for written, then in (("Closed", "Closed"), ("Closing", "Closed"), ("Unknown", "Unknown")):
            path = f"{QUEUES.path(name='q')}/status?fieldManager=another"
            await merge_patch(server, path, {"status": {"state": written}})
            await wait_until_true(lambda: is_in(server, "q", then))  # noqa: B023
            await command(server, "OpenQueue", "q")
            await wait_until_true(lambda: is_in(server, "q", "Open"))
            # A write before a Command is finished is covered by the Command as well.
            await wait_until_true(lambda: no_commands(server))


async def test_quirk_q1_counts_reach_the_status(server: Server) -> None:
    settings = QueueSettings(count_interval=0)
    async with (
        server.client("controllers") as client,
        running(QueueController(client, settings=settings)),
    ):
        await wait_until_true(lambda: is_in(server, "default", "Open"))
        for name, phase in (("a", "Running"), ("b", "Running"), ("c", "Pending")):
            body = {"metadata": {"name": name}, "spec": {}, "status": {"phase": phase}}
            await server.create(PODGROUPS.path("default"), {**named("PodGroup"), **body})

        async def counted() -> bool:
            status = (await read(server, "default"))["status"]
            return bool(status == {"state": "Open", "running": 2, "pending": 1})

        await wait_until_true(counted)
        await server.request("DELETE", PODGROUPS.path("default", "c"))

        async def uncounted() -> bool:
            return bool(
                (await read(server, "default"))["status"] == {"state": "Open", "running": 2}
            )

        await wait_until_true(uncounted)
