"""Bindings that are rejected, lose their response, or are repeated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import Server
from support.polling import wait_for
from support.running_controller import FakeRecorder

from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.model.names import PODS
from batholith.scheduler.plugins.placement import Placement
from batholith.scheduler.writers.binder import INITIAL_BACKOFF, Binder


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as started:
        yield started


class BinderHarness:
    """A running binder, its clock, and the placements that it forgot."""

    def __init__(self, client: Client) -> None:
        self.clock = FakeClock()
        self.recorder = FakeRecorder()
        self.forgotten: list[str] = []
        self.binder = Binder(
            client,
            recorder=self.recorder,
            clock=self.clock,
            max_in_flight=4,
            forget=self.forgotten.append,
        )


@asynccontextmanager
async def binding(server: Server) -> AsyncIterator[BinderHarness]:
    async with server.client("scheduler") as client:
        harness = BinderHarness(client)
        task = asyncio.create_task(harness.binder.run())
        try:
            yield harness
        finally:
            task.cancel()
            await asyncio.wait([task])


async def make_pod(server: Server) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
    created: dict[str, Any] = await server.create(PODS.path("default"), body)
    return str(created["metadata"]["uid"])


async def node_of(server: Server) -> str:
    found = await server.get(PODS.path("default", "p"))
    return str(found["spec"].get("nodeName", ""))


async def test_pod_is_bound_and_an_event_is_recorded(server: Server) -> None:
    uid = await make_pod(server)
    async with binding(server) as harness:
        harness.binder.bind([Placement("default", "p", uid, "a")])
        await wait_for(lambda: harness.recorder.events)
    assert await node_of(server) == "a"
    message = "Successfully assigned default/p to a"
    assert harness.recorder.events == [("Pod", "p", "Normal", "Scheduled", message)]
    assert harness.forgotten == []


async def test_placement_is_forgotten_after_the_backoff_of_its_binding(server: Server) -> None:
    """The binding has the uid of a deleted pod, so it must fail."""
    await make_pod(server)
    async with binding(server) as harness:
        harness.binder.bind([Placement("default", "p", "deleted-uid", "a")])
        await wait_for(lambda: harness.recorder.events)
        assert harness.forgotten == []
        await wait_for(harness.binder.queue.delayed_count)
        await harness.clock.advance(INITIAL_BACKOFF)
        await wait_for(lambda: harness.forgotten)
    assert await node_of(server) == ""
    assert harness.forgotten == ["deleted-uid"]
    assert harness.recorder.events[0][2:4] == ("Warning", "FailedScheduling")


async def test_binding_whose_response_was_lost_is_kept(server: Server) -> None:
    """The retry is rejected because the pod is bound: its placement must not be forgotten."""
    uid = await make_pod(server)
    async with binding(server) as harness:
        harness.binder.bind([Placement("default", "p", uid, "a")])
        await wait_for(lambda: harness.recorder.events)
        harness.binder.bind([Placement("default", "p", uid, "a")])
        await wait_for(lambda: harness.binder.idle)
        await harness.clock.advance(60)
    assert harness.forgotten == []
    assert await node_of(server) == "a"


async def test_placement_of_a_deleted_pod_is_forgotten(server: Server) -> None:
    async with binding(server) as harness:
        harness.binder.bind([Placement("default", "p", "deleted", "a")])
        await wait_for(harness.binder.queue.delayed_count)
        await harness.clock.advance(INITIAL_BACKOFF)
        await wait_for(lambda: harness.forgotten)
    assert harness.forgotten == ["deleted"]
