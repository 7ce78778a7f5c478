"""PostStart hook and probes of one run of a container.

Results are reported as events of `status`; `pod_actions` decides what follows from them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from ....machinery.clock import SteadyClock
from ..runtime.images import is_placeholder
from ..runtime.runs import RunDir
from ..state.core_types import Container, Lifecycle, Pod, Probe
from ..state.status import ProbeFailed, ProbeResult
from .handlers import HandlerError, HandlerTarget, run_handler


def effective_container(container: Container, run: RunDir) -> Container:
    """Return *container*, without hooks and probes if it runs a placeholder."""
    if not is_placeholder(container, run.argv()):
        return container
    return msgspec.structs.replace(
        container,
        startup_probe=None,
        liveness_probe=None,
        readiness_probe=None,
        lifecycle=Lifecycle(),
    )


EventFunc = Callable[[str, str], None]
"""Records a warning event with reason and message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """Probes one run."""

    pod: Pod
    target: HandlerTarget
    time: SteadyClock
    report: Callable[[ProbeResult | ProbeFailed], None]
    record_event: EventFunc

    @property
    def is_started_immediately(self) -> bool:
        """Whether it has neither a startup probe nor a postStart hook."""
        container = self.target.container
        return container.startup_probe is None and container.lifecycle.post_start is None

    @property
    def is_ready_immediately(self) -> bool:
        """Whether it has no readiness probe, either."""
        return self.is_started_immediately and self.target.container.readiness_probe is None

    @property
    def has_probes(self) -> bool:
        """Whether there is a hook or probe to run."""
        return not self.is_ready_immediately or self.target.container.liveness_probe is not None

    async def run(self, *, started: bool) -> None:
        """Probe until cancelled, or until the container has to be stopped.

        *started*: hook and startup probe succeeded under an earlier agent.
        """
        container = self.target.container
        if not started:
            if not await self._run_startup():
                return
            ready = container.readiness_probe is None
            self.report(ProbeResult(container.name, started=True, ready=ready))
        async with asyncio.TaskGroup() as group:
            if container.readiness_probe:
                group.create_task(self._run_readiness(container.readiness_probe))
            if container.liveness_probe:
                group.create_task(self._run_liveness(container.liveness_probe))

    async def _run_startup(self) -> bool:
        """Run the postStart hook, then the startup probe; return whether both succeeded."""
        container = self.target.container
        hook = container.lifecycle.post_start
        if hook is not None:
            try:
                await run_handler(hook, self.target, timeout=None)
            except HandlerError as error:
                self.record_event("FailedPostStartHook", f"PostStartHook failed: {error}")
                self._report_failure(None)
                return False
        if container.startup_probe is None:
            return True
        return await self._probe_until(container.startup_probe, "Startup", until_success=True)

    async def _run_liveness(self, probe: Probe) -> None:
        await self._probe_until(probe, "Liveness")

    async def _probe_until(self, probe: Probe, kind: str, *, until_success: bool = False) -> bool:
        """Probe up to the failure threshold, or with *until_success* to the first success."""
        await self._sleep(probe.initial_delay_seconds)
        failures = 0
        while True:
            success = await self._probe_once(probe, kind)
            if success and until_success:
                return True
            failures = 0 if success else failures + 1
            if failures >= probe.failure_threshold:
                name = self.target.container.name
                message = f"Container {name} failed {kind.lower()} probe, will be restarted"
                self.record_event("Killing", message)
                self._report_failure(probe.termination_grace_period_seconds)
                return False
            await self._sleep(probe.period_seconds)

    async def _run_readiness(self, probe: Probe) -> None:
        name = self.target.container.name
        await self._sleep(probe.initial_delay_seconds)
        last, streak = None, 0
        while True:
            success = await self._probe_once(probe, "Readiness")
            streak = streak + 1 if success == last else 1
            last = success
            if streak >= (probe.success_threshold if success else probe.failure_threshold):
                self.report(ProbeResult(name, started=True, ready=success))
            await self._sleep(probe.period_seconds)

    async def _probe_once(self, probe: Probe, kind: str) -> bool:
        try:
            await run_handler(probe, self.target, timeout=probe.timeout_seconds)
        except HandlerError as error:
            self.record_event("Unhealthy", f"{kind} probe failed: {error}")
            return False
        return True

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self.target.clock.sleep(seconds)

    def _report_failure(self, grace: int | None) -> None:
        seconds = self.pod.grace_period if grace is None else grace
        kill_at = self.time.now() + timedelta(seconds=seconds)
        self.report(ProbeFailed(self.target.container.name, kill_at))
