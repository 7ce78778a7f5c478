"""Bindings of whose outcome nothing is known."""

import asyncio

import pytest
from support.fake_apiserver import FakeApi
from support.polling import wait_for
from support.running_controller import FakeRecorder

from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.scheduler.framework.decision import Placement
from batholith.scheduler.writers.binder import Binder


@pytest.mark.parametrize("answer", ["drop", 408, 500, 502, 503, 504])
async def test_a_binding_that_may_have_been_carried_out_is_sent_again_and_keeps_its_place(
    answer: int | str,
) -> None:
    clock, notes, forgotten = FakeClock(), FakeRecorder(), list[str]()
    async with FakeApi() as api, Client(api.credentials, user_agent="test") as client:
        binder = Binder(
            client, recorder=notes, clock=clock, max_in_flight=1, forget=forgotten.append
        )
        api.inject_fault(answer, path="/binding")
        working = asyncio.create_task(binder.run())
        binder.bind([Placement("d", "p", "uid", "n")])
        await wait_for(binder.queue.delayed_count)
        assert notes.events == []
        await clock.advance(1)
        await wait_for(lambda: notes.events)
        working.cancel()
        await asyncio.wait([working])
        bodies = [seen.body for seen in api.received if seen.path.endswith("/binding")]
    assert forgotten == []
    assert [event[3] for event in notes.events] == ["Scheduled"]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
