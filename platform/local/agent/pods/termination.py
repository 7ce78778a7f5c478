"""Stop of a container: the same code for every reason.

| reason | caller | grace period |
| --- | --- | --- |
| pod deleted, deadline exceeded, pod finished | pod worker (`StopContainer`) | the pod's |
| probe or postStart hook failed | pod worker (`StopContainer`) | the probe's, else the pod's |
| agent shutdown | `PodContainers.stop_all` | the pod's |
| memory limit exceeded | `ContainerWorker.check_memory` | none |

What has no worker, `orphans` kills by its runs on disk: without the pod's object the agent knows
neither hook nor grace period.
"""

from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any

from ....machinery.clock import Clock, SteadyClock, Timer
from ..runtime.runs import ContainerProcess

_MIN_GRACE_AFTER_HOOK = 2.0
"""Seconds between SIGTERM and SIGKILL even if the preStop hook used up the grace period."""

PreStopFunc = Callable[[float], Awaitable[None]]
"""Runs the preStop hook; takes its timeout in seconds."""


class ContainerTermination:
    """PreStop hook, SIGTERM, and SIGKILL at the end of the grace period.

    The shim writes the exit record, which `ContainerProcess.wait` returns.
    """

    def __init__(
        self,
        process: ContainerProcess,
        *,
        clock: Clock,
        time: SteadyClock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        pre_stop: PreStopFunc | None,
    ) -> None:
        self._process = process
        self._clock = clock
        self._time = time
        self._spawn = spawn
        self._pre_stop = pre_stop
        self._kill_at: datetime | None = None
        """Requested time of the kill; ``None`` before a stop is requested."""

        self._timer: Timer | None = None
        self._finished = False

    @property
    def is_requested(self) -> bool:
        """Whether the container is stopping."""
        return self._kill_at is not None

    def stop(self, kill_at: datetime) -> None:
        """Stop the container, killing it at *kill_at*; a repeated call only shortens the time."""
        if self._kill_at is not None:
            if kill_at < self._kill_at:
                self._schedule_kill(kill_at)
        elif self._pre_stop is not None and kill_at > self._time.now():
            self._schedule_kill(kill_at, extra_seconds=_MIN_GRACE_AFTER_HOOK)
            self._spawn(self._terminate_after_hook(self._pre_stop, kill_at))
        else:
            self._process.terminate()
            self._schedule_kill(kill_at)

    def kill(self) -> None:
        """Kill the container now, without hook and grace period."""
        self._spawn(self._process.kill())

    def cancel(self) -> None:
        """Cancel the steps that are left: the container exited, or runs on without this agent."""
        self._finished = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_kill(self, kill_at: datetime, *, extra_seconds: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._kill_at = kill_at
        delay = max(self._seconds_until(kill_at), 0.0) + extra_seconds
        self._timer = self._clock.call_later(delay, self.kill)

    def _seconds_until(self, timestamp: datetime) -> float:
        return (timestamp - self._time.now()).total_seconds()

    async def _terminate_after_hook(self, pre_stop: PreStopFunc, kill_at: datetime) -> None:
        await pre_stop(self._seconds_until(kill_at))
        if self._finished:
            return
        if self._kill_at == kill_at:  # else an earlier kill was requested in the meantime
            missing = _MIN_GRACE_AFTER_HOOK - self._seconds_until(kill_at)
            extra = min(max(missing, 0.0), _MIN_GRACE_AFTER_HOOK)
            self._schedule_kill(kill_at, extra_seconds=extra)
        self._process.terminate()
