"""Injectable clocks, so that tests control time (:class:`.testing.FakeClock`)."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call; no effect after it has run."""
        ...


class Clock(Protocol):
    """Source of time. All durations are in seconds."""

    def now(self) -> datetime:
        """Return the wall clock in UTC; it may jump. For timestamps in objects only."""
        ...

    def monotonic(self) -> float:
        """Return the monotonic clock, with an arbitrary zero."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait at least *seconds*."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Schedule *callback* on the running loop in *seconds*."""
        ...


class SystemClock:
    """The system clock."""

    def now(self) -> datetime:
        """Return the wall clock in UTC."""
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)
    """The system's monotonic clock."""

    async def sleep(self, seconds: float) -> None:
        """Wait at least *seconds*."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Schedule *callback* on the running loop in *seconds*."""
        return asyncio.get_running_loop().call_later(seconds, callback)


class SteadyClock:
    """Timestamps independent of wall clock jumps: the initial reading plus the time since.

    For deadlines within a process. Timestamps shown to users or read from other processes are the
    wall clock's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start, self._start_monotonic = clock.now(), clock.monotonic()

    def now(self) -> datetime:
        """Return the current time."""
        return self._start + timedelta(seconds=self._clock.monotonic() - self._start_monotonic)

    def from_wall(self, wall_time: datetime) -> datetime:
        """Convert a wall clock time, as far as it is plausible: not after now."""
        return self.now() - max(self._clock.now() - wall_time, timedelta())


class BoottimeClock(SystemClock):
    """System clock whose monotonic time includes system suspend (where supported).

    For validity periods that other machines rely on; timers do not fire during suspend.
    """

    @staticmethod
    def monotonic() -> float:
        """Return the seconds since boot, suspend included."""
        return time.clock_gettime(_BOOTTIME)
