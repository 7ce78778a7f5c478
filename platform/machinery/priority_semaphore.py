"""Who goes first where only some can go at once.

Neighbours: ``kube.flow.InFlight`` bounds all writes of a process, in the order in which they come.
"""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class PrioritySemaphore:
    """At most *places* holders at a time; of those who wait the one of the smallest rank is next.

    For one event loop.
    """

    def __init__(self, slots: int) -> None:
        """Let *places* in, at least one."""
        if slots < 1:
            raise ValueError(f"need at least one place, got {slots}")
        self._free = slots
        self._waiters: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def slot(self, priority: float) -> AsyncIterator[None]:
        """Hold a place for the length of the block; among equal ranks first come, first served."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, priority: float) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (priority, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()  # it was our turn: the next one's, then
            raise

    def _release(self) -> None:
        """Hand the place on, or keep it for whoever comes."""
        while self._waiters:
            turn = heapq.heappop(self._waiters)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
