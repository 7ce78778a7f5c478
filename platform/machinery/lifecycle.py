"""Controller startup and shutdown: informers first, then workers; stopped in reverse order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol


class Runnable(Protocol):
    """A component of a process, like controller-runtime's ``Runnable``."""

    def run(self, *, ready: asyncio.Event | None = None) -> Coroutine[Any, Any, None]:
        """Run until cancelled; set *ready* once work has started."""
        ...


class LeaderElectionRunnable(Protocol):
    """A component that can wait for its election while it runs."""

    def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> Coroutine[Any, Any, None]:
        """Run until cancelled; set *ready* once synced, and start work once *elected* is set."""
        ...


class Syncable(Protocol):
    """An informer that can be run and awaited."""

    async def run(self) -> None:
        """List and watch until cancelled."""
        ...

    async def wait_synced(self) -> None:
        """Return once the initial list is complete."""
        ...


class Source(Syncable, Protocol):
    """An informer with an event handler to add."""

    async def attach(self) -> None:
        """Add the event handler; returns after its initial replay."""
        ...


async def run_controller(
    sources: Sequence[Source],
    work: Callable[[], Awaitable[None]],
    *,
    on_synced: Callable[[], object] | None = None,
    ready: asyncio.Event | None = None,
    elected: asyncio.Event | None = None,
) -> None:
    """Run *sources*; once all are synced and have their handlers, call *on_synced*, then *work*.

    With *elected* this is a standby until that is set: its informers stay in sync, without event
    handlers, so that it then starts like a new process. *ready* is set when a standby is synced, or
    else when work begins.

    When cancelled, *work* ends first (it may finish its queue, with the informers still running),
    then the informers. If cancelled before the initial sync, it does no work.
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
    """Run *sources* for the length of the block, which begins once all are synced."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(source.run()) for source in sources]
        try:
            for source in sources:
                await source.wait_synced()
            yield
        finally:
            for task in tasks:
                task.cancel()
