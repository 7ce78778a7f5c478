"""Handlers of hooks and probes: exec, httpGet, tcpSocket, grpc, sleep."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ....machinery.clock import Clock
from ...network.node_namespace import passing_rights
from ..runtime import nsenter, shim
from ..runtime.runs import RUN_VARIABLE, IsolationLevel, RunDir
from ..state.core_types import Container, HttpGetAction, LifecycleHandler
from .grpc_health import GrpcHealthError, check_health

_PROGRAM = Path(nsenter.__file__)
_MAX_ERROR_LENGTH = 1024
_POLL_INTERVAL = 0.02
"""Seconds between checks whether a container's sandbox is ready."""


class HandlerError(Exception):
    """The handler failed; the text is for an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerTarget:
    """The run of a container that a handler acts on."""

    container: Container
    run: RunDir
    ip: str
    clock: Clock


async def run_handler(
    handler: LifecycleHandler, target: HandlerTarget, *, timeout: float | None
) -> None:
    """Run *handler*; *timeout* is in seconds.

    Raises:
        HandlerError: it failed or timed out.
    """
    if handler.http_get is not None:
        await asyncio.to_thread(import_module, "aiohttp")  # which no timeout should include
    try:
        async with asyncio.timeout(timeout):
            await _run_action(handler, target)
    except TimeoutError:
        raise HandlerError(f"timed out after {timeout:g}s") from None
    except (OSError, GrpcHealthError, ValueError) as error:  # ValueError: invalid host or header
        raise HandlerError(str(error)) from error


async def _run_action(handler: LifecycleHandler, target: HandlerTarget) -> None:
    if handler.exec is not None:
        await _execute(handler.exec.command, target)
    elif handler.http_get is not None:
        await _http_get(handler.http_get, target)
    elif handler.tcp_socket is not None:
        action = handler.tcp_socket
        port = _resolve_port(action.port, target.container)
        _, writer = await asyncio.open_connection(action.host or target.ip, port)
        writer.close()
    elif handler.grpc is not None:
        await check_health(target.ip, handler.grpc.port, handler.grpc.service)
    elif handler.sleep is not None:
        await target.clock.sleep(handler.sleep.seconds)
    else:
        raise HandlerError("unsupported handler")


def _resolve_port(value: int | str, container: Container) -> int:
    if isinstance(value, int):
        return value
    for port in container.ports:
        if port.name == value:
            return port.container_port
    raise HandlerError(f"no container port is named {value!r}")


async def _http_get(action: HttpGetAction, target: HandlerTarget) -> None:
    import aiohttp  # slow to import, and most pods have no HTTP probe

    port, host = _resolve_port(action.port, target.container), action.host or target.ip
    url = f"{action.scheme.lower()}://{host}:{port}/{action.path.removeprefix('/')}"
    headers = {"User-Agent": "kube-probe/batholith", "Accept": "*/*"}
    headers |= {header.name: header.value for header in action.http_headers}
    try:
        async with (
            aiohttp.ClientSession() as session,
            # Like a kubelet, do not verify the container's certificate.
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
        ):
            status = response.status
    except aiohttp.ClientError as error:
        raise HandlerError(str(error)) from error
    if not 200 <= status < 400:
        raise HandlerError(f"HTTP probe failed with statuscode: {status}")


async def enter_request(run: RunDir, command: Sequence[str]) -> dict[str, Any]:
    """Return the request for `nsenter` to run *command* as the container's program runs.

    Raises:
        HandlerError: the container is not running.
    """
    launch = json.loads((run.path / shim.LAUNCH).read_bytes())
    ids = launch.get("ids") or {"base": None}  # absent in a container of an older agent
    pid, start = 0, None
    if launch["level"] != IsolationLevel.PLAIN:
        pid = await sandbox_pid(run, IsolationLevel(launch["level"]), ids=ids)
        start = shim.start_time(pid)
    return {
        "argv": command,
        "env": launch["env"],
        "cwd": launch["cwd"],
        "ids": ids,
        "max_processes": launch.get("max_processes", 0),
        "cgroup": launch.get("cgroup", ""),
        "pid": pid,
        "start": start,
    }


async def _execute(command: tuple[str, ...], target: HandlerTarget) -> None:
    request = await enter_request(target.run, command)
    with passing_rights():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(_PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={RUN_VARIABLE: target.run.name, "PATH": os.defpath},
        )  # fmt: skip
    try:
        output, _ = await process.communicate(json.dumps(request).encode())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        text = output[-_MAX_ERROR_LENGTH:].decode(errors="replace").strip()
        raise HandlerError(text or f"command exited with {process.returncode}")


async def sandbox_pid(run: RunDir, level: IsolationLevel, *, ids: Mapping[str, Any]) -> int:
    """Return the first process in the container's namespaces, once its sandbox is complete."""
    depth = 2 if level is IsolationLevel.BUBBLEWRAP else 1
    while True:
        pid = run.shim_pid()
        if pid is None:
            raise HandlerError("the container is not running")
        chain = [pid]
        # The child of process 1 is the container's program, which starts last.
        while len(chain) < depth + 2 and (below := shim.children(chain[-1])):
            chain.append(below[0])
        # Until then it may be the helper that writes the id maps, which stays outside.
        if len(chain) == depth + 2 and (ids["base"] is None or _has_pod_ids(chain[-1], ids)):
            return chain[depth]
        await asyncio.sleep(_POLL_INTERVAL)


def _has_pod_ids(pid: int, ids: Mapping[str, Any]) -> bool:
    """Return whether a process has switched from root to the pod's user ids."""
    with suppress(OSError, StopIteration):
        if ids["namespace"]:
            return os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return next(line.split()[1] for line in file if line.startswith("Uid:")) != "0"
    return False
