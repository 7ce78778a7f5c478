"""Access of clients to the pods of a node: logs, commands, and forwarded ports."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...kube.informer.informer import Informer
from ...machinery.clock import Clock
from .pods.attachments import Attachment
from .pods.client_commands import ClientCommands
from .pods.node_context import NodeContext
from .pods.records import PodDir
from .runtime.listeners import listening_address, refused
from .runtime.runs import RunDir
from .server import LogUnavailableError
from .state.core_types import Pod
from .streaming.command_streams import Command, StreamsRejectedError
from .streaming.port_forward import Connect

_FORWARD_BUFFER = 64 * 1024


class PodAccess:
    """Finds logs, containers and ports by the keys of pods; see `LogSource` and `StreamSource`."""

    def __init__(
        self,
        pods: Informer[Pod],
        commands: ClientCommands,
        data_dir: Path,
        *,
        clock: Clock,
        context: Callable[[], NodeContext | None],
    ) -> None:
        """*context* returns the context of the pods, once the node is set up."""
        self._pods = pods
        self._commands = commands
        self._data_dir = data_dir
        self._clock = clock
        self._context = context

    def find_log(self, pod: str, container: str, *, previous: bool) -> "_RunLog":
        """Return the log of a container; see `LogSource`."""
        found = self._pods.get(pod)
        if found is None:
            raise LogUnavailableError(404, f'pods "{pod.partition("/")[2]}" not found')
        if container not in found.containers:
            raise LogUnavailableError(400, f"container {container} is not valid for pod {pod}")
        pod_dir = PodDir.of(self._data_dir, found)
        name = found.metadata.name
        runs = [run for run in pod_dir.runs(container) if run.is_valid]
        if previous:
            if runs and runs[-1].is_finished and found.waits_to_restart(container):
                return _RunLog(pod_dir.log_path(runs[-1]), runs[-1])
            if len(runs) < 2:
                message = f'previous terminated container "{container}" in pod "{name}" not found'
                raise LogUnavailableError(400, message)
            return _RunLog(pod_dir.log_path(runs[-2]), runs[-2])
        if not runs:
            message = f'container "{container}" in pod "{name}" is waiting to start: '
            raise LogUnavailableError(400, message + "ContainerCreating")
        return _RunLog(pod_dir.log_path(runs[-1]), runs[-1])

    def find_exec(self, pod: str, container: str, argv: Sequence[str]) -> Command:
        """Return what runs *argv* in a container; see `StreamSource`."""
        run = self._running(pod, container)
        return lambda streams: self._commands.execute(run, argv, streams)

    def find_attach(self, pod: str, container: str) -> Command:
        """Return what attaches to a container; see `StreamSource`."""
        found, run = self._find_pod(pod), self._running(pod, container)
        log_path = PodDir.of(self._data_dir, found).log_path(run)
        return Attachment(
            container=found.containers[container], run=run, log=log_path, clock=self._clock
        ).serve

    def find_port_forward(self, pod: str) -> Connect:
        """Return what connects to a port of a pod; see `StreamSource`."""
        found, context = self._find_pod(pod), self._context()
        pod_dir = PodDir.of(self._data_dir, found)
        if context is None or not pod_dir.is_busy:
            raise StreamsRejectedError(500, f"unable to do port forwarding: {pod} is not running")
        ip, uid = context.ip_of(found), found.metadata.uid
        network = context.network

        async def connect_in_namespace(
            port: int,
        ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            connected = await asyncio.to_thread(network.connect, uid, port)
            connected.setblocking(False)
            return await asyncio.open_connection(sock=connected, limit=_FORWARD_BUFFER)

        if context.namespace_of(found):
            return connect_in_namespace

        async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            runs = [run for name in pod_dir.containers() for run in pod_dir.runs(name)[-1:]]
            pids = [pid for run in runs for pid in (run.shim_pid(), *self._commands.pids(run))]
            roots = [pid for pid in pids if pid is not None]
            address = await asyncio.to_thread(listening_address, roots, port, pod_ip=ip)
            if address is None:
                raise refused(port, ip)
            return await asyncio.open_connection(address, port, limit=_FORWARD_BUFFER)

        return connect

    def _find_pod(self, key: str) -> Pod:
        found = self._pods.get(key)
        if found is None:
            raise StreamsRejectedError(404, "pod does not exist")
        return found

    def _running(self, pod: str, container: str) -> RunDir:
        """Return the run of a running container.

        Raises:
            StreamsRejectedError: it does not run.
        """
        found = self._find_pod(pod)
        runs = PodDir.of(self._data_dir, found).runs(container)
        if container not in found.containers or not runs or runs[-1].shim_pid() is None:
            raise StreamsRejectedError(500, f'container not found ("{container}")')
        return runs[-1]


@dataclass(frozen=True, slots=True)
class _RunLog:
    """The log of one run."""

    path: Path
    run: RunDir

    def is_finished(self) -> bool:
        """Return whether nothing more will be written."""
        return self.run.is_finished
