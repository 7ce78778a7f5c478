"""Semaphore that wakes waiters by priority.

See also :class:`batholith.kube.client.flowcontrol.InFlightLimiter`, which limits all writes of a
process in FIFO order.
"""

import asyncio
import heapq
import itertools


class PrioritySemaphore:
    """Semaphore with *slots*; the waiter of the smallest priority is next.

    For one event loop.
    """

    def __init__(self, slots: int) -> None:
        """Create *slots* free slots, at least one."""
        if slots < 1:
            raise ValueError(f"need at least one slot, got {slots}")
        self._free = slots
        self._waiters: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @property
    def waiting(self) -> int:
        """Number of waiters, those that were cancelled included."""
        return len(self._waiters)

    async def acquire(self, priority: float) -> None:
        """Wait for a slot, to be released by :meth:`release`; FIFO among equal priorities."""
        if self._free:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (priority, next(self._order), waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # pass the assigned slot on
            raise

    def release(self) -> None:
        """Pass a slot to the next waiter, or free it."""
        while self._waiters:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
