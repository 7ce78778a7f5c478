"""Work queue: keys to process, deduplicated, never one key in two workers.

A key is *dirty* while it needs processing and in *processing* between ``get`` and ``done``. A key
added while in processing is queued again after its ``done``, once however often it was added.
:mod:`.delay_heap` adds keys later, :mod:`.controller` combines queues as shards.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from .clock import Clock
from .workqueue_stats import WorkQueueStats


class WorkQueue:
    """FIFO work queue of keys. For one event loop."""

    def __init__(self, clock: Clock, stats: WorkQueueStats) -> None:
        self._now = clock.monotonic
        self._stats = stats
        self._queue: deque[str] = deque()
        # Values: time of the add, or of the get.
        self._dirty: dict[str, float] = {}
        self._processing: dict[str, float] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._drainers: list[asyncio.Future[None]] = []
        self.shutting_down = False

    def add(self, key: str) -> None:
        """Mark *key* dirty. Ignored when shutting down."""
        if self.shutting_down or key in self._dirty:
            return
        self._dirty[key] = self._now()
        self._stats.adds += 1
        if key not in self._processing:
            self._enqueue(key)

    def get_nowait(self) -> str | None:
        """Return the next key, now in processing; ``None`` if nothing is queued."""
        if not self._queue:
            return None
        key = self._queue.popleft()
        now = self._now()
        self._stats.queue_duration.observe(now - self._dirty.pop(key))
        self._processing[key] = now
        return key

    async def get(self) -> str | None:
        """Wait for the next key; ``None`` when shut down and nothing is queued."""
        while (key := self.get_nowait()) is None:
            if self.shutting_down:
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled() and self._queue:
                    self._wake_waiter()  # pass the wake-up on
                raise
        return key

    def done(self, key: str) -> float:
        """Mark *key* as processed; return the duration in seconds.

        No effect for a key that is not in processing.
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

    def include_changes(self, key: str) -> None:
        """Forget adds of *key* in processing: it is processed with all changes up to now."""
        if key in self._processing:
            self._dirty.pop(key, None)

    def shut_down(self) -> None:
        """Ignore further adds; queued keys are still returned. Also ends a drain early."""
        self._close()
        self._release_drainers()

    async def drain(self) -> None:
        """Ignore further adds and wait until all accepted keys are done."""
        self._close()
        if self.idle:
            return
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drainers.append(drained)
        await drained

    @property
    def idle(self) -> bool:
        """Whether no key is dirty or in processing."""
        return not self._dirty and not self._processing

    @property
    def depth(self) -> int:
        """Number of dirty keys, queued or in processing."""
        return len(self._dirty)

    def __len__(self) -> int:
        """Number of queued keys; for information only."""
        return len(self._queue)

    def ages(self) -> list[float]:
        """Return for each key in processing for how many seconds."""
        now = self._now()
        return [now - started for started in self._processing.values()]

    def age(self, key: str) -> float:
        """Return for how many seconds *key* has been in processing; 0 if it is not."""
        now = self._now()
        return now - self._processing.get(key, now)

    def validate(self) -> None:
        """Raise AssertionError unless the three collections agree."""
        queued = set(self._queue)
        assert len(queued) == len(self._queue), "duplicate key in queue"  # noqa: S101
        assert queued == self._dirty.keys() - self._processing.keys(), "queued is not dirty"  # noqa: S101

    def __aiter__(self) -> AsyncIterator[str]:
        """Iterate over the keys until the queue is shut down and empty."""
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
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
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
