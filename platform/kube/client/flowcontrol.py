"""Client-side flow control: token bucket rate limiter and limit of writes in flight.

Background requests (Events) have lower priority in both.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..timing import Timing


class TokenBucketRateLimiter:
    """Token bucket; *qps* 0 means no limit.

    A waiting request reserves its token (the level is negative), so waiters are served in order.
    Background requests start only while the bucket is at least half full.
    """

    def __init__(self, qps: float, burst: int = 0, *, timing: Timing | None = None) -> None:
        self.qps = qps
        self.burst = max(burst or int(qps), 1)
        self._timing = timing or Timing()
        self._tokens = float(self.burst)
        self._refilled_at = self._timing.monotonic()

    @property
    def saturation(self) -> float:
        """Fraction of the bucket in use, 0 (idle) to 1 (requests must wait)."""
        if self.qps <= 0:
            return 0.0
        self._refill()
        return min(1.0, max(0.0, (self.burst - self._tokens) / self.burst))

    async def wait(self, *, background: bool = False) -> float:
        """Wait for a token; return the seconds waited."""
        if self.qps <= 0:
            return 0.0
        waited = 0.0
        # Half a bucket of one token would never suffice: require a whole token.
        required = max(1.0, self.burst / 2)
        while background and self.burst - self.burst * self.saturation < required:
            delay = max((required - self._tokens) / self.qps, 0.001)
            await self._timing.sleep(delay)
            waited += delay
        self._refill()
        self._tokens -= 1.0
        if self._tokens < 0:
            delay = -self._tokens / self.qps
            try:
                await self._timing.sleep(delay)
            except asyncio.CancelledError:
                self._tokens += 1.0
                raise
            waited += delay
        return waited

    def _refill(self) -> None:
        now = self._timing.monotonic()
        self._tokens = min(float(self.burst), self._tokens + (now - self._refilled_at) * self.qps)
        self._refilled_at = now


class InFlightLimiter:
    """Semaphore of *limit* slots (0: unlimited) with low-priority background holders.

    A background request gets a slot if no other request waits and half of the slots are free.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._background_waiters: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, *, background: bool = False) -> AsyncIterator[None]:
        """Hold a slot for the length of the block."""
        await self.acquire(background=background)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Release a slot."""
        self._in_flight -= 1
        if self._waiters or self._background_waiters:
            self._wake_waiters()

    async def acquire(self, *, background: bool = False) -> None:
        """Wait for a slot, to be released by :meth:`release`."""
        if self._has_free_slot(background):
            self._in_flight += 1
            return
        queue = self._background_waiters if background else self._waiters
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._in_flight -= 1  # the slot was already assigned
            self._wake_waiters()
            raise

    def _has_free_slot(self, background: bool) -> bool:
        if self._limit <= 0:
            return True
        if background:
            return not self._waiters and self._in_flight < max(1, self._limit // 2)
        return self._in_flight < self._limit

    def _wake_waiters(self) -> None:
        for queue, background in ((self._waiters, False), (self._background_waiters, True)):
            while queue and self._has_free_slot(background):
                waiter = queue.popleft()
                if not waiter.cancelled():
                    self._in_flight += 1
                    waiter.set_result(None)
