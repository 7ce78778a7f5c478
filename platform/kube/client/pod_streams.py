"""The streams of a container: a command in it (exec), or its program (attach), over a WebSocket.

aiohttp is slow to import, so this is a separate module.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp

from ...model.names import PODS
from ..errors import ConnectionLostError, from_response
from ..timing import Timing
from .aiohttp_session import new_session
from .config import Credentials

STDIN, STDOUT, STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_WITH_CLOSE = "v5.channel.k8s.io"
_PROTOCOLS = (_WITH_CLOSE, "v4.channel.k8s.io")
_PING_INTERVAL = 60.0
"""Seconds between pings; the connection counts as lost half of this after one without response."""


class PodStream:
    """An open stream."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._status: dict[str, Any] = {}

    async def send_input(self, data: bytes) -> None:
        """Send input of the command."""
        await self._socket.send_bytes(bytes([STDIN]) + data)

    async def end_input(self) -> None:
        """End the input; servers before Kubernetes 1.30 cannot, and leave it open."""
        if self._socket.protocol == _WITH_CLOSE:
            await self._socket.send_bytes(bytes([_CLOSE, STDIN]))

    async def resize(self, width: int, height: int) -> None:
        """Set the size of the terminal, in characters."""
        size = json.dumps({"Width": width, "Height": height}).encode()
        await self._socket.send_bytes(bytes([_RESIZE]) + size)

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield output with its channel, `STDOUT` or `STDERR`, until the command has exited."""
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == _ERROR:
                self._status = json.loads(data)
            elif channel in (STDOUT, STDERR) and data:
                yield channel, data

    def exit_code(self) -> int:
        """Return the exit code of the command, after the end of `output`; of an attached one 0.

        Raises:
            ConnectionLostError: the connection was lost.
            ApiError: the command could not be started.
        """
        status = self._status
        if not status:
            raise ConnectionLostError("the connection to the container was lost")
        if status.get("status") == "Success":
            return 0
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        raise from_response(500, json.dumps(status).encode())


@asynccontextmanager
async def open_pod_stream(
    credentials: Credentials,
    *,
    subresource: str,
    namespace: str,
    pod: str,
    container: str = "",
    command: Sequence[str] = (),
    stdin: bool,
    tty: bool,
    user_agent: str,
) -> AsyncIterator[PodStream]:
    """Open a stream with the rights of the user.

    Args:
        credentials: of the user.
        subresource: ``exec`` with a *command*, or ``attach``.
        namespace: of the pod.
        pod: its name.
        container: the container's name; without it, the default one or the only one.
        command: program and arguments.
        stdin: whether there is input.
        tty: whether the command has a terminal.
        user_agent: name of this program.

    Raises:
        ApiError: the API server rejects it, or the container does not run.
        ConfigError: the credentials are unusable.
        ConnectionLostError: the API server does not respond.
    """
    query: Mapping[str, Any] = {
        **({"container": container} if container else {}),
        "command": list(command),
        "stdin": str(stdin).lower(),
        "stdout": "true",
        "stderr": str(not tty).lower(),
        "tty": str(tty).lower(),
    }
    server, session = await new_session(credentials, Timing(), user_agent=user_agent)
    async with session:
        url = f"{server}{PODS.path(namespace, pod)}/{subresource}?{urlencode(query, doseq=True)}"
        try:
            socket = await session.ws_connect(
                url, protocols=_PROTOCOLS, heartbeat=_PING_INTERVAL, max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            # aiohttp does not keep the body, which has the reason.
            reasons = {
                400: f"pod {pod} has no such container, or several and none is chosen",
                401: "the credentials are rejected",
                403: f"the verb create on pods/{subresource} is needed",
                404: f"pod {pod} does not exist",
            }
            text = reasons.get(error.status, f"the container of pod {pod} does not run")
            raise from_response(error.status, text.encode()) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLostError(f"cannot reach {server}: {error}") from error
        async with socket:
            yield PodStream(socket)
