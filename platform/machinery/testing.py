"""Fake clock for tests, and what clocks that a test moves have in common."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from .clock import Timer

_START = datetime(2026, 1, 1, tzinfo=UTC)
_MAX_ITERATIONS = 64


async def run_ready_tasks() -> None:
    """Run all tasks that can proceed without time or I/O."""
    for _ in range(_MAX_ITERATIONS):
        await asyncio.sleep(0)


class _Timer:
    """A scheduled call."""

    __slots__ = ("callback", "due", "order")

    def __init__(self, due: float, order: int, callback: Callable[[], object]) -> None:
        self.due = due
        self.order = order
        self.callback: Callable[[], object] | None = callback

    def __lt__(self, other: "_Timer") -> bool:
        return (self.due, self.order) < (other.due, other.order)

    def cancel(self) -> None:
        self.callback = None


class TimerQueue:
    """Calls that a clock has scheduled, in the order of their times."""

    def __init__(self) -> None:
        self._timers: list[_Timer] = []
        self._order = itertools.count()

    def push(self, due: float, callback: Callable[[], object]) -> _Timer:
        """Add a call; the times are those of the caller's clock."""
        timer = _Timer(due, next(self._order), callback)
        heapq.heappush(self._timers, timer)
        return timer

    @property
    def next_due(self) -> float | None:
        """Time of the first call that is not cancelled."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0].due if self._timers else None

    def call_next(self) -> None:
        """Remove the first call, and run it."""
        timer = heapq.heappop(self._timers)
        call, timer.callback = timer.callback, None
        if call is not None:
            call()

    def __len__(self) -> int:
        return sum(timer.callback is not None for timer in self._timers)


async def sleep_by(
    call_later: Callable[[float, Callable[[], object]], Timer], seconds: float
) -> None:
    """Wait until a clock with this *call_later* has reached *seconds* from now."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    timer = call_later(seconds, wake)
    try:
        await woken
    finally:
        timer.cancel()


class FakeClock:
    """Clock that moves by :meth:`advance` and :meth:`tick` only."""

    def __init__(self, start: datetime = _START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._monotonic_offset = self._wall_offset = 0.0
        self._timers = TimerQueue()

    def now(self) -> datetime:
        """Return the wall clock: start plus time advanced plus steps."""
        return self._start + timedelta(seconds=self._elapsed + self._wall_offset)

    def monotonic(self) -> float:
        """Return the seconds advanced plus steps."""
        return self._elapsed + self._monotonic_offset

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced by *seconds*."""
        await sleep_by(self.call_later, seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Schedule *callback* for when the clock has been advanced by *seconds*."""
        return self._timers.push(self._elapsed + max(seconds, 0.0), callback)

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
        return len(self._timers)

    def _fire_next(self, target: float) -> bool:
        due = self._timers.next_due
        if due is None or due > target:
            return False
        self._elapsed = max(self._elapsed, due)
        self._timers.call_next()
        return True
