"""Work queue: keys to process, deduplicated, never one key in two workers.

A key is *dirty* while it needs processing and in *processing* between ``get`` and ``done``. A key
added while in processing is queued again after its ``done``, once however often it was added.
Keys of low priority wait behind the others, but each eighth key is one of them.
:mod:`.delay_heap` adds keys later, :mod:`.controller` combines queues as shards.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from .clock import Clock
from .workqueue_stats import WorkQueueStats

_LOW_PRIORITY_INTERVAL = 8
"""One key of low priority follows at most this number less one of others."""


class WorkQueue:
    """FIFO work queue of keys, with two priorities. For one event loop."""

    def __init__(self, clock: Clock, stats: WorkQueueStats) -> None:
        self._now = clock.monotonic
        self._stats = stats
        self._queue: deque[str] = deque()
        self._low_priority: deque[str] = deque()
        self._gets_until_low_priority = _LOW_PRIORITY_INTERVAL
        # Values: time of the add, or of the get.
        self._dirty: dict[str, float] = {}
        self._processing: dict[str, float] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._drainers: list[asyncio.Future[None]] = []
        self.shutting_down = False

    def add(self, key: str, *, low_priority: bool = False) -> None:
        """Mark *key* dirty. Ignored when shutting down.

        The priority of the first add counts; a key in processing is queued with the normal one.
        """
        if self.shutting_down or key in self._dirty:
            return
        self._dirty[key] = self._now()
        self._stats.adds += 1
        if key not in self._processing:
            self._enqueue(key, self._low_priority if low_priority else self._queue)

    def get_nowait(self) -> str | None:
        """Return the next key, now in processing; ``None`` if nothing is queued."""
        queue = self._next_queue()
        if not queue:
            return None
        key = queue.popleft()
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
                if not waiter.cancelled() and len(self):
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
            self._enqueue(key, self._queue)
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
        return len(self._queue) + len(self._low_priority)

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
        queued = {*self._queue, *self._low_priority}
        assert len(queued) == len(self), "duplicate key in queue"  # noqa: S101
        assert queued == self._dirty.keys() - self._processing.keys(), "queued is not dirty"  # noqa: S101

    def __aiter__(self) -> AsyncIterator[str]:
        """Iterate over the keys until the queue is shut down and empty."""
        return self

    async def __anext__(self) -> str:
        key = await self.get()
        if key is None:
            raise StopAsyncIteration
        return key

    def _next_queue(self) -> deque[str]:
        """Return the queue of the next key; an empty one if there is none."""
        if not self._low_priority:
            return self._queue
        self._gets_until_low_priority -= 1
        if self._queue and self._gets_until_low_priority > 0:
            return self._queue
        self._gets_until_low_priority = _LOW_PRIORITY_INTERVAL
        return self._low_priority

    def _enqueue(self, key: str, queue: deque[str]) -> None:
        queue.append(key)
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
