"""The REST API with a cluster, served by an event loop in another thread: for blocking clients."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from .rest import RestClient, cluster, rest_at, running_api, sqlite

T = TypeVar("T")


class RestThread:
    """A running API, and how to call coroutines in its thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._rest: RestClient | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    @property
    def rest(self) -> RestClient:
        """The API; its coroutines run by :meth:`run`."""
        assert self._rest is not None, "the API has not started"
        return self._rest

    def run(self, call: Callable[[RestClient], Awaitable[T]]) -> T:
        """Run a coroutine in the thread of the API."""
        assert self._loop is not None

        async def called() -> T:
            return await call(self.rest)

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(60)

    @contextlib.contextmanager
    def serving(self) -> Iterator["RestThread"]:
        """Serve for the length of the block."""
        self._thread.start()
        try:
            self._started.wait(60)
            yield self
        finally:
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with (
                cluster(self._directory) as (server, client),
                running_api(client, sqlite(self._directory)) as url,
                rest_at(url, server, client) as self._rest,
            ):
                self._started.set()
                await self._stop.wait()
        finally:
            self._started.set()
