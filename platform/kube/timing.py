"""Clock and randomness for this layer, injected so that tests control them.

``Timing(monotonic=clock.monotonic, …)`` adapts :mod:`batholith.machinery.clock`, a layer above.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Sources of time, sleep and random numbers."""

    monotonic: Callable[[], float] = time.monotonic
    """Seconds from some fixed point; never steps back."""

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    """Suspend the calling task for a number of seconds."""

    random: Callable[[], float] = random.random
    """A number in [0, 1)."""

    now: Callable[[], datetime] = _utc_now
    """The wall clock, in UTC."""


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter, reset after a time without failures."""

    timing: Timing = field(default_factory=Timing)
    initial: float = 0.8
    """First delay in seconds, before jitter."""
    factor: float = 2.0
    cap: float = 30.0
    """Maximum delay in seconds, before jitter."""
    jitter: float = 1.0
    """Each delay is extended by a random fraction of itself, up to this one."""
    reset_after: float = 120.0
    """Seconds without a failure after which the delay is *initial* again."""
    _next_delay: float = 0.0
    _last_failure: float | None = None

    def next_delay(self) -> float:
        """Count one failure and return how many seconds to wait."""
        now = self.timing.monotonic()
        if self._last_failure is None or now - self._last_failure > self.reset_after:
            self._next_delay = self.initial
        base = self._next_delay
        self._next_delay = min(base * self.factor, self.cap)
        self._last_failure = now
        return base * (1.0 + self.jitter * self.timing.random())
