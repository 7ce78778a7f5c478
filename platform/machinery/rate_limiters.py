"""Rate limiters of work queues: backoff of failed keys. All delays are in seconds."""

import math
from collections.abc import Sequence
from typing import Protocol

from .clock import Clock

_MAX_DELAY = 1e12
"""Upper bound of all delays: some 30,000 years."""


class RateLimiter(Protocol):
    """Counts failures of keys and returns their delays, finite and non-negative."""

    def when(self, key: str, *, max_delay: float = math.inf) -> float:
        """Count one failure of *key*; return its delay, at most *max_delay*."""
        ...

    def forget(self, key: str) -> None:
        """Reset the failure count of *key*."""
        ...

    def num_requeues(self, key: str) -> int:
        """Failures of *key* since it was last forgotten."""
        ...


class ExponentialFailureRateLimiter:
    """Each failure of a key doubles its delay, from *base_delay* up to *max_delay*."""

    def __init__(self, base_delay: float, max_delay: float) -> None:
        if not (0 < base_delay <= max_delay <= _MAX_DELAY):
            raise ValueError(
                f"need 0 < base <= cap <= {_MAX_DELAY}, got base={base_delay}, cap={max_delay}"
            )
        self._base_delay = base_delay
        self._max_delay = max_delay
        self._failures: dict[str, int] = {}
        # From this count on the delay is at its maximum: avoids computing large powers.
        self._max_exponent = 0
        while math.ldexp(base_delay, self._max_exponent) < max_delay:
            self._max_exponent += 1

    def when(self, key: str, *, max_delay: float = math.inf) -> float:
        """Count one failure of *key*; return its delay, at most *max_delay*."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = (
            self._max_delay
            if failures >= self._max_exponent
            else math.ldexp(self._base_delay, failures)
        )
        return min(delay, max_delay)

    def forget(self, key: str) -> None:
        """Reset the failure count of *key*."""
        self._failures.pop(key, None)

    def num_requeues(self, key: str) -> int:
        """Failures of *key* since it was last forgotten."""
        return self._failures.get(key, 0)

    def __len__(self) -> int:
        """Number of keys with failures."""
        return len(self._failures)


class BucketRateLimiter:
    """Token bucket over all keys: *qps* tokens a second, burst of *burst*, initially full."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        if not 0 < qps < math.inf or burst < 1:
            raise ValueError(f"need a positive rate and size, got rate={qps}, size={burst}")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._refilled_at = clock.monotonic()

    def when(self, key: str, *, max_delay: float = math.inf) -> float:
        """Reserve a token; return when it is available.

        If that exceeds *max_delay* nothing is reserved: the key does not wait for the token, and
        later keys must not either.
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
        """Do nothing: there is no state per key."""

    def num_requeues(self, key: str) -> int:
        """Return 0: there is no state per key."""
        return 0


class MaxOfRateLimiter:
    """Returns the longest delay of all limiters, at most *max_delay*."""

    def __init__(self, limiters: Sequence[RateLimiter], *, max_delay: float = math.inf) -> None:
        if not limiters:
            raise ValueError("need at least one limiter")
        self._limiters = tuple(limiters)
        self._max_delay = max_delay

    def when(self, key: str, *, max_delay: float = math.inf) -> float:
        """Count one failure in each limiter; return the longest delay, at most *max_delay*."""
        max_delay = min(max_delay, self._max_delay)
        return max([limiter.when(key, max_delay=max_delay) for limiter in self._limiters])

    def forget(self, key: str) -> None:
        """Reset the failure count of *key* in all limiters."""
        for limiter in self._limiters:
            limiter.forget(key)

    def num_requeues(self, key: str) -> int:
        """Return the largest count of all limiters."""
        return max(limiter.num_requeues(key) for limiter in self._limiters)


def default_controller_rate_limiter(clock: Clock, *, max_delay: float = 1000) -> RateLimiter:
    """Return the default rate limiter: per key 5 ms doubling up to *max_delay*, and over all keys
    10 retries a second with a burst of 100, unless that delays a key beyond *max_delay*."""
    limiters: list[RateLimiter] = [
        ExponentialFailureRateLimiter(0.005, max_delay),
        BucketRateLimiter(10, 100, clock),
    ]
    return MaxOfRateLimiter(limiters, max_delay=max_delay)


def job_rate_limiter() -> ExponentialFailureRateLimiter:
    """Return the rate limiter of the Job controller of Kubernetes: per key 1 s up to 1 min."""
    return ExponentialFailureRateLimiter(1, 60)
