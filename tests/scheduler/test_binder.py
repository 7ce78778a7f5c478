"""Bindings without a response."""

import asyncio

import pytest
from support.fake_apiserver import FakeApi
from support.polling import wait_for
from support.running_controller import FakeRecorder

from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.scheduler.framework.decision import Placement
from batholith.scheduler.writers.binder import Binder


@pytest.mark.parametrize("fault", ["drop", 408, 500, 502, 503, 504])
async def test_binding_that_may_have_taken_effect_is_retried(
    fault: int | str,
) -> None:
    clock, recorder, forgotten = FakeClock(), FakeRecorder(), list[str]()
    async with FakeApi() as api, Client(api.credentials, user_agent="test") as client:
        binder = Binder(
            client, recorder=recorder, clock=clock, max_in_flight=1, forget=forgotten.append
        )
        api.inject_fault(fault, path="/binding")
        task = asyncio.create_task(binder.run())
        binder.bind([Placement("d", "p", "uid", "n")])
        await wait_for(binder.queue.delayed_count)
        assert recorder.events == []
        await clock.advance(1)
        await wait_for(lambda: recorder.events)
        task.cancel()
        await asyncio.wait([task])
        bodies = [request.body for request in api.received if request.path.endswith("/binding")]
    assert forgotten == []
    assert [event[3] for event in recorder.events] == ["Scheduled"]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
