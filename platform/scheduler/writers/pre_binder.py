"""Calls ``pre_bind`` of plugins, in a separate event loop.

Plugins do I/O there. One that blocks the loop, by mistake, stops neither the event loop of the
scheduler, which renews its lease, nor the time limit of the call.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from ...machinery.clock import Clock
from ..framework.plugin_calls import PluginCalls, PluginError, PluginFailure
from ..framework.reserved_placements import ReservedPlacements
from ..plugins.extension_points import PRE_BIND_TIMEOUT, PreBindPlugin
from ..plugins.placement import Placement


class PreBinder:
    """Calls the plugins of the cycle that has decided on a gang, one after the other."""

    def __init__(
        self,
        reserved: ReservedPlacements,
        *,
        clock: Clock,
        count_failures: Callable[[Sequence[PluginFailure]], object],
    ) -> None:
        """Call the plugins of the placements in *reserved*; what fails is counted."""
        self._reserved = reserved
        self._clock = clock
        self._count_failures = count_failures
        self._loop = _ThreadedLoop()

    def is_needed(self, placement: Placement) -> bool:
        """Return whether a plugin is to be called before *placement* is bound."""
        return self._reserved.needs_pre_bind(placement)

    async def run(self, placements: Sequence[Placement]) -> str:
        """Call the plugins for *placements*, which one cycle has decided on for one gang.

        Returns why one failed, or an empty text.
        """
        framework = self._reserved.framework_of(placements[0])
        calls = PluginCalls(framework.plugin_names)
        try:
            for plugin in framework.pre_bind:
                await self._call(plugin, placements)
        except PluginError as error:
            return calls.record(error).message
        finally:
            self._count_failures(calls.failures())
        return ""

    def close(self) -> None:
        """Cancel all calls, and end the thread unless a plugin blocks it."""
        self._loop.close()

    async def _call(self, plugin: PreBindPlugin, placements: Sequence[Placement]) -> None:
        """Call *plugin*.

        Raises:
            PluginError: it raised, or took too long.
        """
        timeout = getattr(plugin, "pre_bind_timeout", PRE_BIND_TIMEOUT)
        call = self._loop.submit(_guarded(plugin, placements))
        deadline = asyncio.ensure_future(self._clock.sleep(timeout))
        try:
            await asyncio.wait((call, deadline), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise TimeoutError(f"no result after {timeout:g} s")
            call.result()
        except Exception as error:
            raise PluginError(plugin, "pre_bind") from error
        finally:
            call.cancel()
            deadline.cancel()


async def _guarded(plugin: PreBindPlugin, placements: Sequence[Placement]) -> None:
    """Call *plugin*; what would end the thread is a failure like any other."""
    try:
        await plugin.pre_bind(placements)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("it has cancelled itself") from error
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(repr(error)) from error


class _ThreadedLoop:
    """An event loop in a thread, which is started when it is needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def submit(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Run *coroutine*; the future belongs to the loop of the caller."""
        if self._loop is None:
            self._loop = self._start()
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._loop = None

    def _start(self) -> asyncio.AbstractEventLoop:
        started = threading.Event()
        loops: list[asyncio.AbstractEventLoop] = []
        stopped = self._stopped = asyncio.Event()

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            started.set()
            await stopped.wait()

        # A daemon: a plugin that blocks it must not keep the process from ending.
        threading.Thread(target=lambda: asyncio.run(serve()), name="pre-bind", daemon=True).start()
        started.wait()
        return loops[0]
