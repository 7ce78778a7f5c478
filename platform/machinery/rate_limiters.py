"""How long a failed key waits before it is tried again. All delays are seconds."""

import math
from collections.abc import Sequence
from typing import Protocol

from .clock import Clock

_LONGEST = 1e12
"""No delay is longer: some 30,000 years."""


class RateLimiter(Protocol):
    """Counts failures of keys and answers with delays that are finite and never negative."""

    def when(self, key: str, *, at_most: float = math.inf) -> float:
        """Count one failure of *key* and say how long it must wait, *at_most* so many seconds."""
        ...

    def forget(self, key: str) -> None:
        """*key* did well, or is given up: its failures no longer count."""
        ...

    def num_requeues(self, key: str) -> int:
        """Failures of *key* since it was last forgotten."""
        ...


class Exponential:
    """Each failure of a key doubles its delay, from *base* up to *cap*."""

    def __init__(self, base: float, cap: float) -> None:
        if not (0 < base <= cap <= _LONGEST):
            raise ValueError(f"need 0 < base <= cap <= {_LONGEST}, got base={base}, cap={cap}")
        self._base = base
        self._cap = cap
        self._failures: dict[str, int] = {}
        # From this count on the doubled delay has reached the cap: no power is built for it.
        self._enough = 0
        while math.ldexp(base, self._enough) < cap:
            self._enough += 1

    def when(self, key: str, *, at_most: float = math.inf) -> float:
        """Count one failure of *key* and say how long it must wait, *at_most* so many seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = self._cap if failures >= self._enough else math.ldexp(self._base, failures)
        return min(delay, at_most)

    def forget(self, key: str) -> None:
        """Start *key* again at the base."""
        self._failures.pop(key, None)

    def num_requeues(self, key: str) -> int:
        """Failures of *key* since it was last forgotten."""
        return self._failures.get(key, 0)

    def __len__(self) -> int:
        """Number of keys with failures."""
        return len(self._failures)


class Bucket:
    """*rate* tokens a second for all keys together, *size* saved up at most, full at first."""

    def __init__(self, rate: float, size: int, clock: Clock) -> None:
        if not 0 < rate < math.inf or size < 1:
            raise ValueError(f"need a positive rate and size, got rate={rate}, size={size}")
        self._rate = rate
        self._size = size
        self._clock = clock
        self._tokens = float(size)
        self._last = clock.monotonic()

    def when(self, key: str, *, at_most: float = math.inf) -> float:
        """Reserve a token and say when it will exist.

        If that is more than *at_most* seconds away nothing is reserved: the key does not wait for
        it, and those that come after must not either.
        """
        now = self._clock.monotonic()
        elapsed = max(0.0, now - self._last)
        self._last = now
        self._tokens = min(self._size, self._tokens + elapsed * self._rate)
        delay = max(0.0, (1 - self._tokens) / self._rate)
        if delay > at_most:
            return at_most
        self._tokens -= 1
        return delay

    def forget(self, key: str) -> None:
        """Nothing: the bucket knows no keys."""

    def num_requeues(self, key: str) -> int:
        """Always 0."""
        return 0


class MaxOf:
    """Asks every member and takes the longest delay, but none above *longest*."""

    def __init__(self, members: Sequence[RateLimiter], *, longest: float = math.inf) -> None:
        if not members:
            raise ValueError("need at least one limiter")
        self._members = tuple(members)
        self._longest = longest

    def when(self, key: str, *, at_most: float = math.inf) -> float:
        """Count one failure with each member; the longest delay, *at_most* so many seconds."""
        at_most = min(at_most, self._longest)
        return max([member.when(key, at_most=at_most) for member in self._members])

    def forget(self, key: str) -> None:
        """Have every member forget *key*."""
        for member in self._members:
            member.forget(key)

    def num_requeues(self, key: str) -> int:
        """The largest count of any member."""
        return max(member.num_requeues(key) for member in self._members)


def default_controller_limiter(clock: Clock, *, longest: float = 1000) -> RateLimiter:
    """What controllers use unless they say otherwise: 5 ms doubling to *longest* seconds a key,
    and 10 retries a second with a burst of 100 over all keys, unless a key had to wait more than
    *longest* for that."""
    members: list[RateLimiter] = [Exponential(0.005, longest), Bucket(10, 100, clock)]
    return MaxOf(members, longest=longest)
