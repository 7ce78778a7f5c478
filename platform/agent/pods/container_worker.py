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
from ..runtime.runs import ContainerProcess, ExitRecord, RunDir
from ..state.core_types import LifecycleHandler, Pod
from ..state.status import Exited, ProbeFailed, ProbeResult, Started
from .handlers import HandlerError, HandlerTarget, run_handler
from .launch_spec import termination_message
from .node_context import HOST_IP, NodeContext
from .prober import Prober, effective_container
from .records import PodDir

_MIN_GRACE_AFTER_HOOK = 2.0
"""Seconds that a container has to end after its hook, even if that used up the grace."""

_SIGKILL_EXIT_CODE = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """What all who look after containers of one pod need to know, and whom they tell."""

    node: NodeContext
    pod_dir: PodDir
    pod: Callable[[], Pod]
    """Gives the pod as it is now."""

    report: Callable[[ProbeResult | ProbeFailed], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Has something done beside; what fails there fails the pod's worker."""

    def record_event(self, reason: str, message: str) -> None:
        """Record an event about the pod."""
        self.node.record_event(self.pod(), reason, message, warning=reason != "Killing")

    def handler_target(self, run: RunDir) -> HandlerTarget:
        """The run as hooks and probes need it."""
        pod = self.pod()
        ip = HOST_IP if pod.spec.host_network else self.node.allocate_ip(pod.metadata.uid)
        container = effective_container(pod.containers[run.container_name], run)
        return HandlerTarget(container=container, run=run, ip=ip, clock=self.node.clock)

    def prober(self, run: RunDir) -> Prober:
        """Who asks the run how it is."""
        return Prober(
            pod=self.pod(),
            target=self.handler_target(run),
            time=self.node.steady_time,
            report=self.report,
            record_event=self.record_event,
        )

    def container_id(self, run: RunDir) -> str:
        """The run's name in the pod's status."""
        return f"{self.pod().metadata.uid}-{run.container_name}-{run.path.name}"

    def started_event(
        self, run: RunDir, at: datetime, *, has_started: bool = False, ready: bool = False
    ) -> Started:
        """The event of the run's start; *begun* and *ready* is what was already shown of it."""
        checker = self.prober(run)
        return Started(
            run.container_name,
            at,
            self.container_id(run),
            started=has_started or checker.is_started_immediately,
            ready=ready or checker.is_ready_immediately,
            steady_at=self.node.steady_time.from_wall(at),
            placeholder=is_placeholder(self.pod().containers[run.container_name], run.argv()),
        )

    def exited_event(self, run: RunDir, record: ExitRecord, *, steady_at: datetime) -> Exited:
        """The event of the run's end; *seen* is when that was, in steady time."""
        container, log_file = self.pod().containers[run.container_name], self.pod_dir.log_path(run)
        failed = record.code != 0
        message = record.message or termination_message(container, run, log_file, failed=failed)
        killed = record.code == _SIGKILL_EXIT_CODE and oom.was_oom_killed(run)
        reason = oom.REASON if killed else record.reason
        return Exited(
            run.container_name, record.finished_at, record.code, reason, message, steady_at
        )


class ContainerWorker:
    """Looks after one run, from its start or its adoption to its end."""

    def __init__(self, context: PodContext, process: ContainerProcess) -> None:
        self.run = process.run_dir
        self._context = context
        self._process = process
        self._clock = context.node.clock
        self._time = context.node.steady_time
        self._probes: asyncio.Task[None] | None = None
        self._pending_kill: tuple[datetime, Timer] | None = None
        """When it has to be over, as was asked for, once it was asked to end."""

        self._finished = False

    @property
    def log_file(self) -> Path:
        """Where the run's output goes."""
        return self._context.pod_dir.log_path(self.run)

    @property
    def _hook(self) -> LifecycleHandler | None:
        return self._context.pod().containers[self.run.container_name].lifecycle.pre_stop

    def start_probes(self, *, has_started: bool) -> None:
        """Carry out hook and probes, if any; *begun*: it is known to have started well."""
        checker = self._context.prober(self.run)
        if checker.has_probes:
            self._probes = self._context.spawn(checker.run(started=has_started))

    async def wait(self) -> Exited:
        """Wait for the end of the run, and say how it was."""
        ended = await self._process.wait()
        self._finish()
        return self._context.exited_event(self.run, ended, steady_at=self._time.now())

    def detach(self) -> None:
        """Look after it no more; it runs on."""
        self._finish()
        self._process.detach()

    def _finish(self) -> None:
        self._finished = True
        self._stop_probes()
        if self._pending_kill is not None:
            self._pending_kill[1].cancel()

    def _stop_probes(self) -> None:
        if self._probes is not None:
            self._probes.cancel()

    async def check_memory(self) -> None:
        """Kill it if it uses more memory than it may."""
        limit = oom.limit_of(self._context.pod().containers[self.run.container_name])
        pid = self._process.pid
        if limit is None or not await asyncio.to_thread(oom.is_over_limit, pid, limit):
            return
        if not self._finished:
            oom.mark_oom_killed(self.run)
            words = f"Container {self.run.container_name} uses more memory than its limit"
            self._context.record_event("OOMKilling", words)
            self._context.spawn(self._process.kill())

    # --- its stop ---------------------------------------------------------------------------

    def stop(self, kill_at: datetime) -> None:
        """Ask it to end, after its hook, and kill it at *kill_at*; asked again, hurry at most."""
        if self._pending_kill is not None:
            if kill_at < self._pending_kill[0]:
                self._schedule_kill(kill_at)
            return
        self._stop_probes()
        words = f"Stopping container {self.run.container_name}"
        self._context.node.record_event(self._context.pod(), "Killing", words)
        if self._hook is not None and kill_at > self._time.now():
            self._schedule_kill(kill_at, extra_seconds=_MIN_GRACE_AFTER_HOOK)
            self._context.spawn(self._terminate_after_hook(kill_at))
        else:
            self._process.terminate()
            self._schedule_kill(kill_at)

    def _schedule_kill(self, kill_at: datetime, *, extra_seconds: float = 0.0) -> None:
        """Kill it so many seconds *later* than was asked for, and not before."""
        if self._pending_kill is not None:
            self._pending_kill[1].cancel()
        left = max(self._seconds_until(kill_at), 0.0) + extra_seconds
        kill = self._process.kill
        self._pending_kill = (
            kill_at,
            self._clock.call_later(left, lambda: self._context.spawn(kill())),
        )

    def _seconds_until(self, timestamp: datetime) -> float:
        return (timestamp - self._time.now()).total_seconds()

    async def _terminate_after_hook(self, kill_at: datetime) -> None:
        await self._run_pre_stop_hook(self._seconds_until(kill_at))
        if self._finished or self._pending_kill is None:
            return
        if self._pending_kill[0] == kill_at:  # else it has to end sooner, and is asked all the same
            short = _MIN_GRACE_AFTER_HOOK - self._seconds_until(kill_at)
            self._schedule_kill(kill_at, extra_seconds=min(max(short, 0.0), _MIN_GRACE_AFTER_HOOK))
        self._process.terminate()

    async def _run_pre_stop_hook(self, timeout: float) -> None:
        """Carry out the hook before the stop, if there is one, for so long at most."""
        hook = self._hook
        if hook is None or timeout <= 0:
            return
        try:
            await run_handler(hook, self._context.handler_target(self.run), timeout=timeout)
        except HandlerError as error:
            self._context.record_event("FailedPreStopHook", f"PreStopHook failed: {error}")

    async def terminate(self, grace_period: float) -> None:
        """Ask it to end, kill it after *grace* seconds, and wait until it is gone."""
        self._stop_probes()
        most = grace_period + (_MIN_GRACE_AFTER_HOOK if self._hook is not None else 0.0)
        kill = asyncio.create_task(self._kill_after(most))
        try:
            await self._run_pre_stop_hook(grace_period)
            self._process.terminate()
            await self._process.wait()
        finally:
            kill.cancel()

    async def _kill_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self._process.kill()
