"""How long a failed key waits before it is tried again. All delays are seconds."""

import math
from collections.abc import Sequence
from typing import Protocol

from .clock import Clock

_MAX_DELAY = 1e12
"""No delay is longer: some 30,000 years."""


class RateLimiter(Protocol):
    """Counts failures of keys and answers with delays that are finite and never negative."""

    def when(self, key: str, *, max_delay: float = math.inf) -> float:
        """Count one failure of *key* and say how long it must wait, *at_most* so many seconds."""
        ...

    def forget(self, key: str) -> None:
        """*key* did well, or is given up: its failures no longer count."""
        ...

    def num_requeues(self, key: str) -> int:
        """Failures of *key* since it was last forgotten."""
        ...


class ExponentialFailureRateLimiter:
    """Each failure of a key doubles its delay, from *base* up to *cap*."""

    def __init__(self, base_delay: float, max_delay: float) -> None:
        if not (0 < base_delay <= max_delay <= _MAX_DELAY):
            raise ValueError(
                f"need 0 < base <= cap <= {_MAX_DELAY}, got base={base_delay}, cap={max_delay}"
            )
        self._base_delay = base_delay
        self._max_delay = max_delay
        self._failures: dict[str, int] = {}
        # From this count on the doubled delay has reached the cap: no power is built for it.
        self._max_exponent = 0
        while math.ldexp(base_delay, self._max_exponent) < max_delay:
            self._max_exponent += 1

    def when(self, key: str, *, max_delay: float = math.inf) -> float:
        """Count one failure of *key* and say how long it must wait, *at_most* so many seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = (
            self._max_delay
            if failures >= self._max_exponent
            else math.ldexp(self._base_delay, failures)
        )
        return min(delay, max_delay)

    def forget(self, key: str) -> None:
        """Start *key* again at the base."""
        self._failures.pop(key, None)

    def num_requeues(self, key: str) -> int:
        """Failures of *key* since it was last forgotten."""
        return self._failures.get(key, 0)

    def __len__(self) -> int:
        """Number of keys with failures."""
        return len(self._failures)


class BucketRateLimiter:
    """*rate* tokens a second for all keys together, *size* saved up at most, full at first."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        if not 0 < qps < math.inf or burst < 1:
            raise ValueError(f"need a positive rate and size, got rate={qps}, size={burst}")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._refilled_at = clock.monotonic()

    def when(self, key: str, *, max_delay: float = math.inf) -> float:
        """Reserve a token and say when it will exist.

        If that is more than *at_most* seconds away nothing is reserved: the key does not wait for
        it, and those that come after must not either.
        """
        now = self._clock.monotonic()
        elapsed = max(0.0, now - self._refilled_at)
        self._refilled_at = now
        self._tokens = min(self._burst, self._tokens + elapsed * self._qps)
        delay = max(0.0, (1 - self._tokens) / self._qps)
        if delay > max_delay:
            return max_delay
        self._tokens -= 1
        return delay

    def forget(self, key: str) -> None:
        """Nothing: the bucket knows no keys."""

    def num_requeues(self, key: str) -> int:
        """Always 0."""
        return 0


class MaxOfRateLimiter:
    """Asks every member and takes the longest delay, but none above *longest*."""

    def __init__(self, limiters: Sequence[RateLimiter], *, max_delay: float = math.inf) -> None:
        if not limiters:
            raise ValueError("need at least one limiter")
        self._limiters = tuple(limiters)
        self._max_delay = max_delay

    def when(self, key: str, *, max_delay: float = math.inf) -> float:
        """Count one failure with each member; the longest delay, *at_most* so many seconds."""
        max_delay = min(max_delay, self._max_delay)
        return max([member.when(key, max_delay=max_delay) for member in self._limiters])

    def forget(self, key: str) -> None:
        """Have every member forget *key*."""
        for member in self._limiters:
            member.forget(key)

    def num_requeues(self, key: str) -> int:
        """The largest count of any member."""
        return max(member.num_requeues(key) for member in self._limiters)


def default_controller_rate_limiter(clock: Clock, *, max_delay: float = 1000) -> RateLimiter:
    """What controllers use unless they say otherwise: 5 ms doubling to *longest* seconds a key,
    and 10 retries a second with a burst of 100 over all keys, unless a key had to wait more than
    *longest* for that."""
    members: list[RateLimiter] = [
        ExponentialFailureRateLimiter(0.005, max_delay),
        BucketRateLimiter(10, 100, clock),
    ]
    return MaxOfRateLimiter(members, max_delay=max_delay)
