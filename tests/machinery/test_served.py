"""Which kinds the API server has is checked again and again."""

import asyncio

from support.controller_api import ControllerApi
from support.polling import wait_for

from batholith.machinery.served import ServedController, ServedResources
from batholith.machinery.testing import FakeClock
from batholith.model import crds
from batholith.model.names import COMMANDS, CRDS, CRONJOBS, JOBS, PODGROUPS, PODS, Resource
from batholith.testing import RequestMatcher


async def test_outage_keeps_the_last_result_and_is_retried_soon() -> None:
    async with ControllerApi(PODGROUPS) as api, api.client() as client:
        clock = FakeClock()
        failing = api.faults.error(RequestMatcher(count=None), 503)
        served = ServedResources(client, (PODGROUPS, COMMANDS, PODS), clock=clock, interval=10)
        task = asyncio.create_task(served.run())
        await wait_for(lambda: failing.injected and clock.timer_count)
        assert not served.known
        api.faults.clear()
        await clock.advance(1)
        await wait_for(lambda: served.known)
        assert served.has(PODGROUPS, PODS) and not served.has(COMMANDS)
        await wait_for(lambda: clock.timer_count)
        failing = api.faults.error(RequestMatcher(count=None), 503)
        await clock.advance(10)
        await wait_for(lambda: failing.injected)
        assert served.has(PODGROUPS)
        task.cancel()
        await asyncio.wait([task])


class Recorded:
    """A controller that records whether it runs."""

    def __init__(self, running: list["Recorded"]) -> None:
        self._running = running

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        self._running.append(self)
        try:
            if ready is not None:
                ready.set()
            await asyncio.get_running_loop().create_future()
        finally:
            self._running.remove(self)


async def test_a_controller_runs_while_its_kind_is_served() -> None:
    """It is ready without it, since a definition may be missing after an upgrade."""
    (definition,) = (each for each in crds.load() if each["spec"]["names"]["kind"] == "CronJob")
    running: list[Recorded] = []
    async with ControllerApi() as api, api.client() as client:
        clock, ready = FakeClock(), asyncio.Event()
        served = ServedController(
            lambda _: Recorded(running), [(CRONJOBS,)], client=client, clock=clock
        )
        task = asyncio.create_task(served.run(ready=ready))
        await ready.wait()
        assert running == []
        await api.create(CRDS, definition)
        while not running:
            await wait_for(lambda: clock.timer_count)
            await clock.advance(10)
        await client.delete(CRDS, definition["metadata"]["name"])
        while running:
            await wait_for(lambda: clock.timer_count)
            await clock.advance(10)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


async def test_of_several_versions_the_first_one_that_is_served_has_a_controller() -> None:
    (definition,) = (each for each in crds.load() if each["spec"]["names"]["kind"] == "CronJob")
    running: list[Recorded] = []
    created: list[Resource] = []

    def create(versions: tuple[Resource, ...]) -> Recorded:
        created.extend(versions)
        return Recorded(running)

    async with ControllerApi(JOBS) as api, api.client() as client:
        clock, ready = FakeClock(), asyncio.Event()
        served = ServedController(create, [(CRONJOBS,), (JOBS,)], client=client, clock=clock)
        task = asyncio.create_task(served.run(ready=ready))
        await ready.wait()
        assert created == [JOBS]
        await api.create(CRDS, definition)
        while created == [JOBS] or not running:
            await wait_for(lambda: clock.timer_count)
            await clock.advance(10)
        assert created == [JOBS, CRONJOBS]
        assert len(running) == 1
        task.cancel()
        await asyncio.wait([task])


async def test_a_controller_whose_kind_is_served_makes_it_ready_and_ends_with_it() -> None:
    running: list[Recorded] = []
    async with ControllerApi(CRONJOBS) as api, api.client() as client:
        clock, ready = FakeClock(), asyncio.Event()
        served = ServedController(
            lambda _: Recorded(running), [(CRONJOBS,)], client=client, clock=clock
        )
        task = asyncio.create_task(served.run(ready=ready))
        await ready.wait()
        assert len(running) == 1
        task.cancel()
        await asyncio.wait([task])
        assert running == []
        assert task.cancelled()
