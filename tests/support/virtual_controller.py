"""A controller in a simulated cluster, for random histories.

Time is virtual and everything runs in one loop, so that each history is deterministic.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from support.inmemory_api import InMemoryApi, InMemoryClient
from support.inmemory_objects import Object
from support.running_controller import FakeRecorder

from batholith.machinery.testing import FakeClock
from batholith.model.names import Resource

T = TypeVar("T")

TICK, QUIET_PERIOD, MAX_SETTLE_TIME = 0.5, 4.0, 900.0
"""Seconds: a step of time, the idle time that counts as quiet, and the limit until then."""


class Runnable(Protocol):
    """A controller."""

    async def run(self) -> None: ...


C = TypeVar("C", bound=Runnable)


class _InlineExecutor(ThreadPoolExecutor):
    """Does what is given to a thread at once, in the loop's own."""

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **kwargs))
        return done


class ControllerWorld(Generic[C]):
    """A server with at most one controller, created by :meth:`create_connection`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_InlineExecutor())
        self.clock = FakeClock()
        self.api = InMemoryApi(self.clock, self.loop)
        self.recorder = FakeRecorder()
        self.controller: C | None = None
        self._client: InMemoryClient | None = None
        self._controller_task: asyncio.Task[None] | None = None
        self.controllers_started = 0
        """How many controllers there have been."""
        self._max_watches = 0
        """The most that a controller has kept open."""

    def make_controller(self, client: InMemoryClient) -> C:
        """A new controller that talks to the server through *client*."""
        raise NotImplementedError

    # The loop.

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end, with everything else that has something to do."""
        return self.loop.run_until_complete(work)

    async def run_iterations(self, number: int) -> None:
        """Run a few loop iterations."""
        for _ in range(number):
            await asyncio.sleep(0)

    async def run_until_idle(self) -> None:
        """Run the loop until only the passage of time can change anything."""
        await asyncio.sleep(0)
        while self.loop._ready:  # type: ignore[attr-defined]  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Advance the time by *seconds*."""
        await self.run_until_idle()
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self.clock.tick(min(TICK, left))
            await self.run_until_idle()

    async def run_until_quiet(self) -> None:
        """Let all go well from now on, and wait until the controller has nothing left to do.

        INV-PIPE-1: it becomes idle.
        """
        self.api.release_watches()
        if self.controller is None:
            await self.start()
        began = quiet = self.clock.monotonic()
        await self.run_until_idle()
        self._max_watches = max(self._max_watches, self.api.watches)
        while self.clock.timer_count and self.clock.monotonic() - quiet < QUIET_PERIOD:
            asked = self.api.requests
            await self.pass_time(TICK)
            self._max_watches = max(self._max_watches, self.api.watches)
            if asked != self.api.requests or self.api.watches < self._max_watches:
                quiet = self.clock.monotonic()
            assert quiet - began < MAX_SETTLE_TIME, "INV-PIPE-1: it never becomes idle"

    # The controller.

    async def start(self) -> None:
        """A new process of the controller, unless there is one."""
        if self.controller is not None:
            return
        self.controllers_started += 1
        self._client = InMemoryClient(self.api, f"controller-{self.controllers_started}")
        self.controller = self.make_controller(self._client)
        self._controller_task = asyncio.create_task(self.controller.run())

    async def kill(self) -> None:
        """The process is killed: no clean-up runs."""
        if self._client is not None:
            self._client.killed = True
            await self.stop()

    async def stop(self) -> None:
        """The process stops gracefully; INV-LC-1: after that it writes nothing."""
        if self._controller_task is not None:
            self._controller_task.cancel()
            await self._wait_stopped()
        self.controller = self._controller_task = self._client = None
        self._max_watches = 0  # another process may need fewer

    async def _wait_stopped(self) -> None:
        assert self._controller_task is not None and self._client is not None
        self.api.release_watches()
        for _ in range(40):
            await self.run_until_idle()
            if self._controller_task.done():
                break
            self.clock.tick(TICK)
        assert self._controller_task.done(), "INV-LC-3: it does not end"
        self._client.killed = True
        if not self._controller_task.cancelled():
            self._controller_task.result()

    def close(self) -> None:
        """End it all."""
        self.run(self.kill())
        self.api.end_watches()
        self.run(self.run_until_idle())
        self.loop.close()


class CheckedWorld(ControllerWorld[C]):
    """A server that checks what each request of a controller changes."""

    def __init__(self) -> None:
        super().__init__()
        self.controller_writes = 0
        """Changes by controllers."""
        self.external_changes = 0
        """Changes by others."""
        self.violations: list[str] = []
        """Changes that break an invariant."""
        self.api.on_change = self._on_change

    def objects(self, resource: Resource) -> dict[str, Object]:
        """Objects by name, in their order."""
        return {
            key.rpartition("/")[2]: obj for key, obj in sorted(self.api.objects(resource).items())
        }

    def check_invariants(self) -> None:
        """Check the state once the controller is idle."""
        raise NotImplementedError

    def _on_change(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        if not self.api.requesting_client:
            self.external_changes += 1
            return
        self.controller_writes += 1
        try:
            self._check(prefix, change, new, old or {})
        except AssertionError as error:
            self.violations.append(f"{error}")

    def _check(self, prefix: str, change: str, new: Object, old: Object) -> None:
        """Check a change by the controller; *prefix* is the path of the objects of its kind."""
        raise NotImplementedError
