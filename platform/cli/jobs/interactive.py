"""Commands with the streams of a container: ``exec``, and ``run --pty``.

The streams go through the Kubernetes API, with the caller's own credentials: the REST API has none.
"""

import asyncio
import os
import signal
import sys
import termios
import threading
import tty as terminals
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...client.discovery import default_data_dir
from ...client.errors import ConfigError as NoClusterError
from ...kube.client.config import Credentials, load_credentials
from ...kube.client.pod_streams import STDERR, PodStream, open_pod_stream
from ...kube.errors import ApiError, ConfigError, ConnectionLostError
from ...model.kubeconfig import default_paths
from .shared import FAILED, NO_CLUSTER, NOT_FOUND, NOT_PERMITTED, CommandFailedError, key

if TYPE_CHECKING:
    from ...client import JobHandle
    from ...wire.jobs import PodSummary

_BLOCK = 16 * 1024
_EXIT_TIMEOUT = 10
"""Seconds in which a job must have finished that has no container to attach to any more."""

_USER_AGENT = "batholith-cli"

_SIGNAL_SCRIPT = """
if [ -n "$BATHOLITH_ROOT" ]; then
    echo "process 1 is not that of the container without a sandbox" >&2
    exit 1
fi
kill -s "$1" 1
"""


def find_credentials(connection: Mapping[str, Any]) -> Credentials:
    """Return the credentials of the Kubernetes API of the cluster that the flags choose.

    *connection* has the values of the flags.

    Raises:
        CommandFailedError: they choose a REST API alone, or there are no credentials.
    """
    kubeconfig, data_dir = connection.get("kubeconfig"), connection.get("data_dir")
    context = connection.get("context")
    if kubeconfig is None and context is None and data_dir is None:
        if connection.get("url") or connection.get("token_file"):
            raise CommandFailedError(
                "the streams of a container go through the Kubernetes API, which --url and"
                " --token-file do not name: give --kubeconfig, --context or --data-dir",
                NO_CLUSTER,
            )
        # As the SDK: the file of a running `up` if the user has no other.
        if not any(path.exists() for path in default_paths()):
            data_dir = default_data_dir()
    if kubeconfig is None and data_dir is not None:
        kubeconfig = Path(data_dir) / "kubeconfig"
    try:
        return load_credentials(None if kubeconfig is None else str(kubeconfig), context=context)
    except (ConfigError, NoClusterError, OSError) as error:
        raise CommandFailedError(f"no Kubernetes API: {error}", NO_CLUSTER) from None


def choose_pod(
    job: "JobHandle", *, task: str | None = None, index: int | None = None, pod: str | None = None
) -> "PodSummary":
    """Return the pod of a job that is chosen, else its first one.

    Raises:
        CommandFailedError: there is none.
    """
    found = [
        each
        for each in job.pods()
        if (task is None or each.task == task)
        and (index is None or each.index == index)
        and (pod is None or each.name == pod)
    ]
    if not found:
        chosen = {"--task": task, "--index": index, "--pod": pod}
        given = " ".join(f"{name} {value}" for name, value in chosen.items() if value is not None)
        what = f"no pod for {given}" if given else "no pods"
        text = f"{key(job)} has {what}; `batholith job {key(job)}` lists them"
        raise CommandFailedError(text, NOT_FOUND)
    running = [each for each in found if each.phase == "Running"] or found
    tasks = [each.name for each in job.info.tasks]

    def order(each: "PodSummary") -> tuple[int, int, str]:
        position = tasks.index(each.task) if each.task in tasks else len(tasks)
        return position, each.index or 0, each.name

    return min(running, key=order)


def stream(
    credentials: Credentials, subresource: str, pod: tuple[str, str], *, tty: bool, **options: Any
) -> int:
    """Connect the standard streams to those of a container; return the exit code.

    *pod* is namespace and name.

    Raises:
        CommandFailedError: that is not possible, or the connection was lost.
    """
    namespace, name = pod

    async def run() -> int:
        async with open_pod_stream(
            credentials,
            subresource=subresource,
            namespace=namespace,
            pod=name,
            stdin=True,
            tty=tty,
            user_agent=_USER_AGENT,
            **options,
        ) as opened:
            with _raw_terminal(tty):
                await _copy(opened, tty=tty)
            return opened.exit_code()

    return _exit_code(run())


def send_signal(credentials: Credentials, pod: tuple[str, str], name: str) -> None:
    """Send the signal *name* to the program of the only container of a pod, its process 1.

    *pod* is namespace and name.

    Raises:
        CommandFailedError: that is not possible.
    """
    output: list[bytes] = []

    async def run() -> int:
        async with open_pod_stream(
            credentials,
            subresource="exec",
            namespace=pod[0],
            pod=pod[1],
            command=["/bin/sh", "-c", _SIGNAL_SCRIPT, "batholith", name],
            stdin=False,
            tty=False,
            user_agent=_USER_AGENT,
        ) as opened:
            async for _, data in opened.output():
                output.append(data)
            return opened.exit_code()

    if _exit_code(run()):
        text = b"".join(output).decode(errors="replace").strip()
        raise CommandFailedError(f"pod {pod[1]}: {text or 'it cannot send the signal'}")


def _exit_code(stream: Coroutine[Any, Any, int]) -> int:
    """Return the exit code of *stream*.

    Raises:
        CommandFailedError: it is not possible, or the connection was lost.
    """
    try:
        return asyncio.run(stream)
    except (ConnectionLostError, ConfigError) as error:
        raise CommandFailedError(str(error), NO_CLUSTER) from None
    except ApiError as error:
        codes = {401: NOT_PERMITTED, 403: NOT_PERMITTED, 404: NOT_FOUND}
        raise CommandFailedError(str(error), codes.get(error.status, FAILED)) from None


def attach(credentials: Credentials, job: "JobHandle") -> None:
    """Connect this terminal to that of the only pod of a job; if it has exited, print its output.

    Raises:
        CommandFailedError: the pod cannot be reached.
    """
    from ...client.errors import WaitTimeoutError

    job.wait(condition=lambda state: state.phase == "Running" or state.is_finished)
    if not job.info.is_finished:
        try:
            stream(credentials, "attach", (job.namespace, choose_pod(job).name), tty=True)
            return
        except CommandFailedError:
            with suppress(WaitTimeoutError):
                job.wait(timeout=_EXIT_TIMEOUT)
            if not job.info.is_finished:
                raise
    for line in job.logs():
        typer.echo(line)


@contextmanager
def _raw_terminal(is_terminal: bool) -> Iterator[None]:
    """Pass on each key as it is typed, also those that would end this program."""
    if not is_terminal:
        yield
        return
    before = termios.tcgetattr(0)
    terminals.setraw(0, termios.TCSADRAIN)  # keeps what was typed ahead
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


async def _copy(opened: PodStream, *, tty: bool) -> None:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def send_size(extra: int = 0) -> None:
        width, height = os.get_terminal_size(0)
        task = loop.create_task(opened.resize(width + extra, height + extra))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if tty:
        send_size(extra=1)  # a program that began before draws again if the size changes
        send_size()
        loop.add_signal_handler(signal.SIGWINCH, send_size)
    threading.Thread(target=_read_input, args=(opened, loop), daemon=True).start()
    try:
        async for channel, data in opened.output():
            _write(2 if channel == STDERR else 1, data)
    finally:
        if tty:
            loop.remove_signal_handler(signal.SIGWINCH)
        for task in tasks:
            task.cancel()


def _read_input(opened: PodStream, loop: asyncio.AbstractEventLoop) -> None:
    """Send the standard input, as fast as it is received."""
    with suppress(OSError, RuntimeError):  # the command has exited
        while data := os.read(0, _BLOCK):
            asyncio.run_coroutine_threadsafe(opened.send_input(data), loop).result()
        asyncio.run_coroutine_threadsafe(opened.end_input(), loop).result()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def is_terminal() -> bool:
    """Return whether both standard input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
