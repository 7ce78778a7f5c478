"""Time that comes in from outside, so that tests can make it stand still.

Neighbours: ``testing.FakeClock`` is the clock of tests.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Take the call back; harmless when it has happened already."""
        ...


class Clock(Protocol):
    """Where components get their time from. Seconds throughout."""

    def now(self) -> datetime:
        """The wall clock in UTC; it may jump. Only for what is written into objects."""
        ...

    def monotonic(self) -> float:
        """A reading that never steps; its zero means nothing."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait at least *seconds*."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Have the running loop make *call* once *seconds* have passed."""
        ...


class SystemClock:
    """The real time."""

    def now(self) -> datetime:
        """The wall clock in UTC."""
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)
    """Seconds of the machine's steady clock."""

    async def sleep(self, seconds: float) -> None:
        """Wait at least *seconds*."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Have the running loop make *call* once *seconds* have passed."""
        return asyncio.get_running_loop().call_later(seconds, callback)


class SteadyClock:
    """Moments that no jump of the wall clock moves: its reading at first, plus the time since.

    For what is due later, within a process. What is shown to others, and what another process
    wrote down, is the wall clock's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start, self._start_monotonic = clock.now(), clock.monotonic()

    def now(self) -> datetime:
        """The present moment."""
        return self._start + timedelta(seconds=self._clock.monotonic() - self._start_monotonic)

    def from_wall(self, wall_time: datetime) -> datetime:
        """When *wall* was, as far as the wall clock can be believed: not after now."""
        return self.now() - max(self._clock.now() - wall_time, timedelta())


class BoottimeClock(SystemClock):
    """The real time, whose steady reading goes on while the machine sleeps (where it can tell).

    For what must hold against other machines; timers don't fire during a sleep all the same.
    """

    @staticmethod
    def monotonic() -> float:
        """Seconds since the machine was started, its sleep included."""
        return time.clock_gettime(_BOOTTIME)
