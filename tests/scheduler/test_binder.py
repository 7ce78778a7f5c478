"""Bindings without a response."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.controller_api import ControllerApi
from support.polling import wait_for
from support.running_controller import FakeRecorder

from batholith.machinery.testing import FakeClock
from batholith.model.names import PODS
from batholith.scheduler.plugins.placement import Placement
from batholith.scheduler.writers.binder import Binder
from batholith.testing import RequestMatcher

BINDING = RequestMatcher("create", "pods/binding")


@pytest.fixture
async def api() -> AsyncIterator[ControllerApi]:
    async with ControllerApi() as api:
        container = {"name": "c", "image": "busybox"}
        api.put(PODS, "p", metadata={"uid": "uid"}, spec={"containers": [container]})
        yield api


async def bind(api: ControllerApi, recorder: FakeRecorder) -> list[str]:
    """Bind the pod, whose first binding fails; return the pods that lost their placement."""
    clock, forgotten = FakeClock(), list[str]()
    async with api.client() as client:
        binder = Binder(
            client, recorder=recorder, clock=clock, max_in_flight=1, forget=forgotten.append
        )
        task = asyncio.create_task(binder.run())
        binder.bind([Placement("d", "p", "uid", "n")])
        await wait_for(binder.queue.delayed_count)
        assert recorder.events == []
        await clock.advance(1)
        await wait_for(lambda: binder.idle)
        task.cancel()
        await asyncio.wait([task])
    assert api.objects(PODS)["d/p"]["spec"]["nodeName"] == "n"
    first, second = (each.json() for each in api.faults.requests if BINDING.matches(each))
    assert first == second
    return forgotten


@pytest.mark.parametrize("status", [None, 408, 500, 502, 503, 504])
async def test_binding_that_may_have_taken_effect_is_retried(
    api: ControllerApi, status: int | None
) -> None:
    recorder = FakeRecorder()
    if status is None:
        api.faults.lose_request(BINDING)
    else:
        api.faults.error(BINDING, status)
    assert await bind(api, recorder) == []
    assert [event[3] for event in recorder.events] == ["Scheduled"]


async def test_binding_whose_response_is_lost_is_retried(api: ControllerApi) -> None:
    api.faults.lose_response(BINDING)
    assert await bind(api, FakeRecorder()) == []
