"""Worker of one run of a container: hooks, probes, memory limit, stop, exit."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ....model.pod_resources import Resources
from ..runtime import cgroups, oom, usage
from ..runtime.images import is_placeholder
from ..runtime.runs import ContainerProcess, ExitRecord, RunDir
from ..state.core_types import Container, Pod
from ..state.resizes import needs_restart
from ..state.status import RESIZE, SIGKILL_EXIT_CODE, Exited, ProbeFailed, ProbeResult, Started
from .handlers import HandlerError, HandlerTarget, run_handler
from .launch_spec import termination_message
from .node_context import NodeContext
from .prober import Prober, effective_container
from .records import PodDir
from .termination import ContainerTermination


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """Dependencies of the container workers of one pod."""

    node: NodeContext
    pod_dir: PodDir
    pod: Callable[[], Pod]
    """Returns the current pod."""

    report: Callable[[ProbeResult | ProbeFailed], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Starts a task whose failure fails the pod worker."""

    def record_event(self, reason: str, message: str) -> None:
        """Record an event about the pod."""
        self.node.record_event(self.pod(), reason, message, warning=reason != "Killing")

    def handler_target(self, run: RunDir) -> HandlerTarget:
        """Return the target of the run's hooks and probes."""
        pod = self.pod()
        ip = self.node.ip_of(pod)
        container = effective_container(pod.containers[run.container_name], run)
        return HandlerTarget(container=container, run=run, ip=ip, clock=self.node.clock)

    def prober(self, run: RunDir) -> Prober:
        """Return the prober of the run."""
        return Prober(
            pod=self.pod(),
            target=self.handler_target(run),
            time=self.node.steady_time,
            report=self.report,
            record_event=self.record_event,
        )

    def container_id(self, run: RunDir) -> str:
        """Return the container id of the run, without its scheme."""
        return f"{self.pod().metadata.uid}-{run.container_name}-{run.path.name}"

    def started_event(
        self, run: RunDir, at: datetime, *, has_started: bool = False, ready: bool = False
    ) -> Started:
        """Return the event of the run's start.

        *has_started* and *ready* are set if the pod's status already shows so.
        """
        prober, image = self.prober(run), run.image()
        container = self.pod().containers[run.container_name]
        return Started(
            run.container_name,
            at,
            self.container_id(run),
            started=has_started or prober.is_started_immediately,
            ready=ready or prober.is_ready_immediately,
            steady_at=self.node.steady_time.from_wall(at),
            placeholder=image is None and is_placeholder(container, run.argv()),
            image=image.name if image else "",
            image_id=image.image_id if image else "",
            volume_images=run.volume_image_ids(),
            resources=run.resources,
        )

    def exited_event(self, run: RunDir, record: ExitRecord, *, steady_at: datetime) -> Exited:
        """Return the event of the run's exit; *steady_at* is its steady time."""
        container, log_file = self.pod().containers[run.container_name], self.pod_dir.log_path(run)
        failed = record.code != 0
        message = record.message or termination_message(container, run, log_file, failed=failed)
        killed = record.code == SIGKILL_EXIT_CODE and (
            oom.was_oom_killed(run) or cgroups.oom_killed(run.cgroup)
        )
        reason = oom.REASON if killed else record.reason
        return Exited(
            run.container_name,
            record.finished_at,
            record.code,
            reason,
            message,
            steady_at,
            restart=run.restart_reason,
        )


class ResizeError(Exception):
    """The resources of a container cannot be changed now."""


class ContainerWorker:
    """Probes, memory limit, stop and exit of one run, from its start or adoption on."""

    def __init__(self, context: PodContext, process: ContainerProcess) -> None:
        self.run = process.run_dir
        self._context = context
        self._process = process
        self._probes: asyncio.Task[None] | None = None
        self._finished = False
        self._cgroup = self.run.cgroup
        self._is_memory_limited = cgroups.limits_memory(self._cgroup)
        """Whether the kernel enforces the memory limit."""
        container = context.pod().containers[self.run.container_name]
        known = self.run.resources
        self._resources = container.resources if known is None else known
        self._pre_stop = container.lifecycle.pre_stop
        self._termination = ContainerTermination(
            process,
            clock=context.node.clock,
            time=context.node.steady_time,
            spawn=context.spawn,
            pre_stop=None if self._pre_stop is None else self._run_pre_stop_hook,
        )

    @property
    def log_file(self) -> Path:
        """The file of the run's output."""
        return self._context.pod_dir.log_path(self.run)

    def start_probes(self, *, has_started: bool) -> None:
        """Run the postStart hook and the probes, if any; *has_started*: only those that follow."""
        prober = self._context.prober(self.run)
        if prober.has_probes:
            self._probes = self._context.spawn(prober.run(started=has_started))

    async def wait(self) -> Exited:
        """Wait for the exit of the run, and return its event."""
        record = await self._process.wait()
        self._finish()
        self._context.node.client_commands.kill(self.run)
        steady_at = self._context.node.steady_time.now()
        exited = self._context.exited_event(self.run, record, steady_at=steady_at)
        if self._cgroup:
            await asyncio.to_thread(cgroups.remove_group, Path(self._cgroup))
        return exited

    async def wait_exited(self) -> None:
        """Wait until no process of the run is left."""
        await self._process.wait()

    def detach(self) -> None:
        """Stop watching the run, which keeps running."""
        self._finish()
        self._process.detach()

    def _finish(self) -> None:
        self._finished = True
        self._stop_probes()
        self._termination.cancel()

    def _stop_probes(self) -> None:
        if self._probes is not None:
            self._probes.cancel()

    async def check_memory(self) -> None:
        """Kill the container if it uses more memory than its limit."""
        limit = oom.limit_of(self._resources)
        if limit is None or self._is_memory_limited:
            return
        if not await asyncio.to_thread(oom.is_over_limit, self._pids, limit):
            return
        if not self._finished:
            oom.mark_oom_killed(self.run)
            message = f"Container {self.run.container_name} uses more memory than its limit"
            self._context.record_event("OOMKilling", message)
            self._termination.kill()

    async def resize(self, container: Container) -> bool:
        """Apply the resources of *container*, which differ from those that it runs with.

        A container that must restart for them is stopped: return whether it runs with them.

        Raises:
            ResizeError: they cannot be applied now.
        """
        if self._termination.is_requested:
            return False
        if needs_restart(container, self._resources):
            await asyncio.to_thread(self.run.mark_restart, RESIZE)
            grace_period = timedelta(seconds=self._context.pod().grace_period)
            self.stop(self._context.node.steady_time.now() + grace_period)
            return False
        limit = oom.limit_of(container.resources)
        if limit is not None and limit < (oom.limit_of(self._resources) or limit + 1):
            used = (await self.read_usage()).memory
            if used > limit:
                text = f"attempting to set pod memory limit ({limit}) below current usage ({used})"
                raise ResizeError(text)
        await asyncio.to_thread(self._set_resources, container.resources)
        return True

    def _set_resources(self, resources: Resources) -> None:
        node = self._context.node
        if self._cgroup:
            files = cgroups.limits_of(resources)
            of_pod = cgroups.pod_files(self._context.pod().spec.containers)
            try:
                cgroups.set_limits(node.cgroups, Path(self._cgroup), files, of_pod=of_pod)
            except OSError as error:
                raise ResizeError(f"cannot change its control group: {error}") from error
        self.run.write_resources(resources)
        self._resources = resources
        self._is_memory_limited = cgroups.limits_memory(self._cgroup)

    async def read_usage(self) -> usage.Reading:
        """Return what the container uses."""
        return await asyncio.to_thread(usage.read_processes, self._pids)

    @property
    def _pids(self) -> list[int]:
        """The processes of which those of the container are descendants.

        Commands of clients are no descendants of the shim, and count nevertheless.
        """
        return [self._process.pid, *self._context.node.client_commands.pids(self.run)]

    def stop(self, kill_at: datetime) -> None:
        """Stop the container, killing it at *kill_at*; a repeated call only shortens the time."""
        if not self._termination.is_requested:
            self._stop_probes()
            self._context.record_event("Killing", f"Stopping container {self.run.container_name}")
        self._termination.stop(kill_at)

    async def _run_pre_stop_hook(self, timeout: float) -> None:
        if self._pre_stop is None or timeout <= 0:
            return
        target = self._context.handler_target(self.run)
        try:
            await run_handler(self._pre_stop, target, timeout=timeout)
        except HandlerError as error:
            self._context.record_event("FailedPreStopHook", f"PreStopHook failed: {error}")
