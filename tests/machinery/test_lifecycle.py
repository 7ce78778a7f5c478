"""Startup and shutdown order of informers and workers."""

import asyncio

import pytest

from batholith.machinery.lifecycle import run_controller
from batholith.machinery.testing import run_ready_tasks


class FakeInformer:
    """A source that is synced when the test decides."""

    def __init__(self, events: list[str]) -> None:
        self.synced = asyncio.Event()
        self.error: Exception | None = None
        self._failed = asyncio.Event()
        self._events = events

    async def run(self) -> None:
        self._events.append("informer starts")
        try:
            await self._failed.wait()
            if self.error is not None:
                raise self.error
        finally:
            self._events.append("informer ends")

    async def wait_synced(self) -> None:
        await self.synced.wait()

    async def attach(self) -> None:
        self._events.append("handler attached")

    def fail(self, error: Exception) -> None:
        self.error = error
        self._failed.set()


async def test_controller_starts_and_stops_in_order() -> None:
    """INV-LC-1: work ends before the informers, and nothing happens after."""
    story: list[str] = []
    informer, ready = FakeInformer(story), asyncio.Event()

    async def work() -> None:
        story.append("work starts")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            story.append("work ends")

    task = asyncio.create_task(
        run_controller([informer], work, on_synced=lambda: story.append("synced"), ready=ready)
    )
    await run_ready_tasks()
    assert story == ["informer starts"]
    assert not ready.is_set()
    informer.synced.set()
    await ready.wait()
    await run_ready_tasks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert story == [
        "informer starts",
        "handler attached",
        "synced",
        "work starts",
        "work ends",
        "informer ends",
    ]


async def test_inv_lc_2_stop_before_the_initial_sync_does_no_work() -> None:
    story: list[str] = []

    async def work() -> None:
        story.append("work")

    task = asyncio.create_task(run_controller([FakeInformer(story)], work))
    await run_ready_tasks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert story == ["informer starts", "informer ends"]


async def test_end_of_work_stops_the_informers() -> None:
    story: list[str] = []
    informer = FakeInformer(story)
    informer.synced.set()

    async def work() -> None:
        await run_ready_tasks()
        story.append("work")

    await run_controller([informer], work)
    assert story == ["handler attached", "informer starts", "work", "informer ends"]


async def test_standby_is_ready_and_attaches_no_handler_before_election() -> None:
    story: list[str] = []
    informer, ready, elected = FakeInformer(story), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        story.append("work")

    task = asyncio.create_task(
        run_controller(
            [informer], work, on_synced=lambda: story.append("synced"), ready=ready, elected=elected
        )
    )
    await run_ready_tasks()
    assert not ready.is_set()
    informer.synced.set()
    await ready.wait()
    await run_ready_tasks()
    assert story == ["informer starts"]
    elected.set()
    await task
    assert story == ["informer starts", "handler attached", "synced", "work", "informer ends"]


async def test_stopped_standby_does_no_work() -> None:
    story: list[str] = []
    informer = FakeInformer(story)
    informer.synced.set()

    async def work() -> None:
        story.append("work")

    task = asyncio.create_task(run_controller([informer], work, elected=asyncio.Event()))
    await run_ready_tasks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert story == ["informer starts", "informer ends"]


async def test_election_before_the_initial_sync_still_waits_for_it() -> None:
    story: list[str] = []
    informer, elected = FakeInformer(story), asyncio.Event()
    elected.set()

    async def work() -> None:
        story.append("work")

    task = asyncio.create_task(run_controller([informer], work, elected=elected))
    await run_ready_tasks()
    assert story == ["informer starts"]
    informer.synced.set()
    await task
    assert story == ["informer starts", "handler attached", "work", "informer ends"]


async def test_failing_informer_ends_the_controller() -> None:
    informer = FakeInformer([])
    informer.synced.set()
    task = asyncio.create_task(run_controller([informer], asyncio.Event().wait))  # type: ignore[arg-type]
    await run_ready_tasks()
    informer.fail(RuntimeError("no such kind"))
    with pytest.raises(ExceptionGroup) as caught:
        await task
    assert [str(each) for each in caught.value.exceptions] == ["no such kind"]
