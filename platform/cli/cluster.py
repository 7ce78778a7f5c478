"""``batholith up``, ``down``, ``status``, ``version``: the embedded cluster as a whole."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Protocol, Self

import typer

from ..kube.private_files import GROUP_OTHER_WRITE, open_private
from ..local.agent.runtime.process_id import terminate
from ..local.agent.volumes import host_dirs
from ..local.agent.volumes.host_dirs import HostDir
from ..local.supervisor.child_process import Entry
from ..local.supervisor.datadir import DataDir, DataDirLockedError, NotADataDirError
from ..local.supervisor.membership import JoinError
from ..local.supervisor.membership import read as membership_of
from ..local.supervisor.supervisor import (
    ComponentFailedError,
    DamagedStateError,
    Supervisor,
    UpState,
    kill_orphans,
    read_state,
    unready_components,
)
from ..model.bootstrap_tokens import parse_address
from ..model.job_size import MAX_PODS
from ..model.service_network import PodNetwork
from . import controller_selection, logs
from .flag_groups import (
    LOOPBACK,
    HttpLimits,
    MaxPodsPerJob,
    NotifyAllow,
    PodNetworkOption,
    PodsOption,
    RegistryOption,
)
from .manager import exit_on_error, parse_http_limits
from .node_flags import (
    LogFilesOption,
    LogSizeOption,
    SysctlsOption,
    log_flags_of,
    sysctl_flags_of,
)

DataDirOption = Annotated[
    Path | None,
    typer.Option(help="Data directory of the cluster.", show_default="$XDG_DATA_HOME/batholith"),
]
MountOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR[:ro]",
        help="Directory that pods may mount by hostPath and local volumes; repeatable. "
        "The current directory is permitted read-only.",
    ),
]
CpusOption = Annotated[
    int | None,
    typer.Option(min=1, help="CPU capacity of the node.", show_default="at least 16"),
]
DATA_DIR_ERRORS = (DataDirLockedError, DamagedStateError, NotADataDirError, OSError)
"""Errors of locking and using a data directory."""
ANY_PORT = "0 means any free port, and the same one at the next start"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DETACH_TIMEOUT = 60.0
"""Seconds for which ``up --detach`` waits until the cluster is ready."""
DOWN_TIMEOUT = 120.0
"""Seconds for which ``down`` waits until pods have terminated."""


def resolve_data_dir(data_dir: Path | None) -> DataDir:
    """Return the data directory of the option, or the default."""
    return DataDir.default() if data_dir is None else DataDir(data_dir)


def _lock_data_dir(data: DataDir) -> None:
    try:
        data.lock()
    except DataDirLockedError:
        read_state(data)  # Raises a more specific error if the state is damaged.
        raise


def _read_state(data: DataDir, command: str) -> UpState | None:
    """Return the stored state; on errors print a message for *command* and exit with 1."""
    try:
        return read_state(data)
    except DATA_DIR_ERRORS as error:
        typer.echo(f"batholith {command}: {error}", err=True)
        raise typer.Exit(1) from None


def _entry(context: typer.Context) -> Entry:
    """Return a function that runs the ``batholith`` command with given arguments.

    The program of *context* has only the command that was called.
    """
    new_program: Callable[[str], typer.Typer] = context.find_root().obj

    def run_command(arguments: Sequence[str]) -> None:
        new_program(arguments[0])(list(arguments))

    return run_command


def version() -> None:
    """Print the version."""
    typer.echo(f"batholith {metadata.version('batholith')}")


def demo(context: typer.Context) -> None:
    """Run a gang job on a temporary cluster: suspend it, resume it, wait for completion."""
    from .demo import run

    run(_entry(context))


Controllers = Annotated[
    str,
    typer.Option(
        help="Controllers to run: '*' for all, 'name' for one, '-name' for all but one; for "
        "example '*,-training-controller' if another operator runs the training jobs."
    ),
]


PortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help=f"Port of the Kubernetes API; {ANY_PORT}.")
]
RestPortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help=f"Port of the REST API; {ANY_PORT}.")
]
Simulate = Annotated[
    int, typer.Option(min=0, help="Number of simulated nodes; their pods run no processes.")
]
SchedulerConf = Annotated[
    Path | None,
    typer.Option(help="Configuration of the scheduler; changes take effect at once."),
]
Listen = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS[:PORT]",
        help="IPv4 address of this machine at which others may join as nodes.",
        show_default="none may: the cluster is on loopback alone",
    ),
]


def up(
    context: typer.Context,
    data_dir: DataDirOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the cluster is ready.")
    ] = False,
    simulate: Simulate = 0,
    port: PortOption = None,
    api_port: RestPortOption = None,
    cpus: CpusOption = None,
    podgroups: Annotated[
        Literal["all", "gangs"],
        typer.Option(help="Which Volcano jobs get PodGroups: all, or those of more than one pod."),
    ] = "all",
    max_pods_per_job: MaxPodsPerJob = MAX_PODS,
    scheduler_conf: SchedulerConf = None,
    controllers: Controllers = "*",
    mount: MountOption = None,
    pods: PodsOption = "auto",
    registry: RegistryOption = None,
    pod_network: PodNetworkOption = "host",
    container_log_max_size: LogSizeOption = "10Mi",
    container_log_max_files: LogFilesOption = 5,
    allowed_unsafe_sysctls: SysctlsOption = "",
    pages: Annotated[
        bool, typer.Option(help="Serve pages of jobs, queues and nodes with the REST API.")
    ] = True,
    notify_allow: NotifyAllow = None,
    listen: Listen = "",
    http_limits: HttpLimits = "",
) -> None:
    """Start a Kubernetes-compatible cluster with Batholith on this machine."""
    from .embedded import API_PORT, EmbeddedCluster, Options

    data = resolve_data_dir(data_dir)
    with exit_on_error(ValueError):
        parse_http_limits(http_limits)
        options = Options(
            simulate=simulate,
            port=port,
            api_port=api_port,
            cpus=cpus,
            http_limits=http_limits,
            max_pods_per_job=max_pods_per_job,
            podgroups=podgroups,
            scheduler_conf=None if scheduler_conf is None else _checked_conf(scheduler_conf),
            controllers=controller_selection.select_embedded(controllers),
            pages=pages,
            host_dirs=host_dirs_of(mount or [], data, simulate=simulate),
            notify_allow=_checked_destinations(notify_allow or []),
            pods=pods,
            registries=registries_of(registry, pods=pods, simulate=simulate),
            agent_flags=(
                *log_flags_of(container_log_max_size, container_log_max_files, simulate=simulate),
                *sysctl_flags_of(allowed_unsafe_sysctls, simulate=simulate),
            ),
            network=parse_address(listen, default_port=API_PORT) if listen else None,
            pod_network=_checked_network(pod_network, simulate=simulate, listen=listen),
        )
    run_supervised(context, data, lambda: EmbeddedCluster(data, options), detach=detach, name="up")


def _checked_destinations(texts: list[str]) -> tuple[str, ...]:
    """Return what may be notified.

    Raises:
        ValueError: one is neither a host nor a network.
    """
    from ..model.notification_destinations import Destinations

    Destinations.parse(texts)
    return tuple(texts)


def _checked_conf(path: Path) -> Path:
    """Return the absolute path of a configuration of the scheduler.

    Raises:
        ValueError: it cannot be read, or is malformed.
    """
    from ..model import names
    from ..scheduler import conf, conf_reload

    served = (names.SCHEDULER_NAME, "default-scheduler")
    conf.load(conf_reload.read(path), strict=False, scheduler_names=served)
    return path.resolve()


class Supervised(Protocol):
    """What a data directory runs: a cluster, or a node of another machine's."""

    @property
    def notices(self) -> list[str]:
        """Messages for the user at the start."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def start_supervisor(self, entry: Entry) -> Supervisor:
        """Create the supervisor and fork all components."""
        ...

    def usage(self, *, detached: bool) -> str:
        """Return the message for the user once all are ready."""
        ...


def run_supervised(
    context: typer.Context,
    data: DataDir,
    create: Callable[[], Supervised],
    *,
    detach: bool,
    name: str,
) -> None:
    """Run what *create* returns in *data* until a signal stops it, or start it detached.

    *name* is that of the command.
    """
    try:
        # Lock before forking: the child inherits the lock, and a locked directory stays untouched.
        _lock_data_dir(data)
        # Deferred until the supervisor stops its components in order, or its parent stops it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        if detach and not _detach(data, name):
            return
        logs.configure(level="WARNING")
        kill_orphans(data)
        with create() as supervised:
            for line in supervised.notices:
                typer.echo(line)
            supervisor = supervised.start_supervisor(_entry(context))
            asyncio.run(_supervise(supervisor, usage=supervised.usage(detached=detach)))
    except (*DATA_DIR_ERRORS, ComponentFailedError, JoinError) as error:
        typer.echo(f"batholith {name}: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        data.unlock()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def host_dirs_of(mounts: Sequence[str], data: DataDir, *, simulate: int) -> tuple[HostDir, ...]:
    """Return the directories that pods may mount.

    Raises:
        ValueError: one does not exist, or pods must not mount it.
    """
    if simulate:
        if mounts:
            raise ValueError("--mount has no effect on simulated pods, which run no processes")
        return ()
    permitted = [host_dirs.resolve(text, data_dir=data.root) for text in mounts]
    current = host_dirs.working_directory(data_dir=data.root)
    return (*permitted, *([current] if current else ()))


def _checked_network(name: str, *, simulate: int, listen: str) -> PodNetwork:
    """Return the network of pods.

    Raises:
        ValueError: this machine, or this user, cannot create it, or it has no effect.
    """
    network = PodNetwork(name)
    if network is PodNetwork.HOST:
        return network
    from ..local.agent.network.namespaces import unsupported_reason

    if listen:
        raise ValueError("--pod-network=namespaces: with --listen, pods have their node's address")
    if simulate:
        raise ValueError("--pod-network has no effect on simulated pods")
    if reason := unsupported_reason():
        raise ValueError(f"--pod-network={network}: {reason}")
    return network


def registries_of(registries: list[str] | None, *, pods: str, simulate: int) -> tuple[str, ...]:
    """Return the registries from which images may be pulled.

    Raises:
        ValueError: one is malformed, or an option has no effect on simulated pods.
    """
    from ..local.agent.images.puller import parse_registries

    if simulate and (registries or pods != "auto"):
        raise ValueError("--pods and --registry have no effect on simulated pods")
    if registries and pods == "processes":
        raise ValueError("--registry has no effect with --pods=processes")
    parse_registries(tuple(registries or ()))
    return tuple(registries or ())


async def _supervise(supervisor: Supervisor, *, usage: str) -> None:
    work = asyncio.create_task(supervisor.run(lambda: typer.echo(usage)))
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _stop_once, work)
    await asyncio.sleep(0)  # A task that is cancelled before it starts stops nothing.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with contextlib.suppress(asyncio.CancelledError):
        await work
    typer.echo("stopped")


def _stop_once(work: asyncio.Task[None]) -> None:
    """Cancel *work*, which stops all components in order; later calls have no effect."""
    if not work.cancelling():
        typer.echo("stopping: waiting for pods to terminate")
        work.cancel()


def _detach(data: DataDir, name: str) -> bool:
    """Fork: the child (True) becomes the supervisor, with its output in ``up.log``.

    The parent (False) returns once the cluster is ready, and prints that output.

    Raises:
        typer.Exit: in the parent, if the cluster does not become ready or a signal arrives; the
            child has stopped then.
    """
    log_file = data.root / "up.log"
    output = open_private(log_file, os.O_WRONLY | os.O_CREAT, forbidden=GROUP_OTHER_WRITE)
    # Forked, since importing all modules again takes a third of a second.
    child = os.fork()
    if child:
        os.close(output)
        data.unlock()  # held by the child
        try:
            _await_ready(data, child, log_file, name=name)
        except DATA_DIR_ERRORS:
            _stop_supervisor(data, child)
            raise
        return False
    os.setsid()
    os.ftruncate(output, 0)
    devnull = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((devnull, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(devnull)
    os.close(output)
    return True


def _await_ready(data: DataDir, child: int, log_file: Path, *, name: str) -> None:
    received: list[int] = []
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _: received.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    deadline = time.monotonic() + DETACH_TIMEOUT
    exited = False
    while not (received or exited or time.monotonic() > deadline):
        state = read_state(data)
        if state is not None and state.supervisor.pid == child and state.ready:
            typer.echo(log_file.read_text().rstrip())
            return
        exited = os.waitpid(child, os.WNOHANG)[0] != 0
        time.sleep(0.02)  # The state file is the only signal from the other process.
    text = log_file.read_text().rstrip() if log_file.exists() else ""
    if received:
        text = "stopping"
    elif not (exited and text):
        unready = "" if exited else unready_components(data)
        last = f"batholith {name}: not ready; see {data.logs}"
        text = "\n".join(filter(None, (text, unready, last)))
    typer.echo(text, err=True)
    if not exited:
        _stop_supervisor(data, child)
    raise typer.Exit(128 + received[0] if received else 1)


def _stop_supervisor(data: DataDir, child: int) -> None:
    """Stop the supervisor *child*, with all components and pods."""
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_TIMEOUT
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            _kill_orphans(data)
            return
        time.sleep(0.02)


def down(data_dir: DataDirOption = None) -> None:
    """Stop the cluster: terminate its pods gracefully, then all components."""
    data = resolve_data_dir(data_dir)
    state = _read_state(data, "down")
    if state is not None and state.supervisor.is_alive:
        typer.echo(f"stopping the cluster in {data.root}")
        os.kill(state.supervisor.pid, signal.SIGTERM)
        _wait_stopped(data, state)
        return
    killed = _kill_orphans(data)
    if killed:
        typer.echo(f"killed orphans: {', '.join(killed)}")
        return
    typer.echo(f"nothing is running in {data.root}")
    _name_other_clusters(data)


def _name_other_clusters(data: DataDir) -> None:
    from ..local.supervisor.running_clusters import running_clusters
    from .embedded import down_command

    for other in running_clusters():
        if other.root != data.root:
            typer.echo(f"a cluster is up in {other.root}; to stop it: {down_command(other)}")


def _wait_stopped(data: DataDir, state: UpState) -> None:
    deadline = time.monotonic() + DOWN_TIMEOUT
    while state.supervisor.is_alive:
        if time.monotonic() > deadline:
            typer.echo("timeout: some pods did not terminate; killing the rest", err=True)
            terminate(state.supervisor, timeout=0)
            _kill_orphans(data)
            return
        time.sleep(0.02)  # Not a child process: it can only be polled.


def _kill_orphans(data: DataDir) -> list[str]:
    """Kill components and pods of a supervisor that was killed; return their names."""
    from ..local.agent.pods.orphans import stop_all_pods

    if not data.root.exists():
        return []
    try:
        data.lock()
    except DATA_DIR_ERRORS as error:
        typer.echo(f"batholith down: {error}", err=True)
        raise typer.Exit(1) from None
    try:
        killed = kill_orphans(data) + stop_all_pods(data.root)
        data.up_json.unlink(missing_ok=True)
        return killed
    finally:
        data.unlock()


def status(
    data_dir: DataDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the components of the cluster and its addresses; exit with 3 if it is not up."""
    data = resolve_data_dir(data_dir)
    state = _read_state(data, "status")
    if state is None or not state.supervisor.is_alive:
        if as_json:
            typer.echo(json.dumps({"state": "down", "data_dir": str(data.root)}, indent=2))
        else:
            typer.echo(f"not up ({data.root})")
            _name_other_clusters(data)
        raise typer.Exit(3)
    found = _describe_cluster(data, state)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"{found['state']} ({data.root}), version {state.version}")
    if "node" in found:
        typer.echo(f"  node {found['node']} of {found['kubernetes_url']}")
    else:
        typer.echo(f"  Kubernetes API: {found['kubernetes_url']}")
        typer.echo(f"  REST API: {found['rest_url']}")
        typer.echo(f"  kubeconfig: {found['kubeconfig']}")
    typer.echo(f"  {'COMPONENT':<12} {'PID':>8} {'STATE':<9} RESTARTS")
    for row in found["components"]:
        pid = row["pid"] or "-"
        typer.echo(f"  {row['name']:<12} {pid:>8} {row['state']:<9} {row['restarts']}")


def _describe_cluster(data: DataDir, state: UpState) -> dict[str, Any]:
    """Return what ``status --json`` prints of a cluster that is up."""
    components = []
    for name, component in state.components.items():
        process = component.process
        running = process is not None and process.is_alive
        components.append(
            {
                "name": name,
                "pid": process.pid if process is not None else None,
                "state": "ready"
                if component.ready and running
                else "starting"
                if running
                else "down",
                "restarts": component.restarts,
            }
        )
    return {
        "state": "up" if state.ready else "starting",
        "data_dir": str(data.root),
        "version": state.version,
        **_addresses(data, state),
        "components": components,
    }


def _addresses(data: DataDir, state: UpState) -> dict[str, str]:
    if not state.ports:  # a node of the cluster of another machine
        membership = membership_of(data)
        if membership is not None:
            return {"node": membership.node, "kubernetes_url": membership.server}
    return {
        "kubernetes_url": f"https://{LOOPBACK}:{state.ports['kubernetes']}",
        "rest_url": f"http://{LOOPBACK}:{state.ports['rest']}",
        "kubeconfig": str(data.kubeconfig),
    }
