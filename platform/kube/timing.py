"""Time and chance as this layer needs them, handed in so that tests can stop the clock.

The clock proper belongs to the layer above; ``Timing(monotonic=clock.monotonic, …)`` adapts it.
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
    """Where seconds, pauses and random numbers come from."""

    monotonic: Callable[[], float] = time.monotonic
    """Seconds from some fixed point; never steps back."""

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    """Suspend the calling task for so many seconds."""

    random: Callable[[], float] = random.random
    """A number in [0, 1)."""

    now: Callable[[], datetime] = _utc_now
    """The wall clock, in UTC."""


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Growing, jittered pauses between failures; a long quiet time starts it again."""

    timing: Timing = field(default_factory=Timing)
    initial: float = 0.8
    """Seconds of the first pause, before jitter."""
    factor: float = 2.0
    cap: float = 30.0
    """No pause is longer before jitter."""
    jitter: float = 1.0
    """A pause is stretched by a random share of up to this much of itself."""
    reset_after: float = 120.0
    """Seconds without a failure after which the next pause is *first* again."""
    _next_delay: float = 0.0
    _last_failure: float | None = None

    def next_delay(self) -> float:
        """Count one failure and say how many seconds to wait after it."""
        now = self.timing.monotonic()
        if self._last_failure is None or now - self._last_failure > self.reset_after:
            self._next_delay = self.initial
        base = self._next_delay
        self._next_delay = min(base * self.factor, self.cap)
        self._last_failure = now
        return base * (1.0 + self.jitter * self.timing.random())
