"""The life of a controller: caches first, then work, and the end in the opposite order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol


class Source(Protocol):
    """A watch cache, as far as its life goes."""

    async def run(self) -> None:
        """Keep the cache up to date until cancelled."""
        ...

    async def wait_synced(self) -> None:
        """Return once the first list is complete."""
        ...


async def run_controller(
    sources: Sequence[Source],
    work: Callable[[], Awaitable[None]],
    *,
    synced: Callable[[], object] | None = None,
    ready: asyncio.Event | None = None,
) -> None:
    """Run *sources*; once all are synced call *synced*, set *ready* and do *work*.

    When cancelled, *work* ends first (it may finish what is in hand, with the caches still
    running), then the caches. Cancelled before the first sync, it does no work at all.
    """
    async with running(sources):
        if synced is not None:
            synced()
        if ready is not None:
            ready.set()
        await work()


@asynccontextmanager
async def running(sources: Sequence[Source]) -> AsyncIterator[None]:
    """Run *sources* for the length of the block, which begins when all are synced."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(source.run()) for source in sources]
        try:
            for source in sources:
                await source.wait_synced()
            yield
        finally:
            for task in tasks:
                task.cancel()
