"""The work queue: keys that need work, each at most once, never the same in two hands.

A key is *dirty* while it needs work and *in work* between ``get`` and ``done``. A key that turns
dirty while it is in work is handed out once more after its ``done``, however often it was added.
Neighbours: ``delays`` adds keys later, ``controller`` puts queues side by side as shards.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from .clock import Clock
from .workqueue_stats import WorkQueueStats


class WorkQueue:
    """First in, first out among the keys that are queued. For one event loop."""

    def __init__(self, clock: Clock, stats: WorkQueueStats) -> None:
        self._now = clock.monotonic
        self._stats = stats
        self._queue: deque[str] = deque()
        # With the time of the add, or of the get.
        self._dirty: dict[str, float] = {}
        self._processing: dict[str, float] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._drainers: list[asyncio.Future[None]] = []
        self.shutting_down = False

    def add(self, key: str) -> None:
        """*key* needs work. Ignored when shutting down."""
        if self.shutting_down or key in self._dirty:
            return
        self._dirty[key] = self._now()
        self._stats.adds += 1
        if key not in self._processing:
            self._enqueue(key)

    def get_nowait(self) -> str | None:
        """The next key, which is in work from now on; ``None`` if nothing is queued."""
        if not self._queue:
            return None
        key = self._queue.popleft()
        now = self._now()
        self._stats.queue_duration.observe(now - self._dirty.pop(key))
        self._processing[key] = now
        return key

    async def get(self) -> str | None:
        """The next key, once there is one; ``None`` when shut down and nothing is queued."""
        while (key := self.get_nowait()) is None:
            if self.shutting_down:
                return None
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if not getter.cancelled() and self._queue:
                    self._wake_waiter()  # it was our turn: pass it on
                raise
        return key

    def done(self, key: str) -> float:
        """The work on *key* has ended, well or not: the seconds that it took.

        Harmless for a key that is not in work.
        """
        started = self._processing.pop(key, None)
        if started is None:
            return 0.0
        seconds = self._now() - started
        self._stats.work_duration.observe(seconds)
        if key in self._dirty:
            self._enqueue(key)
        elif self._drainers and self.idle:
            self._release_drainers()
        return seconds

    def shut_down(self) -> None:
        """Take no more keys; those queued are still handed out. Also ends a drain early."""
        self._close()
        self._release_drainers()

    async def drain(self) -> None:
        """Take no more keys, and wait until all that were accepted are done."""
        self._close()
        if self.idle:
            return
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drainers.append(drained)
        await drained

    @property
    def idle(self) -> bool:
        """Nothing needs work and nothing is in work."""
        return not self._dirty and not self._processing

    @property
    def depth(self) -> int:
        """Keys that need work, queued or in work."""
        return len(self._dirty)

    def __len__(self) -> int:
        """Keys that are queued: to look at, not to decide by."""
        return len(self._queue)

    def ages(self) -> list[float]:
        """Seconds that each key in work has been in work."""
        now = self._now()
        return [now - started for started in self._processing.values()]

    def age(self, key: str) -> float:
        """Seconds that *key* has been in work; 0 if it is not."""
        now = self._now()
        return now - self._processing.get(key, now)

    def validate(self) -> None:
        """Raise AssertionError unless the three collections agree."""
        queued = set(self._queue)
        assert len(queued) == len(self._queue), "a key is queued twice"  # noqa: S101
        assert queued == self._dirty.keys() - self._processing.keys(), "queued is not dirty"  # noqa: S101

    def __aiter__(self) -> AsyncIterator[str]:
        """The keys, until the queue is shut down and empty."""
        return self

    async def __anext__(self) -> str:
        key = await self.get()
        if key is None:
            raise StopAsyncIteration
        return key

    def _enqueue(self, key: str) -> None:
        self._queue.append(key)
        if self._waiters:
            self._wake_waiter()

    def _wake_waiter(self) -> None:
        while self._waiters:
            getter = self._waiters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _close(self) -> None:
        self.shutting_down = True
        while self._waiters:
            self._wake_waiter()

    def _release_drainers(self) -> None:
        drainers, self._drainers = self._drainers, []
        for drained in drainers:
            if not drained.done():
                drained.set_result(None)
