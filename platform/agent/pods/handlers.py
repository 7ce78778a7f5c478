"""Carrying out what hooks and probes ask for: a command, a request, a connection, a pause."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from ...machinery.clock import Clock
from ..runtime import nsenter, shim
from ..runtime.runs import RUN_VARIABLE, IsolationLevel, RunDir
from ..state.core_types import Container, HttpGetAction, LifecycleHandler

_PROGRAM = Path(nsenter.__file__)
_MAX_ERROR_LENGTH = 1024
_POLL_INTERVAL = 0.02
"""Seconds between looks at a container that is being set up."""


class HandlerError(Exception):
    """It did not succeed; the text is for an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerTarget:
    """The run of a container that hooks and probes are about."""

    container: Container
    run: RunDir
    ip: str
    clock: Clock


async def run_handler(
    handler: LifecycleHandler, target: HandlerTarget, *, timeout: float | None
) -> None:
    """Do what *handler* says; *timeout* in seconds.

    Raises:
        HandlerError: it failed, or took too long.
    """
    try:
        async with asyncio.timeout(timeout):
            await _run_action(handler, target)
    except TimeoutError:
        raise HandlerError(f"timed out after {timeout:g}s") from None
    except (OSError, aiohttp.ClientError, ValueError) as error:  # the last: no such host or header
        raise HandlerError(str(error)) from error


async def _run_action(handler: LifecycleHandler, target: HandlerTarget) -> None:
    if handler.exec is not None:
        await _execute(handler.exec.command, target)
    elif handler.http_get is not None:
        await _http_get(handler.http_get, target)
    elif handler.tcp_socket is not None:
        wanted = handler.tcp_socket
        port = _resolve_port(wanted.port, target.container)
        _, writer = await asyncio.open_connection(wanted.host or target.ip, port)
        writer.close()
    elif handler.sleep is not None:
        await target.clock.sleep(handler.sleep.seconds)
    else:
        raise HandlerError("this agent does not know how to do that")


def _resolve_port(value: int | str, container: Container) -> int:
    if isinstance(value, int):
        return value
    for port in container.ports:
        if port.name == value:
            return port.container_port
    raise HandlerError(f"no port is named {value!r}")


async def _http_get(action: HttpGetAction, target: HandlerTarget) -> None:
    port, host = _resolve_port(action.port, target.container), action.host or target.ip
    url = f"{action.scheme.lower()}://{host}:{port}/{action.path.removeprefix('/')}"
    headers = {"User-Agent": "kube-probe/batholith", "Accept": "*/*"}
    headers |= {header.name: header.value for header in action.http_headers}
    async with (
        aiohttp.ClientSession() as session,
        # As a kubelet: what is asked is the container's own, whatever its certificate says.
        session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer,
    ):
        if not 200 <= answer.status < 400:
            raise HandlerError(f"HTTP probe failed with statuscode: {answer.status}")


async def _execute(command: tuple[str, ...], target: HandlerTarget) -> None:
    launch = json.loads((target.run.path / shim.LAUNCH).read_bytes())
    plain = launch["level"] == IsolationLevel.PLAIN
    ids = launch.get("ids") or {"base": None}  # of an earlier agent's container
    wanted = {
        "argv": command,
        "env": launch["env"],
        "cwd": launch["cwd"],
        "ids": ids,
        "pid": 0
        if plain
        else await _exec_arguments(target.run, IsolationLevel(launch["level"]), ids=ids),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(_PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        env={RUN_VARIABLE: target.run.name, "PATH": os.defpath},
    )  # fmt: skip
    try:
        output, _ = await process.communicate(json.dumps(wanted).encode())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        words = output[-_MAX_ERROR_LENGTH:].decode(errors="replace").strip()
        raise HandlerError(words or f"command exited with {process.returncode}")


async def _exec_arguments(run: RunDir, level: IsolationLevel, *, ids: Mapping[str, Any]) -> int:
    """The first process in the container's namespaces, once its sandbox is finished."""
    depth = 2 if level is IsolationLevel.BUBBLEWRAP else 1
    while True:
        pid = run.shim_pid()
        if pid is None:
            raise HandlerError("the container does not run")
        line = [pid]
        # Its own child is the container's program, which is not there before all is set up.
        while len(line) < depth + 2 and (below := shim.children(line[-1])):
            line.append(below[0])
        # Before, it may be a helper, which stays outside.
        if len(line) == depth + 2 and (ids["base"] is None or _has_exited(line[-1], ids)):
            return line[depth]
        await asyncio.sleep(_POLL_INTERVAL)


def _has_exited(pid: int, ids: Mapping[str, Any]) -> bool:
    """Whether a process is the pod's, and not root's any more."""
    with suppress(OSError, StopIteration):
        if ids["namespace"]:
            return os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return next(line.split()[1] for line in file if line.startswith("Uid:")) != "0"
    return False
