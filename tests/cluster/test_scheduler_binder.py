"""What becomes of bindings that are refused, answered late, or carried out by somebody else."""

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
from batholith.scheduler.framework.decision import Placement
from batholith.scheduler.writers.binder import INITIAL_BACKOFF, Binder


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as started:
        yield started


class BinderHarness:
    """A binder at work, its clock, and what it gave up."""

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
        bench = BinderHarness(client)
        task = asyncio.create_task(bench.binder.run())
        try:
            yield bench
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
    made: dict[str, Any] = await server.create(PODS.path("default"), body)
    return str(made["metadata"]["uid"])


async def node_of(server: Server) -> str:
    found = await server.get(PODS.path("default", "p"))
    return str(found["spec"].get("nodeName", ""))


async def test_a_pod_is_bound_and_that_is_said(server: Server) -> None:
    uid = await make_pod(server)
    async with binding(server) as bench:
        bench.binder.bind([Placement("default", "p", uid, "a")])
        await wait_for(lambda: bench.recorder.events)
    assert await node_of(server) == "a"
    said = "Successfully assigned default/p to a"
    assert bench.recorder.events == [("Pod", "p", "Normal", "Scheduled", said)]
    assert bench.forgotten == []


async def test_a_refused_pod_keeps_its_place_for_a_moment(server: Server) -> None:
    """The binding names the uid of an earlier pod: it must not take effect."""
    await make_pod(server)
    async with binding(server) as bench:
        bench.binder.bind([Placement("default", "p", "of-an-earlier-one", "a")])
        await wait_for(lambda: bench.recorder.events)
        assert bench.forgotten == []
        await wait_for(bench.binder.queue.delayed_count)
        await bench.clock.advance(INITIAL_BACKOFF)
        await wait_for(lambda: bench.forgotten)
    assert await node_of(server) == ""
    assert bench.forgotten == ["of-an-earlier-one"]
    assert bench.recorder.events[0][2:4] == ("Warning", "FailedScheduling")


async def test_a_binding_whose_answer_was_lost_stands(server: Server) -> None:
    """Sent again, it is refused because it has been carried out: the place must not be given up."""
    uid = await make_pod(server)
    async with binding(server) as bench:
        bench.binder.bind([Placement("default", "p", uid, "a")])
        await wait_for(lambda: bench.recorder.events)
        bench.binder.bind([Placement("default", "p", uid, "a")])
        await wait_for(lambda: bench.binder.idle)
        await bench.clock.advance(60)
    assert bench.forgotten == []
    assert await node_of(server) == "a"


async def test_a_pod_that_is_gone_gives_its_place_back(server: Server) -> None:
    async with binding(server) as bench:
        bench.binder.bind([Placement("default", "p", "gone", "a")])
        await wait_for(bench.binder.queue.delayed_count)
        await bench.clock.advance(INITIAL_BACKOFF)
        await wait_for(lambda: bench.forgotten)
    assert bench.forgotten == ["gone"]
