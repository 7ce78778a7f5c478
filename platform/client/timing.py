"""Time and randomness, which tests replace."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Sources of time and of jitter."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = _now
    random: Callable[[], float] = random.random
    """Uniform in [0, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """When failed attempts are repeated."""

    attempts: int = 6
    """Maximum number of attempts of one call; 1 for no retry."""
    base: float = 0.2
    """Upper bound of the first delay, in seconds; it doubles with each attempt."""
    maximum: float = 10.0
    """Upper bound of each delay."""
    on_retry: Callable[[Exception, float], None] | None = None
    """Called before each delay with the failure and the seconds until the next attempt."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.maximum < 0:
            raise ValueError("retries: attempts must be positive, and delays not negative")

    def delay(self, attempt: int, timing: Timing, *, retry_after: float | None = None) -> float:
        """Return the seconds to wait after *attempt* (1 for the first), with full jitter.

        The random delay is added to ``Retry-After``, so that callers that were rejected together
        do not return together.
        """
        bound = min(self.maximum, self.base * float(2 ** min(attempt - 1, 32)))
        return (retry_after or 0.0) + bound * timing.random()


class Deadline:
    """The end of a call or of a wait; without *seconds* there is none."""

    def __init__(self, timing: Timing, seconds: float | None) -> None:
        self._timing = timing
        self._end = None if seconds is None else timing.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds until the end; negative after it, infinite without one."""
        return float("inf") if self._end is None else self._end - self._timing.monotonic()
