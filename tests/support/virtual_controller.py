"""A controller in a world of its own, for random histories.

Time is virtual and everything runs in one loop, so that one history always goes the same way.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from support.inmemory_api import LocalApi, LocalClient
from support.running_controller import Notes

from batholith.machinery.testing import FakeClock

T = TypeVar("T")

TICK, QUIET, LONG = 0.5, 4.0, 900.0
"""Seconds: a step of time, how long no request makes a rest, and how long one may take to come."""


class Runs(Protocol):
    """A controller."""

    async def run(self) -> None: ...


C = TypeVar("C", bound=Runs)


class _Here(ThreadPoolExecutor):
    """Does what is given to a thread at once, in the loop's own."""

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **kwargs))
        return done


class Process(Generic[C]):
    """A server with at most one controller, of which :meth:`create_connection` makes a new one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Here())
        self.clock = FakeClock()
        self.api = LocalApi(self.clock, self.loop)
        self.notes = Notes()
        self.controller: C | None = None
        self._client: LocalClient | None = None
        self._running: asyncio.Task[None] | None = None
        self.lives = 0
        """How many controllers there have been."""
        self._watches = 0
        """The most that a controller has kept open."""

    def make(self, client: LocalClient) -> C:
        """A new controller that talks to the server through *client*."""
        raise NotImplementedError

    # The loop.

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end, with everything else that has something to do."""
        return self.loop.run_until_complete(work)

    async def rounds(self, number: int) -> None:
        """Let everybody do a little."""
        for _ in range(number):
            await asyncio.sleep(0)

    async def idle(self) -> None:
        """Let everybody go on until only time can bring something new."""
        await asyncio.sleep(0)
        while self.loop._ready:  # type: ignore[attr-defined]  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Let *seconds* pass, with everybody awake."""
        await self.idle()
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self.clock.tick(min(TICK, left))
            await self.idle()

    async def rest(self) -> None:
        """Let all go well from now on, and wait until the controller has nothing left to do.

        INV-PIPE-1: it comes to a rest.
        """
        self.api.release()
        if self.controller is None:
            await self.start()
        began = quiet = self.clock.monotonic()
        await self.idle()
        self._watches = max(self._watches, self.api.watches)
        while self.clock.timer_count and self.clock.monotonic() - quiet < QUIET:
            asked = self.api.requests
            await self.pass_time(TICK)
            self._watches = max(self._watches, self.api.watches)
            if asked != self.api.requests or self.api.watches < self._watches:
                quiet = self.clock.monotonic()
            assert quiet - began < LONG, "INV-PIPE-1: it never comes to a rest"

    # The controller.

    async def start(self) -> None:
        """A new process of the controller, unless there is one."""
        if self.controller is not None:
            return
        self.lives += 1
        self._client = LocalClient(self.api, f"controller-{self.lives}")
        self.controller = self.make(self._client)
        self._running = asyncio.create_task(self.controller.run())

    async def kill(self) -> None:
        """The process is gone between one moment and the next: nothing is tidied up."""
        if self._client is not None:
            self._client.dead = True
            await self.stop()

    async def stop(self) -> None:
        """The process is told to end, and does; INV-LC-1: after that it writes nothing."""
        if self._running is not None:
            self._running.cancel()
            await self._end()
        self.controller = self._running = self._client = None

    async def _end(self) -> None:
        assert self._running is not None and self._client is not None
        self.api.release()
        for _ in range(40):
            await self.idle()
            if self._running.done():
                break
            self.clock.tick(TICK)
        assert self._running.done(), "INV-LC-3: it does not end"
        self._client.dead = True
        if not self._running.cancelled():
            self._running.result()

    def close(self) -> None:
        """End it all."""
        self.do(self.kill())
        self.api.end_watches()
        self.do(self.idle())
        self.loop.close()
