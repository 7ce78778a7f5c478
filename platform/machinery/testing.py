"""Fake clock for tests."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_START = datetime(2026, 1, 1, tzinfo=UTC)
_MAX_ITERATIONS = 64


async def run_ready_tasks() -> None:
    """Run all tasks that can proceed without time or I/O."""
    for _ in range(_MAX_ITERATIONS):
        await asyncio.sleep(0)


class _Timer:
    """A scheduled call of a :class:`FakeClock`."""

    __slots__ = ("callback", "due", "order")

    def __init__(self, due: float, order: int, callback: Callable[[], object]) -> None:
        self.due = due
        self.order = order
        self.callback: Callable[[], object] | None = callback

    def __lt__(self, other: "_Timer") -> bool:
        return (self.due, self.order) < (other.due, other.order)

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Clock that moves by :meth:`advance` and :meth:`tick` only."""

    def __init__(self, start: datetime = _START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._monotonic_offset = self._wall_offset = 0.0
        self._timers: list[_Timer] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        """Return the wall clock: start plus time advanced plus steps."""
        return self._start + timedelta(seconds=self._elapsed + self._wall_offset)

    def monotonic(self) -> float:
        """Return the seconds advanced plus steps."""
        return self._elapsed + self._monotonic_offset

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced by *seconds*."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_later(seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _Timer:
        """Schedule *callback* for when the clock has been advanced by *seconds*."""
        timer = _Timer(self._elapsed + max(seconds, 0.0), next(self._order), callback)
        heapq.heappush(self._timers, timer)
        return timer

    async def advance(self, seconds: float) -> None:
        """Advance the clock, stopping at each timer to run the tasks that it wakes."""
        await run_ready_tasks()
        target = self._elapsed + seconds
        while self._fire_next(target):
            await run_ready_tasks()
        self._elapsed = target

    def tick(self, seconds: float) -> None:
        """Advance the clock and run due callbacks, without running tasks."""
        target = self._elapsed + seconds
        while self._fire_next(target):
            pass
        self._elapsed = target

    def step_monotonic(self, seconds: float) -> None:
        """Step the monotonic clock (a fault); timers are not affected."""
        self._monotonic_offset += seconds

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock."""
        self._wall_offset += seconds

    @property
    def timer_count(self) -> int:
        """Number of pending timers."""
        self._timers = [timer for timer in self._timers if timer.callback is not None]
        heapq.heapify(self._timers)
        return len(self._timers)

    def _fire_next(self, target: float) -> bool:
        while self._timers and self._timers[0].due <= target:
            timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._elapsed = max(self._elapsed, timer.due)
                call, timer.callback = timer.callback, None
                call()
                return True
        return False
