"""Running containers of one pod: start, adoption, stop."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from ....model.pod_resources import Resources
from ..images.credentials import Keyring
from ..images.manager import RunMode
from ..images.puller import ImagePullingError, Pull
from ..images.store import StoredImage
from ..runtime import cgroups, image_run
from ..runtime.runs import (
    ContainerProcess,
    ExitRecord,
    IsolationLevel,
    JoinedProcess,
    LaunchSpec,
    RunDir,
)
from ..runtime.shim import HOST_CHANGED, START_ERROR
from ..state import status
from ..state.core_types import Pod, Volume
from ..state.environment import ContainerConfigError, SecurityContextError
from ..state.status import BackOff, Exited, PodState, Started
from ..state.sysctls import Namespace, sysctls_of
from .container_worker import ContainerWorker, PodContext
from .handlers import HandlerError, enter_request
from .image_spec import ImageSpecBuilder
from .launch_spec import log_shows_port_in_use
from .pull_secrets import pull_keyring
from .volume_manager import PodVolumes

_MAX_PLANS = 10
"""Plans of a container's root in a row that may be outdated when they are executed."""

_PORT_IN_USE_MESSAGE = (
    "The log reports that a port is already in use. Pods run in the host's network: start the "
    "cluster with --pod-network=namespaces, choose another port, or listen on the pod's own "
    "address (status.podIP), which is"
)
_NOT_SHARED_MESSAGE = (
    "Container {} does not see the processes of {}: containers share no process namespace unless "
    "the agent runs as root"
)
_PLACEHOLDER_MESSAGE = (
    "Container {}: image {} is not stored, and a placeholder runs instead of its program. "
    "Set a command that exists on this machine to run one"
)


_Images = dict[str, StoredImage | Pull | None]
"""The image that a container runs, by the name "", and those of volumes by their names."""


class PodContainers:
    """The running containers of one pod.

    *on_started* is called for each container that this agent starts, *on_exited* with the exit of
    each container and its log file, *on_pulled* with the name of a container whose image was
    pulled.
    """

    def __init__(
        self,
        context: PodContext,
        *,
        on_started: Callable[[Started], None],
        on_exited: Callable[[Exited, Path], None],
        on_pulled: Callable[[str], None],
    ) -> None:
        self._context = context
        self._on_pulled = on_pulled
        self._pulls: dict[str, _Images] = {}
        """Images of containers that wait for one of them, by container."""

        self._on_started = on_started
        self._on_exited = on_exited
        self._workers: dict[str, ContainerWorker] = {}
        self._start_lock = asyncio.Lock()
        """Held during the start of a container, so that `stop_all` can wait for it."""

        self._closed = False

    @property
    def open_logs(self) -> list[Path]:
        """The log files of the running containers."""
        return [worker.log_file for worker in self._workers.values()]

    async def start(self, name: str, volumes: PodVolumes) -> None:
        """Start a container, unless `close` was called.

        Raises:
            ContainerConfigError: its configuration is invalid or unsupported.
            ImagePullingError: its image is being pulled.
        """
        context = self._context
        async with self._start_lock:
            if self._closed:
                return
            process, exit_record, error_message = await self._start_process(name, volumes)
            worker = self._add_worker(process)
        run = process.run_dir
        started = context.started_event(run, context.node.clock.now())
        self._on_started(started)
        self._record_start(run, exit_record, error_message)
        if started.placeholder:
            image = context.pod().containers[name].image
            context.record_event("Placeholder", _PLACEHOLDER_MESSAGE.format(name, image))
        worker.start_probes(has_started=started.started)

    def _record_start(self, run: RunDir, record: ExitRecord | None, error_message: str) -> None:
        """Record whether the program was started; *error_message*: why it is not found, if so."""
        context, name = self._context, run.container_name
        if record is None or record.reason != START_ERROR:
            context.node.record_event(context.pod(), "Started", self._started_message(run))
            return
        why = error_message or f"failed to start container {name}: {record.message}"
        context.record_event("Failed", f"Error: {why}")

    async def _images_of(self, name: str) -> dict[str, StoredImage | None]:
        """Return the image that a container runs, by the name "", and those of volumes by theirs.

        The image that it runs is ``None`` for programs of the machine.

        Raises:
            ImagePullingError: one is being pulled; *on_pulled* is called afterwards.
            ContainerConfigError: the container must have one, and cannot.
        """
        found = self._pulls.pop(name, None)
        if found is None:
            found = {"": await self._find_image(name)}
            for volume in self._image_volumes(name):
                found[volume.name] = await self._find_image(name, volume)
            for each in found.values():
                if isinstance(each, Pull):
                    each.task.add_done_callback(lambda _: self._on_pulled(name))
        if any(isinstance(each, Pull) and not each.task.done() for each in found.values()):
            self._pulls[name] = found
            raise ImagePullingError
        return {
            volume: each.result() if isinstance(each, Pull) else each
            for volume, each in found.items()
        }

    def _image_volumes(self, name: str) -> list[Volume]:
        """Return the volumes with the files of images that a container mounts."""
        pod = self._context.pod()
        mounted = {mount.name for mount in pod.containers[name].volume_mounts}
        return [each for each in pod.spec.volumes if each.image and each.name in mounted]

    async def _find_image(
        self, name: str, volume: Volume | None = None
    ) -> StoredImage | Pull | None:
        context = self._context
        pod, node = context.pod(), context.node

        def record(reason: str, message: str, warning: bool) -> None:
            node.record_event(pod, reason, message, warning=warning)

        async def keyring() -> Keyring:
            return await pull_keyring(node.client, pod, record)

        if volume is not None:
            return await node.images.image_of_volume(volume, keyring=keyring, record=record)
        return await node.images.image_of(pod.containers[name], keyring=keyring, record=record)

    def _started_message(self, run: RunDir) -> str:
        message = f"Started container {run.container_name}"
        if run.image() is None and self._context.node.images.mode is RunMode.AUTO:
            image = self._context.pod().containers[run.container_name].image
            return f"{message} as a process of this machine, without its image {image}"
        return message

    async def _start_process(
        self, name: str, volumes: PodVolumes
    ) -> tuple[ContainerProcess, ExitRecord | None, str]:
        """Start the shim of a new run; if the host changed since the plan, of another one.

        Returns its process, its exit record if it has exited already, and an error message if its
        program is not found.

        Raises:
            ContainerConfigError: as `start`, or the host changed in each attempt.
        """
        message = ""
        images = await self._images_of(name)
        image = images.pop("")
        if runs := self._context.pod_dir.runs(name):
            await asyncio.to_thread(self._clear, runs)
        for _ in range(_MAX_PLANS):
            run = self._context.pod_dir.new_run(name)
            launch, error_message = self._build_launch_spec(run, volumes, image)
            launch = await self._with_target(name, launch)
            launch = self._with_volume_images(run, launch, volumes, images)
            await asyncio.to_thread(self._prepare, run, launch)
            shim = await self._context.node.shims.start(run)
            process = ContainerProcess(run, shim, clock=self._context.node.clock)
            record = run.exit_record()
            if record is None or record.reason != HOST_CHANGED:
                return process, record, error_message
            message = (await process.wait()).message
        raise ContainerConfigError(f"the sandbox cannot be set up: {message}")

    def _clear(self, runs: Sequence[RunDir]) -> None:
        """Remove what earlier runs of a container have left, and the next one does not need."""
        self._context.pod_dir.remove_old_logs(runs)
        image_run.clear([run.path for run in runs if run.is_finished])

    def _prepare(self, run: RunDir, launch: LaunchSpec) -> None:
        """Create the control group of a run, and write its launch spec.

        Raises:
            ContainerConfigError: the group cannot be created.
        """
        node, pod = self._context.node, self._context.pod()
        container = pod.containers[run.container_name]
        files = cgroups.limits_of(container.resources, max_processes=launch.max_processes)
        name = f"{run.container_name}-{run.path.name}"
        try:
            of_pod = cgroups.pod_files(pod.spec.containers)
            group = cgroups.create(node.cgroups, pod.metadata.uid, name, files, of_pod=of_pod)
        except OSError as error:
            raise ContainerConfigError(f"cannot create its control group: {error}") from error
        network = node.namespace_of(pod)
        sysctls = sysctls_of(pod, Namespace.IPC) if node.sets_ipc_sysctls else ()
        given = replace(launch, cgroup=group, network=network, sysctls=sysctls)
        node.images.prepare(run, given)

    async def _with_target(self, name: str, launch: LaunchSpec) -> LaunchSpec:
        """Return *launch* with the pid namespace of the target of an ephemeral container, if any.

        Raises:
            ContainerConfigError: the target does not run.
        """
        context = self._context
        target = context.pod().containers[name].target_container_name
        if not target or launch.isolation is IsolationLevel.PLAIN:
            return launch
        runs = context.pod_dir.runs(target)
        try:
            found = await enter_request(runs[-1], ()) if runs else None
        except HandlerError:
            found = None
        if found is None or runs[-1].shim_pid() is None:
            raise ContainerConfigError(f"the target container {target} is not running")
        own = launch.ids.base is None or launch.isolation is not IsolationLevel.UNSHARE
        if own or found["start"] is None:
            context.record_event("NotShared", _NOT_SHARED_MESSAGE.format(name, target))
            return launch
        return replace(launch, joined=JoinedProcess(found["pid"], found["start"]))

    def _with_volume_images(
        self,
        run: RunDir,
        launch: LaunchSpec,
        volumes: PodVolumes,
        images: Mapping[str, StoredImage | None],
    ) -> LaunchSpec:
        """Return *launch* with the images of volumes, by the names of these."""
        manager = self._context.node.images
        mounted = [
            image_run.volume_image(
                run.path,
                volumes.volumes[name].path,
                manager.run_image(image, working_dir="/", read_only=True),
            )
            for name, image in images.items()
            if image is not None
        ]
        return replace(launch, volume_images=tuple(mounted))

    def _build_launch_spec(
        self, run: RunDir, volumes: PodVolumes, image: StoredImage | None
    ) -> tuple[LaunchSpec, str]:
        """Return the launch spec, and an error message if its program is not found."""
        context, pod = self._context, self._context.pod()
        builder = ImageSpecBuilder(pod, context.node, volumes)
        container, log_file = pod.containers[run.container_name], context.pod_dir.log_path(run)
        try:
            if image is None:
                return builder.build(container, run, log_file)
            return builder.build_of_image(container, run, log_file, image=image), ""
        except SecurityContextError as error:
            if container not in pod.spec.ephemeral_containers:
                raise
            # It can be neither changed nor deleted, and kubectl debug waits for its start or end.
            failed = LaunchSpec(argv=(), env={}, cwd="/", log=log_file, error=str(error))
            return failed, str(error)
        except OSError as error:
            raise ContainerConfigError(str(error)) from error

    def adopt(self, process: ContainerProcess, *, has_started: bool) -> None:
        """Watch a container that an earlier agent started; *has_started*: its start succeeded."""
        self._add_worker(process).start_probes(has_started=has_started)

    def _add_worker(self, process: ContainerProcess) -> ContainerWorker:
        worker = ContainerWorker(self._context, process)
        self._workers[process.run_dir.container_name] = worker
        self._context.spawn(self._wait_for_exit(worker))
        return worker

    async def _wait_for_exit(self, worker: ContainerWorker) -> None:
        exited = await worker.wait()
        if self._workers.get(exited.name) is worker:
            del self._workers[exited.name]
        self._on_exited(exited, worker.log_file)

    def stop(self, name: str, kill_at: datetime) -> None:
        """Stop a container, if it runs, and kill it at *kill_at*."""
        if name in self._workers:
            self._workers[name].stop(kill_at)

    async def resize(self, name: str) -> Resources | None:
        """Apply the resources of a running container; return those that it runs with now.

        ``None``: it does not run, or restarts.

        Raises:
            ResizeError: they cannot be applied now.
        """
        worker = self._workers.get(name)
        if worker is None:
            return None
        container = self._context.pod().containers[name]
        return container.resources if await worker.resize(container) else None

    async def check_memory(self) -> None:
        """Kill the containers that use more memory than their limit."""
        for worker in list(self._workers.values()):
            await worker.check_memory()

    @property
    def running(self) -> dict[str, ContainerWorker]:
        """The workers of the running containers, by name."""
        return dict(self._workers)

    def close(self) -> None:
        """Start no more containers."""
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
        """Stop watching the containers, which keep running."""
        for worker in self._workers.values():
            worker.detach()
        self._workers.clear()


def failure_events(
    pod: Pod,
    state: PodState,
    exited: Exited,
    *,
    log_file: Path,
    back_off: BackOff,
    own_network: bool,
) -> Iterator[tuple[str, str]]:
    """Yield reason and message of the events for a failed container."""
    if exited.code and not own_network and log_shows_port_in_use(log_file):
        yield "PortTaken", f"{_PORT_IN_USE_MESSAGE} {state.pod_ip}"
    after = status.apply(state, exited, back_off).of(exited.name)
    restarts = after.exit and status.should_restart(pod, pod.containers[exited.name], after.exit)
    if restarts and not state.termination and back_off.delay(after.consecutive_exits) > 0:
        meta = pod.metadata
        where = f"in pod {meta.name}_{meta.namespace}({meta.uid})"
        yield "BackOff", f"Back-off restarting failed container {exited.name} {where}"
