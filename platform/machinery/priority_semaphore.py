"""Who goes first where only some can go at once.

Neighbours: ``kube.flow.InFlight`` bounds all writes of a process, in the order in which they come.
"""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """At most *places* holders at a time; of those who wait the one of the smallest rank is next.

    For one event loop.
    """

    def __init__(self, places: int) -> None:
        """Let *places* in, at least one."""
        if places < 1:
            raise ValueError(f"need at least one place, got {places}")
        self._free = places
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def place(self, rank: float) -> AsyncIterator[None]:
        """Hold a place for the length of the block; among equal ranks first come, first served."""
        await self._enter(rank)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, rank: float) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was our turn: the next one's, then
            raise

    def _leave(self) -> None:
        """Hand the place on, or keep it for whoever comes."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
