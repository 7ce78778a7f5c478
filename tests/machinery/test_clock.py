"""Clocks: the system clock runs, the fake one moves only when advanced."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

from batholith.machinery.clock import BoottimeClock, Clock, SystemClock
from batholith.machinery.testing import FakeClock, run_ready_tasks


async def test_system_clock_runs() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
    fired = asyncio.Event()
    clock.call_later(0, fired.set)
    await fired.wait()


async def test_sleepers_wake_in_order_and_may_sleep_again() -> None:
    clock: FakeClock = FakeClock()
    woke: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woke.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("a", 2, 2))
        group.create_task(sleeper("b", 1, 1.5))
        await clock.advance(3)
        assert woke == [("b", 1), ("a", 2), ("b", 2.5)]
        assert clock.timer_count == 1
        await clock.advance(1)
    assert woke[-1] == ("a", 4)
    assert clock.now() - FakeClock().now() == timedelta(seconds=4)


async def test_cancelled_sleeper_leaves_no_timer() -> None:
    clock = FakeClock()
    sleeping = asyncio.create_task(clock.sleep(5))
    await run_ready_tasks()
    sleeping.cancel()
    await run_ready_tasks()
    assert clock.timer_count == 0
    await clock.sleep(0)


def test_boottime_clock_includes_system_suspend() -> None:
    kind = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    before, reading, after = (
        time.clock_gettime(kind),
        BoottimeClock().monotonic(),
        time.clock_gettime(kind),
    )
    assert before <= reading <= after
