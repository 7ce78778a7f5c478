"""Which kinds the API server has is checked again and again."""

import asyncio

from support.controller_api import ControllerApi
from support.polling import wait_for

from batholith.machinery.testing import FakeClock
from batholith.model.names import COMMANDS, PODGROUPS, PODS
from batholith.testing import RequestMatcher
from batholith.training_ctrl.served import ServedResources


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
