"""No write is sent once the fence is closed, at any point before."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from support.controller_api import ControllerApi
from support.polling import wait_for

from batholith.kube.client.client import Client, ClientOptions, WriteLimit
from batholith.kube.client.events import EventRecorder
from batholith.kube.client.flowcontrol import TokenBucketRateLimiter
from batholith.kube.errors import NotLeaderError, NotSentError, was_rejected
from batholith.kube.timing import Timing
from batholith.model.meta import ObjectReference
from batholith.model.names import CONFIGMAPS
from batholith.model.podgroup import PodGroup
from batholith.testing import RequestMatcher

Write = Callable[[Client], Coroutine[Any, Any, object]]


class CountingFence:
    """A fence that passes a number of checks."""

    def __init__(self, api: ControllerApi) -> None:
        self.api = api
        self.allowed_checks = 1000
        self.checks = 0

    def __call__(self) -> None:
        self.checks += 1
        if self.checks > self.allowed_checks:
            raise NotLeaderError("no more")

    @property
    def writes(self) -> int:
        return self.api.writes()


@pytest.fixture
async def api() -> AsyncIterator[ControllerApi]:
    async with ControllerApi() as api:
        yield api


def client_of(
    api: ControllerApi,
    fence: CountingFence,
    *,
    limiter: TokenBucketRateLimiter | None = None,
    **options: Any,
) -> Client:
    return Client(
        api.credentials,
        user_agent="t",
        limiter=limiter,
        options=ClientOptions(fence=fence, **options),
    )


NEW = {"metadata": {"name": "b"}}
WRITES: dict[str, Write] = {
    "create": lambda client: client.create(CONFIGMAPS, NEW, namespace="d"),
    "long create": lambda client: client.create(
        CONFIGMAPS, {**NEW, "data": {"key": "x" * 100_000}}, namespace="d"
    ),
    "patch": lambda client: client.patch(CONFIGMAPS, "a", {"data": {}}, namespace="d"),
    "replace": lambda client: client.replace(
        CONFIGMAPS, "a", {"metadata": {"name": "a"}}, namespace="d"
    ),
    "delete": lambda client: client.delete(CONFIGMAPS, "a", namespace="d"),
    "post": lambda client: client.post(
        CONFIGMAPS.path("d"), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("closes", ["before", "while a connection is opened"])
async def test_closed_fence_blocks_a_write(api: ControllerApi, write: Write, closes: str) -> None:
    api.put(CONFIGMAPS, "a")
    fence = CountingFence(api)
    async with client_of(api, fence) as client:
        fence.allowed_checks = 0 if closes == "before" else 1
        with pytest.raises(NotLeaderError):
            await write(client)
        await client.get(CONFIGMAPS, "a", namespace="d", view=PodGroup)
        assert fence.writes == 0
        fence.allowed_checks = 1000
        await write(client)
        assert fence.writes == 1


@pytest.mark.parametrize("allowed", [0, 1])
async def test_a_guard_blocks_its_write_until_nothing_but_the_write_remains(
    api: ControllerApi, allowed: int
) -> None:
    checks = 0

    def guard() -> None:
        nonlocal checks
        checks += 1
        if checks > allowed:
            raise NotSentError("too late")

    async with client_of(api, CountingFence(api)) as client:
        limit = WriteLimit(10, guard)
        with pytest.raises(NotSentError) as refused:
            await client.create(CONFIGMAPS, NEW, namespace="d", limit=limit)
        assert was_rejected(refused.value)
        assert "d/b" not in api.objects(CONFIGMAPS)
        checks = -10
        await client.create(CONFIGMAPS, NEW, namespace="d", limit=limit)
        assert "d/b" in api.objects(CONFIGMAPS)
        assert api.faults.requests[-1].query["timeout"] == "10s"


async def test_reads_and_watches_pass_a_closed_fence(api: ControllerApi) -> None:
    api.put(CONFIGMAPS, "a")
    fence = CountingFence(api)
    fence.allowed_checks = 0
    async with client_of(api, fence) as client:
        await client.get(CONFIGMAPS, "a", namespace="d", view=PodGroup)
        async for _ in client.watch(CONFIGMAPS, view=PodGroup):
            break
    assert fence.checks == 0


async def test_fence_closing_while_a_write_waits_for_a_slot_blocks_it(api: ControllerApi) -> None:
    held = api.faults.hold(RequestMatcher())
    fence = CountingFence(api)
    async with client_of(api, fence, max_writes_in_flight=1) as client:
        first = asyncio.create_task(WRITES["post"](client))
        await held.wait_held()
        second = asyncio.create_task(WRITES["create"](client))
        await asyncio.sleep(0)
        fence.allowed_checks = 0
        first.cancel()
        with pytest.raises(NotLeaderError):
            await second
        assert fence.writes == 1


async def test_fence_closing_while_a_write_waits_for_the_rate_limiter_blocks_it(
    api: ControllerApi,
) -> None:
    fence = CountingFence(api)
    waiting, go = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await go.wait()

    limiter = TokenBucketRateLimiter(1, 1, timing=Timing(sleep=sleep))
    async with client_of(api, fence, limiter=limiter) as client:
        await WRITES["post"](client)
        write = asyncio.create_task(WRITES["create"](client))
        await waiting.wait()
        fence.allowed_checks = 0
        go.set()
        with pytest.raises(NotLeaderError):
            await write
    assert fence.writes == 1


async def test_fence_closing_before_a_retry_blocks_it(api: ControllerApi) -> None:
    api.faults.error(RequestMatcher(), 429, retry_after=7)
    fence = CountingFence(api)

    async def sleep(seconds: float) -> None:
        fence.allowed_checks = 0

    async with client_of(api, fence, timing=Timing(sleep=sleep)) as client:
        with pytest.raises(NotLeaderError):
            await WRITES["create"](client)
    assert fence.writes == 1


async def test_closed_fence_blocks_events(api: ControllerApi) -> None:
    fence = CountingFence(api)
    fence.allowed_checks = 0
    async with client_of(api, fence) as client:
        recorder = EventRecorder(client, component="t")
        writing = asyncio.create_task(recorder.run())
        recorder.record(
            ObjectReference(kind="Pod", namespace="d", name="a"),
            type="Normal",
            reason="AfterClose",
            message="after close",
        )
        await wait_for(lambda: recorder.stats.refused == 1)
        assert not writing.done()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    assert fence.writes == 0
