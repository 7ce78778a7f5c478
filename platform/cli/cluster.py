"""``batholith up``, ``down``, ``status``, ``version``: the embedded cluster as a whole."""

import asyncio
import contextlib
import os
import signal
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..cluster.datadir import DataDir, DataDirBusyError
from ..cluster.processes import end
from ..cluster.supervisor import PartFailedError, UpState, end_leftovers, read_state
from . import logs

if TYPE_CHECKING:
    from .embedded import Options

DataDirOption = Annotated[
    Path | None,
    typer.Option(help="Where the cluster keeps its state [default: $XDG_DATA_HOME/batholith]."),
]
DETACH_TIMEOUT = 60.0
"""Seconds that ``up --detach`` waits for the cluster to be ready."""
DOWN_TIMEOUT = 120.0
"""Seconds that ``down`` waits for pods to end within their grace."""


def folder(data_dir: Path | None) -> DataDir:
    """The data folder that the option, or its default, names."""
    return DataDir.default() if data_dir is None else DataDir(data_dir)


def version() -> None:
    """Print the version."""
    typer.echo(f"batholith {metadata.version('batholith')}")


def demo() -> None:
    """Run a gang job on a cluster of its own: suspend it, resume it, see it end."""
    from .demo import run

    run()


def up(
    data_dir: DataDirOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is ready.")] = False,
    simulate: Annotated[
        int, typer.Option(min=0, help="Pretend this many nodes; their pods run no processes.")
    ] = 0,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Kubernetes API; 0 means any free one.")
    ] = None,
    api_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="REST API; 0 means any free one.")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="CPUs that the node offers [default: at least 16].")
    ] = None,
) -> None:
    """Start a Kubernetes-compatible cluster with Batholith on this machine."""
    data = folder(data_dir)
    if detach and not _detach(data):
        return
    from .embedded import Options

    options = Options(simulate=simulate, port=port, api_port=api_port, cpus=cpus)
    logs.configure(level="WARNING")
    try:
        asyncio.run(_up(data, options))
    except (DataDirBusyError, PartFailedError, OSError) as error:
        typer.echo(f"batholith up: {error}", err=True)
        raise typer.Exit(1) from None


async def _up(data: DataDir, options: "Options") -> None:
    from .embedded import Embedded

    data.hold()
    try:
        end_leftovers(data)
        with Embedded(data, options) as embedded:
            for line in embedded.remarks:
                typer.echo(line)
            supervisor = embedded.supervisor()
            work = asyncio.ensure_future(supervisor.run(lambda: typer.echo(embedded.usage())))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, work.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await work
            typer.echo("stopped")
    finally:
        data.release()


def _detach(data: DataDir) -> bool:
    """Split in two: the child (True) becomes the supervisor, its output in ``up.log``.

    The parent (False) has waited until the cluster was ready, and shown that output.

    Raises:
        typer.Exit: in the parent, with 1, when the cluster did not become ready.
    """
    data.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_file = data.root / "up.log"
    # Forked, not started anew: importing everything a second time takes a third of a second.
    child = os.fork()
    if child:
        _await_ready(data, child, log_file)
        return False
    os.setsid()
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, str(log_file), os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        handle = os.open(path, flags, 0o600)
        os.dup2(handle, descriptor)
        os.close(handle)
    os.dup2(1, 2)
    return True


def _await_ready(data: DataDir, child: int, log_file: Path) -> None:
    deadline = time.monotonic() + DETACH_TIMEOUT
    while time.monotonic() < deadline:
        state = read_state(data)
        if state is not None and state.supervisor.pid == child and state.ready:
            typer.echo(log_file.read_text().rstrip())
            return
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.02)  # another process: its file is all that tells
    else:
        os.kill(child, signal.SIGTERM)
    text = log_file.read_text().rstrip() if log_file.exists() else ""
    typer.echo(text or f"batholith up: not ready; see {data.logs}", err=True)
    raise typer.Exit(1)


def down(data_dir: DataDirOption = None) -> None:
    """Stop the cluster of a data folder: pods end within their grace, then all parts."""
    data = folder(data_dir)
    state = read_state(data)
    if state is not None and state.supervisor.alive:
        typer.echo(f"stopping the cluster in {data.root}")
        os.kill(state.supervisor.pid, signal.SIGTERM)
        _wait_gone(data, state)
        return
    ended = _end_what_is_left(data)
    typer.echo(f"ended what was left: {', '.join(ended)}" if ended else "nothing is running")


def _wait_gone(data: DataDir, state: UpState) -> None:
    deadline = time.monotonic() + DOWN_TIMEOUT
    while state.supervisor.alive:
        if time.monotonic() > deadline:
            typer.echo("some pods did not end in time; killing what is left", err=True)
            end(state.supervisor, grace=0)
            _end_what_is_left(data)
            return
        time.sleep(0.02)  # not our child: there is nothing to wait on


def _end_what_is_left(data: DataDir) -> list[str]:
    """End parts and pods of a supervisor that was killed; returns their names."""
    from ..cluster.agent.leftovers import end_pods

    if not data.root.is_dir():
        return []
    try:
        data.hold()
    except DataDirBusyError as error:
        typer.echo(f"batholith down: {error}", err=True)
        raise typer.Exit(1) from None
    try:
        ended = end_leftovers(data) + end_pods(data.root)
        data.up_json.unlink(missing_ok=True)
        return ended
    finally:
        data.release()


def status(data_dir: DataDirOption = None) -> None:
    """Show the parts of the cluster; exits 3 when it is not up."""
    data = folder(data_dir)
    state = read_state(data)
    if state is None or not state.supervisor.alive:
        typer.echo(f"not up ({data.root})")
        raise typer.Exit(3)
    typer.echo(f"{'up' if state.ready else 'starting'} ({data.root}), version {state.version}")
    for name, port in state.ports.items():
        typer.echo(f"  {name}: port {port}")
    typer.echo(f"  {'PART':<12} {'PID':>8} {'STATE':<9} RESTARTS")
    for name, part in state.parts.items():
        running = part.process is not None and part.process.alive
        word = "ready" if part.ready and running else "starting" if running else "down"
        pid = part.process.pid if part.process is not None else "-"
        typer.echo(f"  {name:<12} {pid:>8} {word:<9} {part.restarts}")
