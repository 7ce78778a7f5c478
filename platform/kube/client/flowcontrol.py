"""How fast we may send: a token bucket, and a bound on writes under way.

Background requests (Events) stand behind all others in both.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..timing import Timing


class TokenBucketRateLimiter:
    """A token bucket; *qps* 0 means no limit.

    A waiting request holds a reservation (the level goes below zero), so waiters go in order.
    Background requests start only while at least half of the bucket is full.
    """

    def __init__(self, qps: float, burst: int = 0, *, timing: Timing | None = None) -> None:
        self.qps = qps
        self.burst = max(burst or int(qps), 1)
        self._timing = timing or Timing()
        self._tokens = float(self.burst)
        self._refilled_at = self._timing.monotonic()

    @property
    def saturation(self) -> float:
        """Share of the bucket that is used, 0 (idle) to 1 (requests must wait)."""
        if self.qps <= 0:
            return 0.0
        self._refill()
        return min(1.0, max(0.0, (self.burst - self._tokens) / self.burst))

    async def wait(self, *, background: bool = False) -> float:
        """Wait for a token; returns the seconds waited."""
        if self.qps <= 0:
            return 0.0
        waited = 0.0
        # Half of a bucket of one would never leave room: the whole token is asked for then.
        room = max(1.0, self.burst / 2)
        while background and self.burst - self.burst * self.saturation < room:
            pause = max((room - self._tokens) / self.qps, 0.001)
            await self._timing.sleep(pause)
            waited += pause
        self._refill()
        self._tokens -= 1.0
        if self._tokens < 0:
            pause = -self._tokens / self.qps
            try:
                await self._timing.sleep(pause)
            except asyncio.CancelledError:
                self._tokens += 1.0
                raise
            waited += pause
        return waited

    def _refill(self) -> None:
        now = self._timing.monotonic()
        self._tokens = min(float(self.burst), self._tokens + (now - self._refilled_at) * self.qps)
        self._refilled_at = now


class InFlightLimiter:
    """At most *limit* holders at a time (0: any number); background ones only when it is calm.

    A background holder is let in when nobody else waits and half of the places are free.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._background_waiters: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, *, background: bool = False) -> AsyncIterator[None]:
        """Hold a place for the length of the block."""
        await self.acquire(background=background)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Give up a place."""
        self._in_flight -= 1
        if self._waiters or self._background_waiters:
            self._wake_waiters()

    async def acquire(self, *, background: bool = False) -> None:
        """Wait for a place; whoever got one must :meth:`unlock` it."""
        if self._has_free_slot(background):
            self._in_flight += 1
            return
        queue = self._background_waiters if background else self._waiters
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._in_flight -= 1  # the place was already ours
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
                turn = queue.popleft()
                if not turn.cancelled():
                    self._in_flight += 1
                    turn.set_result(None)
