"""The clock of a cluster under test: the system's, which the test can advance."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from ..machinery.clock import Timer
from ..machinery.testing import TimerQueue, sleep_by

_QUIET_ITERATIONS = 64
"""Iterations of the event loop without activity after which components are idle."""


async def wait_quiet(activity: Callable[[], int | None]) -> None:
    """Wait until *activity* is the same number for many iterations of the event loop."""
    quiet, before = 0, activity()
    while quiet < _QUIET_ITERATIONS:
        await asyncio.sleep(0)
        now = activity()
        quiet = 0 if now is None or now != before else quiet + 1
        before = now


class AdvanceableClock:
    """Passes as the system's clock does, and can be advanced.

    All timers of a cluster are its own, so an advance runs those that are due in the order of
    their times. It belongs to one event loop.
    """

    def __init__(self) -> None:
        self._offset = 0.0
        self._timers = TimerQueue()
        self._wake_up: asyncio.TimerHandle | None = None

    def now(self) -> datetime:
        """Return the time of the cluster in UTC."""
        return datetime.now(UTC) + timedelta(seconds=self._offset)

    def monotonic(self) -> float:
        """Return the system's monotonic clock plus what it was advanced by."""
        return time.monotonic() + self._offset

    async def sleep(self, seconds: float) -> None:
        """Wait until *seconds* have passed, or the clock was advanced by them."""
        await sleep_by(self.call_later, seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Schedule *callback* on the running loop in *seconds*."""
        timer = self._timers.push(self.monotonic() + max(seconds, 0.0), callback)
        self._set_wake_up()
        return timer

    async def advance(self, seconds: float, settled: Callable[[], Awaitable[None]]) -> None:
        """Advance the clock, and stop at each timer on the way until *settled* returns.

        Raises:
            ValueError: *seconds* is negative.
        """
        if seconds < 0:
            raise ValueError(f"cannot advance the clock by {seconds:g} s: must not be negative")
        target = self.monotonic() + seconds
        await settled()
        while (due := self._timers.next_due) is not None and due <= target:
            self._move_to(due)
            self._call_due()
            await settled()
        self._move_to(target)
        self._set_wake_up()

    def _move_to(self, moment: float) -> None:
        self._offset += max(moment - self.monotonic(), 0.0)

    def _call_due(self) -> None:
        now = self.monotonic()
        try:
            while (due := self._timers.next_due) is not None and due <= now:
                self._timers.call_next()
        finally:
            self._set_wake_up()

    def _set_wake_up(self) -> None:
        """Let the loop wake the clock at the time of the first timer."""
        due, loop = self._timers.next_due, asyncio.get_running_loop()
        if due is None:
            return
        at = loop.time() + due - self.monotonic()
        if self._wake_up is not None:
            if self._wake_up.when() <= at:
                return  # the next one is set then
            self._wake_up.cancel()
        self._wake_up = loop.call_at(at, self._on_wake_up)

    def _on_wake_up(self) -> None:
        self._wake_up = None
        self._call_due()
