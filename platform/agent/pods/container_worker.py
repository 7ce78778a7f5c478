"""Looking after one run of a container: its hooks and probes, its memory, its stop and its end."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...machinery.clock import Timer
from ..runtime import oom
from ..runtime.images import is_placeholder
from ..runtime.runs import Ended, Process, RunFolder
from ..state.core_types import Handler, Pod
from ..state.status import Checked, Exited, Started, Unwell
from .handlers import HandlerError, Target, carry_out
from .launch_spec import termination_message
from .node_context import HOST_IP, Machine
from .prober import Checker, as_it_runs
from .records import PodFolder

_LEAST_AFTER_HOOK = 2.0
"""Seconds that a container has to end after its hook, even if that used up the grace."""

_KILLED = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """What all who look after containers of one pod need to know, and whom they tell."""

    machine: Machine
    folder: PodFolder
    pod: Callable[[], Pod]
    """Gives the pod as it is now."""

    report: Callable[[Checked | Unwell], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Has something done beside; what fails there fails the pod's worker."""

    def warn(self, reason: str, message: str) -> None:
        """Record an event about the pod."""
        self.machine.tell(self.pod(), reason, message, warning=reason != "Killing")

    def target(self, run: RunFolder) -> Target:
        """The run as hooks and probes need it."""
        pod = self.pod()
        ip = HOST_IP if pod.spec.host_network else self.machine.take_address(pod.metadata.uid)
        container = as_it_runs(pod.containers[run.container], run)
        return Target(container=container, run=run, ip=ip, clock=self.machine.clock)

    def checker(self, run: RunFolder) -> Checker:
        """Who asks the run how it is."""
        return Checker(
            pod=self.pod(),
            target=self.target(run),
            time=self.machine.time,
            report=self.report,
            tell=self.warn,
        )

    def identity(self, run: RunFolder) -> str:
        """The run's name in the pod's status."""
        return f"{self.pod().metadata.uid}-{run.container}-{run.path.name}"

    def started(
        self, run: RunFolder, at: datetime, *, begun: bool = False, ready: bool = False
    ) -> Started:
        """The event of the run's start; *begun* and *ready* is what was already shown of it."""
        checker = self.checker(run)
        return Started(
            run.container,
            at,
            self.identity(run),
            started=begun or checker.starts_well,
            ready=ready or checker.is_ready_at_once,
            seen=self.machine.time.of(at),
            placeholder=is_placeholder(self.pod().containers[run.container], run.argv()),
        )

    def exited(self, run: RunFolder, ended: Ended, *, seen: datetime) -> Exited:
        """The event of the run's end; *seen* is when that was, in steady time."""
        container, log_file = self.pod().containers[run.container], self.folder.log_of(run)
        failed = ended.code != 0
        message = ended.message or termination_message(container, run, log_file, failed=failed)
        killed = ended.code == _KILLED and oom.was_condemned(run)
        reason = oom.REASON if killed else ended.reason
        return Exited(run.container, ended.moment, ended.code, reason, message, seen)


class Attendant:
    """Looks after one run, from its start or its adoption to its end."""

    def __init__(self, context: PodContext, process: Process) -> None:
        self.run = process.folder
        self._context = context
        self._process = process
        self._clock = context.machine.clock
        self._time = context.machine.time
        self._checks: asyncio.Task[None] | None = None
        self._kill: tuple[datetime, Timer] | None = None
        """When it has to be over, as was asked for, once it was asked to end."""

        self._over = False

    @property
    def log_file(self) -> Path:
        """Where the run's output goes."""
        return self._context.folder.log_of(self.run)

    @property
    def _hook(self) -> Handler | None:
        return self._context.pod().containers[self.run.container].lifecycle.pre_stop

    def watch_over(self, *, begun: bool) -> None:
        """Carry out hook and probes, if any; *begun*: it is known to have started well."""
        checker = self._context.checker(self.run)
        if checker.is_needed:
            self._checks = self._context.spawn(checker.run(started=begun))

    async def ended(self) -> Exited:
        """Wait for the end of the run, and say how it was."""
        ended = await self._process.wait()
        self._be_over()
        return self._context.exited(self.run, ended, seen=self._time.now())

    def let_go(self) -> None:
        """Look after it no more; it runs on."""
        self._be_over()
        self._process.let_go()

    def _be_over(self) -> None:
        self._over = True
        self._check_no_more()
        if self._kill is not None:
            self._kill[1].cancel()

    def _check_no_more(self) -> None:
        if self._checks is not None:
            self._checks.cancel()

    async def check_memory(self) -> None:
        """Kill it if it uses more memory than it may."""
        limit = oom.limit_of(self._context.pod().containers[self.run.container])
        pid = self._process.pid
        if limit is None or not await asyncio.to_thread(oom.exceeds, pid, limit):
            return
        if not self._over:
            oom.condemn(self.run)
            words = f"Container {self.run.container} uses more memory than its limit"
            self._context.warn("OOMKilling", words)
            self._context.spawn(self._process.kill())

    # --- its stop ---------------------------------------------------------------------------

    def stop(self, kill_at: datetime) -> None:
        """Ask it to end, after its hook, and kill it at *kill_at*; asked again, hurry at most."""
        if self._kill is not None:
            if kill_at < self._kill[0]:
                self._kill_at(kill_at)
            return
        self._check_no_more()
        words = f"Stopping container {self.run.container}"
        self._context.machine.tell(self._context.pod(), "Killing", words)
        if self._hook is not None and kill_at > self._time.now():
            self._kill_at(kill_at, later=_LEAST_AFTER_HOOK)
            self._context.spawn(self._end_after_hook(kill_at))
        else:
            self._process.ask_to_end()
            self._kill_at(kill_at)

    def _kill_at(self, kill_at: datetime, *, later: float = 0.0) -> None:
        """Kill it so many seconds *later* than was asked for, and not before."""
        if self._kill is not None:
            self._kill[1].cancel()
        left = max(self._until(kill_at), 0.0) + later
        kill = self._process.kill
        self._kill = (
            kill_at,
            self._clock.call_later(left, lambda: self._context.spawn(kill())),
        )

    def _until(self, moment: datetime) -> float:
        return (moment - self._time.now()).total_seconds()

    async def _end_after_hook(self, kill_at: datetime) -> None:
        await self._grant_last_wish(self._until(kill_at))
        if self._over or self._kill is None:
            return
        if self._kill[0] == kill_at:  # else it has to end sooner, and is asked all the same
            short = _LEAST_AFTER_HOOK - self._until(kill_at)
            self._kill_at(kill_at, later=min(max(short, 0.0), _LEAST_AFTER_HOOK))
        self._process.ask_to_end()

    async def _grant_last_wish(self, seconds: float) -> None:
        """Carry out the hook before the stop, if there is one, for so long at most."""
        hook = self._hook
        if hook is None or seconds <= 0:
            return
        try:
            await carry_out(hook, self._context.target(self.run), timeout=seconds)
        except HandlerError as error:
            self._context.warn("FailedPreStopHook", f"PreStopHook failed: {error}")

    async def end(self, grace: float) -> None:
        """Ask it to end, kill it after *grace* seconds, and wait until it is gone."""
        self._check_no_more()
        most = grace + (_LEAST_AFTER_HOOK if self._hook is not None else 0.0)
        kill = asyncio.create_task(self._kill_after(most))
        try:
            await self._grant_last_wish(grace)
            self._process.ask_to_end()
            await self._process.wait()
        finally:
            kill.cancel()

    async def _kill_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self._process.kill()
