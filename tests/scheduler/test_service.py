"""The scheduler's own tasks when one of them fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.controller_api import ControllerApi
from support.polling import wait_for
from support.running_controller import running

from batholith.model.names import NODES, PODGROUPS, QUEUES
from batholith.scheduler.scheduler import Scheduler


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        api.put(NODES, "n")
        yield Scheduler(client)


async def test_a_change_that_cannot_be_taken_note_of_keeps_nothing_from_the_others(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    heard = list[str]()

    def fail() -> None:
        raise RuntimeError("a mistake")

    async with running(scheduler):
        scheduler._enqueue_event(fail)
        scheduler._enqueue_event(lambda: heard.append("the next"))
        await wait_for(lambda: heard)
        assert caplog.messages == ["cannot take note of a change"]


async def test_a_cycle_that_fails_ends_the_scheduler_aloud(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is started again, and reads anew what this one has half decided."""

    def fail() -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(scheduler._cycle_runner, "run_once", fail)
    with pytest.RaisesGroup(
        pytest.RaisesExc(RuntimeError, match="a mistake"), flatten_subgroups=True
    ):
        await asyncio.wait_for(scheduler.run(), 60)
