"""Running a controller for the length of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from batholith.kube.client.events import EventType
from batholith.model.meta import ObjectReference


class Controller(Protocol):
    async def run(self, *, ready: asyncio.Event | None = None) -> None: ...


class FakeRecorder:
    """A recorder that keeps its events: (kind, name, type, reason, message)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str, str]] = []

    def with_component(self, component: str) -> "FakeRecorder":
        """Return this recorder, which does not keep components."""
        return self

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,  # noqa: A002
        reason: str,
        message: str,
    ) -> None:
        self.events.append((regarding.kind, regarding.name, type, reason, message))


@asynccontextmanager
async def running(controller: Controller) -> AsyncIterator[None]:
    """The controller at work for the length of the block."""
    ready = asyncio.Event()
    task = asyncio.create_task(controller.run(ready=ready))
    started = asyncio.create_task(ready.wait())
    await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        started.cancel()
        await task
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task
