"""The containers of one pod that run: each has its attendant, and all can be ended together."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from ..runtime.runs import Launch, Process, RunFolder, start_claimed
from ..state import status
from ..state.core_types import Pod
from ..state.environment import ConfigError
from ..state.status import BackOff, Exited, PodState, Started
from .container_worker import Attendant, PodContext
from .launch_spec import Launcher, found_port_taken
from .volume_manager import Prepared

_PORT_NOTE = (
    "A port is taken, says the log. Pods share the machine's network: choose another port, or "
    "listen at the pod's own address (status.podIP), which is"
)
_PLACEHOLDER_NOTE = (
    "Container {}: image {} is not pulled, and no program of it was run; a placeholder stands in. "
    "Give a command that is on this machine to run one"
)


class Containers:
    """Those of one pod that run.

    *ended* is called with the end of each and the log that it leaves, *started* with the start
    of each that wasn't adopted.
    """

    def __init__(
        self,
        context: PodContext,
        *,
        started: Callable[[Started], None],
        ended: Callable[[Exited, Path], None],
    ) -> None:
        self._context = context
        self._started = started
        self._ended = ended
        self._attendants: dict[str, Attendant] = {}
        self._starting = asyncio.Lock()
        """Held while a container is being started, so that an end can wait for it."""

        self._closed = False

    @property
    def open_logs(self) -> list[Path]:
        """The logs that are being written."""
        return [attendant.log_file for attendant in self._attendants.values()]

    async def start(self, name: str, prepared: Prepared) -> None:
        """Start a container, unless no more are to be started.

        Raises:
            ConfigError: it cannot be started as things are.
        """
        context = self._context
        run = context.folder.new_run(name)
        launch = self._launch(run, prepared)
        async with self._starting:
            if self._closed:
                return
            await asyncio.to_thread(run.prepare, launch)
            pid = await start_claimed(run)
            attendant = self._attend(Process(run, pid, clock=context.machine.clock))
        started = context.started(run, context.machine.clock.now())
        self._started(started)
        context.machine.tell(context.pod(), "Started", f"Started container {name}")
        if started.placeholder:
            image = context.pod().containers[name].image
            context.warn("Placeholder", _PLACEHOLDER_NOTE.format(name, image))
        attendant.watch_over(begun=started.started)

    def _launch(self, run: RunFolder, prepared: Prepared) -> Launch:
        context, pod = self._context, self._context.pod()
        launcher = Launcher(pod, context.machine, prepared)
        log_file = context.folder.log_of(run)
        try:
            launch, complaint = launcher.launch(pod.containers[run.container], run, log_file)
        except OSError as error:
            raise ConfigError(str(error)) from error
        if complaint:
            context.warn("Failed", f"Error: {complaint}")
        return launch

    def adopt(self, process: Process, *, begun: bool) -> None:
        """Look after what an earlier agent started; *begun*: it is known to have started well."""
        self._attend(process).watch_over(begun=begun)

    def _attend(self, process: Process) -> Attendant:
        attendant = Attendant(self._context, process)
        self._attendants[process.folder.container] = attendant
        self._context.spawn(self._see_end(attendant))
        return attendant

    async def _see_end(self, attendant: Attendant) -> None:
        told = await attendant.ended()
        if self._attendants.get(told.name) is attendant:
            del self._attendants[told.name]
        self._ended(told, attendant.log_file)

    def stop(self, name: str, kill_at: datetime) -> None:
        """Ask a container to end, if it runs, and kill it at *kill_at*."""
        if name in self._attendants:
            self._attendants[name].stop(kill_at)

    async def check_memory(self) -> None:
        """Kill those that use more memory than they may."""
        for attendant in list(self._attendants.values()):
            await attendant.check_memory()

    def close(self) -> None:
        """Start none any more."""
        self._closed = True

    async def end_all(self) -> None:
        """End them in order, each with the pod's grace, when none is started any more."""
        async with self._starting:  # what is half started has to be ended too
            pod = self._context.pod()
        mains = [c.name for c in pod.spec.containers]
        for names in [mains, *([c.name] for c in reversed(pod.spec.init_containers))]:
            running = [self._attendants[name] for name in names if name in self._attendants]
            await asyncio.gather(*(attendant.end(float(pod.grace)) for attendant in running))

    def let_go(self) -> None:
        """Look after none any more; they run on."""
        for attendant in self._attendants.values():
            attendant.let_go()
        self._attendants.clear()


def remarks(
    pod: Pod, state: PodState, told: Exited, *, log_file: Path, back_off: BackOff
) -> Iterator[tuple[str, str]]:
    """Why a container may have failed, and that it waits before it runs again: (reason, words)."""
    if told.code and found_port_taken(log_file):
        yield "PortTaken", f"{_PORT_NOTE} {state.pod_ip}"
    after_it = status.apply(state, told, back_off).of(told.name)
    again = after_it.exit and status.restarts(pod, pod.containers[told.name], after_it.exit)
    if again and not state.ending and back_off.delay(after_it.streak) > 0:
        meta = pod.metadata
        where = f"in pod {meta.name}_{meta.namespace}({meta.uid})"
        yield "BackOff", f"Back-off restarting failed container {told.name} {where}"
