"""The containers of one pod that run: each has its attendant, and all can be ended together."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from ..runtime.runs import ContainerProcess, LaunchSpec, RunDir, start_and_wait_claimed
from ..state import status
from ..state.core_types import Pod
from ..state.environment import ContainerConfigError
from ..state.status import BackOff, Exited, PodState, Started
from .container_worker import ContainerWorker, PodContext
from .launch_spec import LaunchSpecBuilder, log_shows_port_in_use
from .volume_manager import PodVolumes

_PORT_IN_USE_MESSAGE = (
    "A port is taken, says the log. Pods share the machine's network: choose another port, or "
    "listen at the pod's own address (status.podIP), which is"
)
_PLACEHOLDER_MESSAGE = (
    "Container {}: image {} is not pulled, and no program of it was run; a placeholder stands in. "
    "Give a command that is on this machine to run one"
)


class PodContainers:
    """Those of one pod that run.

    *ended* is called with the end of each and the log that it leaves, *started* with the start
    of each that wasn't adopted.
    """

    def __init__(
        self,
        context: PodContext,
        *,
        on_started: Callable[[Started], None],
        on_exited: Callable[[Exited, Path], None],
    ) -> None:
        self._context = context
        self._on_started = on_started
        self._on_exited = on_exited
        self._workers: dict[str, ContainerWorker] = {}
        self._start_lock = asyncio.Lock()
        """Held while a container is being started, so that an end can wait for it."""

        self._closed = False

    @property
    def open_logs(self) -> list[Path]:
        """The logs that are being written."""
        return [attendant.log_file for attendant in self._workers.values()]

    async def start(self, name: str, volumes: PodVolumes) -> None:
        """Start a container, unless no more are to be started.

        Raises:
            ConfigError: it cannot be started as things are.
        """
        context = self._context
        run = context.pod_dir.new_run(name)
        launch = self._build_launch_spec(run, volumes)
        async with self._start_lock:
            if self._closed:
                return
            await asyncio.to_thread(run.prepare, launch)
            pid = await start_and_wait_claimed(run)
            attendant = self._add_worker(ContainerProcess(run, pid, clock=context.node.clock))
        started = context.started_event(run, context.node.clock.now())
        self._on_started(started)
        context.node.record_event(context.pod(), "Started", f"Started container {name}")
        if started.placeholder:
            image = context.pod().containers[name].image
            context.record_event("Placeholder", _PLACEHOLDER_MESSAGE.format(name, image))
        attendant.start_probes(has_started=started.started)

    def _build_launch_spec(self, run: RunDir, volumes: PodVolumes) -> LaunchSpec:
        context, pod = self._context, self._context.pod()
        launcher = LaunchSpecBuilder(pod, context.node, volumes)
        log_file = context.pod_dir.log_path(run)
        try:
            launch, complaint = launcher.build(pod.containers[run.container_name], run, log_file)
        except OSError as error:
            raise ContainerConfigError(str(error)) from error
        if complaint:
            context.record_event("Failed", f"Error: {complaint}")
        return launch

    def adopt(self, process: ContainerProcess, *, has_started: bool) -> None:
        """Look after what an earlier agent started; *begun*: it is known to have started well."""
        self._add_worker(process).start_probes(has_started=has_started)

    def _add_worker(self, process: ContainerProcess) -> ContainerWorker:
        attendant = ContainerWorker(self._context, process)
        self._workers[process.run_dir.container_name] = attendant
        self._context.spawn(self._wait_for_exit(attendant))
        return attendant

    async def _wait_for_exit(self, worker: ContainerWorker) -> None:
        told = await worker.wait()
        if self._workers.get(told.name) is worker:
            del self._workers[told.name]
        self._on_exited(told, worker.log_file)

    def stop(self, name: str, kill_at: datetime) -> None:
        """Ask a container to end, if it runs, and kill it at *kill_at*."""
        if name in self._workers:
            self._workers[name].stop(kill_at)

    async def check_memory(self) -> None:
        """Kill those that use more memory than they may."""
        for attendant in list(self._workers.values()):
            await attendant.check_memory()

    def close(self) -> None:
        """Start none any more."""
        self._closed = True

    async def stop_all(self) -> None:
        """Stop all in `Pod.stop_order`, each stage with the pod's grace period; after `close`."""
        async with self._start_lock:  # a start in progress finishes first, and is stopped too
            pod = self._context.pod()
        grace_period = timedelta(seconds=pod.grace_period)
        for stage in pod.stop_order:
            running = [self._workers[name] for name in stage if name in self._workers]
            for worker in running:
                worker.stop(self._context.node.steady_time.now() + grace_period)
            await asyncio.gather(*(worker.wait_exited() for worker in running))

    def detach(self) -> None:
        """Look after none any more; they run on."""
        for attendant in self._workers.values():
            attendant.detach()
        self._workers.clear()


def failure_events(
    pod: Pod, state: PodState, exited: Exited, *, log_file: Path, back_off: BackOff
) -> Iterator[tuple[str, str]]:
    """Why a container may have failed, and that it waits before it runs again: (reason, words)."""
    if exited.code and log_shows_port_in_use(log_file):
        yield "PortTaken", f"{_PORT_IN_USE_MESSAGE} {state.pod_ip}"
    after_it = status.apply(state, exited, back_off).of(exited.name)
    again = after_it.exit and status.should_restart(pod, pod.containers[exited.name], after_it.exit)
    if again and not state.termination and back_off.delay(after_it.consecutive_exits) > 0:
        meta = pod.metadata
        where = f"in pod {meta.name}_{meta.namespace}({meta.uid})"
        yield "BackOff", f"Back-off restarting failed container {exited.name} {where}"
