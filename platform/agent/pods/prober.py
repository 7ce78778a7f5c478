"""Watching over one run of a container: its hook after the start, and its probes.

What is found is told as events of `status`; what is to be done about it `lifecycle` decides.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from ...machinery.clock import SteadyTime
from ..runtime.images import is_placeholder
from ..runtime.runs import RunFolder
from ..state.core_types import Container, Lifecycle, Pod, Probe
from ..state.status import Checked, Unwell
from .handlers import HandlerError, Target, carry_out


def as_it_runs(container: Container, run: RunFolder) -> Container:
    """What of *container* can be asked: a program that stands in for a server answers nothing."""
    if not is_placeholder(container, run.argv()):
        return container
    return msgspec.structs.replace(
        container,
        startup_probe=None,
        liveness_probe=None,
        readiness_probe=None,
        lifecycle=Lifecycle(),
    )


Tell = Callable[[str, str], None]
"""Takes reason and message of a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """Looks after one run."""

    pod: Pod
    target: Target
    time: SteadyTime
    report: Callable[[Checked | Unwell], None]
    tell: Tell

    @property
    def starts_well(self) -> bool:
        """Nothing has to be waited for after the start."""
        container = self.target.container
        return container.startup_probe is None and container.lifecycle.post_start is None

    @property
    def is_ready_at_once(self) -> bool:
        """Nobody asks whether it is ready."""
        return self.starts_well and self.target.container.readiness_probe is None

    @property
    def is_needed(self) -> bool:
        """There is anything to watch."""
        return not self.is_ready_at_once or self.target.container.liveness_probe is not None

    async def run(self, *, started: bool) -> None:
        """Watch until cancelled, or until the container has to be stopped.

        *started* says that an earlier agent saw it start well.
        """
        container = self.target.container
        if any(probe.grpc for probe in self._probes()):
            self.tell("ProbeSkipped", "gRPC probes are not carried out here, and count as passed")
        if not started:
            if not await self._begin():
                return
            ready = container.readiness_probe is None
            self.report(Checked(container.name, started=True, ready=ready))
        async with asyncio.TaskGroup() as group:
            if container.readiness_probe:
                group.create_task(self._mind_readiness(container.readiness_probe))
            if container.liveness_probe:
                group.create_task(self._mind_life(container.liveness_probe))

    def _probes(self) -> Iterator[Probe]:
        one = self.target.container
        yield from filter(None, (one.startup_probe, one.liveness_probe, one.readiness_probe))

    async def _begin(self) -> bool:
        """The hook, then the startup probe; whether both went well."""
        container = self.target.container
        hook = container.lifecycle.post_start
        if hook is not None:
            try:
                await carry_out(hook, self.target, timeout=None)
            except HandlerError as error:
                self.tell("FailedPostStartHook", f"PostStartHook failed: {error}")
                self._stop(None)
                return False
        if container.startup_probe is None:
            return True
        return await self._mind(container.startup_probe, "Startup", until_well=True)

    async def _mind_life(self, probe: Probe) -> None:
        await self._mind(probe, "Liveness")

    async def _mind(self, probe: Probe, what: str, *, until_well: bool = False) -> bool:
        """Probe until it failed too often, or with *until_well* succeeded; whether it is well."""
        await self._pause(probe.initial_delay_seconds)
        failures = 0
        while True:
            well = await self._ask(probe, what)
            if well and until_well:
                return True
            failures = 0 if well else failures + 1
            if failures >= probe.failure_threshold:
                name = self.target.container.name
                words = f"Container {name} failed {what.lower()} probe, will be restarted"
                self.tell("Killing", words)
                self._stop(probe.termination_grace_period_seconds)
                return False
            await self._pause(probe.period_seconds)

    async def _mind_readiness(self, probe: Probe) -> None:
        name = self.target.container.name
        await self._pause(probe.initial_delay_seconds)
        last, streak = None, 0
        while True:
            well = await self._ask(probe, "Readiness")
            streak = streak + 1 if well == last else 1
            last = well
            if streak >= (probe.success_threshold if well else probe.failure_threshold):
                self.report(Checked(name, started=True, ready=well))
            await self._pause(probe.period_seconds)

    async def _ask(self, probe: Probe, what: str) -> bool:
        if probe.grpc is not None:
            return True
        try:
            await carry_out(probe, self.target, timeout=probe.timeout_seconds)
        except HandlerError as error:
            self.tell("Unhealthy", f"{what} probe failed: {error}")
            return False
        return True

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self.target.clock.sleep(seconds)

    def _stop(self, grace: int | None) -> None:
        seconds = self.pod.grace if grace is None else grace
        kill_at = self.time.now() + timedelta(seconds=seconds)
        self.report(Unwell(self.target.container.name, kill_at))
