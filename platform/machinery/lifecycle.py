"""The life of a controller: caches first, then work, and the end in the opposite order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol


class Syncable(Protocol):
    """A watch cache, as far as its life goes."""

    async def run(self) -> None:
        """Keep the cache up to date until cancelled."""
        ...

    async def wait_synced(self) -> None:
        """Return once the first list is complete."""
        ...


class Source(Syncable, Protocol):
    """A watch cache and who hears of it."""

    async def attach(self) -> None:
        """Begin to tell what the cache holds, and what changes; all is told on return."""
        ...


async def run_controller(
    sources: Sequence[Source],
    work: Callable[[], Awaitable[None]],
    *,
    on_synced: Callable[[], object] | None = None,
    ready: asyncio.Event | None = None,
    elected: asyncio.Event | None = None,
) -> None:
    """Run *sources*; once all are synced and have told what they hold, call *synced* and do *work*.

    With *lead* this is a standby until that is set: its caches are kept warm, and nothing hears of
    them, so that it later starts like any fresh process. *ready* is set when a standby could take
    over, or else when work begins.

    When cancelled, *work* ends first (it may finish what is in hand, with the caches still
    running), then the caches. Cancelled before the first sync, it does no work at all.
    """
    ready = ready or asyncio.Event()
    async with running_sources(sources):
        if elected is not None:
            ready.set()
            await elected.wait()
        for source in sources:
            await source.attach()
        if on_synced is not None:
            on_synced()
        ready.set()
        await work()


@asynccontextmanager
async def running_sources(sources: Sequence[Syncable]) -> AsyncIterator[None]:
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
