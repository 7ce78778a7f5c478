"""Proxy for the streams of pods (exec, attach, port-forward): bytes are passed on unchanged.

The client and the agent negotiate the protocol: the client's headers and the agent's response are
passed on, too.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from ....httpserver.upgrades import UpgradedConnection
from ....kube.supervision import cancel_and_wait
from ..errors.status import bad_request, internal
from ..http.requests import Request, Response
from .log_proxy import CONNECT_TIMEOUT, error_from_response

EXEC, ATTACH, PORT_FORWARD = "exec", "attach", "portforward"
_AGENT_PATHS = {EXEC: "exec", ATTACH: "attach", PORT_FORWARD: "portForward"}
STREAMS = frozenset(_AGENT_PATHS)
_OPTIONS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""Boolean parameters of the API, and what the kubelet calls them."""

_REQUEST_HEADERS = (
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "x-stream-protocol-version",
)
_RESPONSE_HEADERS = frozenset(
    ("upgrade", "connection", "sec-websocket-accept", "sec-websocket-protocol",
     "x-stream-protocol-version")
)  # fmt: skip
_MAX_HEAD = 16 * 1024
_MAX_ERROR = 64 * 1024
_BLOCK = 64 * 1024
SWITCHING_PROTOCOLS = 101


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTarget:
    """Address of an agent, and a pod on its node or a container of it."""

    host: str
    port: int
    subresource: str
    names: Sequence[str]
    """Namespace, pod and, but for port-forward, container."""


class StreamProxy:
    """Opens streams to agents, with the server's client certificate."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    async def open(self, target: StreamTarget, request: Request) -> Response:
        """Ask the agent to upgrade; return its response with a tunnel to it.

        Raises:
            StatusError: the request is no upgrade, the agent rejects it, or cannot be reached.
        """
        check_upgrade(request)
        host, port = target.host, target.port
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=self._context, limit=_BLOCK
                )
        except (OSError, TimeoutError) as error:
            raise internal(f"error dialing backend: {error or 'timed out'}") from error
        try:
            return await open_tunnel(reader, writer, _head(target, request))
        except UpgradeRefusedError as error:
            raise error_from_response(error.status, error.body) from error
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise internal(f"error dialing backend: {error}") from error


class UpgradeRefusedError(Exception):
    """A server answered a request for another protocol with a response."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server responded with {status}")
        self.status = status
        self.body = body


async def open_tunnel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes
) -> Response:
    """Send the *head* of a request for an upgrade; return the response with a tunnel.

    The connection is closed on errors, and with the tunnel.

    Raises:
        UpgradeRefusedError: the other server does not upgrade.
        OSError: the connection was lost.
        ValueError: the response is malformed.
        asyncio.IncompleteReadError: it ends early.
    """
    try:
        writer.write(head)
        status, headers = await _read_head(reader)
        if status != SWITCHING_PROTOCOLS:
            raise UpgradeRefusedError(status, await _read_error(reader, headers))
    except BaseException:
        writer.close()
        raise
    passed = tuple(
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers
        if name in _RESPONSE_HEADERS
    )

    async def tunnel(client: UpgradedConnection) -> None:
        await _pipe(client, reader, writer)

    return Response(status=SWITCHING_PROTOCOLS, headers=passed, tunnel=tunnel)


def check_upgrade(request: Request) -> None:
    """Raise StatusError 400 if a request does not ask for another protocol."""
    tokens = request.headers.get("connection", "").lower().split(",")
    if "upgrade" not in map(str.strip, tokens) or not request.headers.get("upgrade"):
        raise bad_request("Upgrade request required")


def _head(target: StreamTarget, request: Request) -> bytes:
    """Return the request to the agent, in the kubelet's terms."""
    path = "/".join(quote(name, safe="") for name in target.names)
    query = urlencode(_agent_query(target.subresource, request.raw_query))
    path = f"/{_AGENT_PATHS[target.subresource]}/{path}?{query}"
    headers = [(name, value) for name, value in request.headers.items() if name in _REQUEST_HEADERS]
    return upgrade_head(request.method, path, [("host", f"{target.host}:{target.port}"), *headers])


def upgrade_head(method: str, path: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """Return the head of a request for an upgrade, whose *headers* name the protocol."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "connection: Upgrade",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if method == "POST":
        lines.append("content-length: 0")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _agent_query(subresource: str, raw_query: bytes) -> list[tuple[str, str]]:
    found = parse_qsl(raw_query.decode("latin-1"), keep_blank_values=True)
    if subresource == PORT_FORWARD:
        ports = [port for name, value in found if name == "ports" for port in value.split(",")]
        return [("port", ",".join(ports))] if ports else []
    first: dict[str, str] = {}
    for name, value in found:
        first.setdefault(name, value)
    wanted = [
        (theirs, "1")
        for name, theirs in _OPTIONS.items()
        if name in first and first[name].lower() not in ("false", "0")
    ]
    if subresource == EXEC:
        wanted += [("command", value) for name, value in found if name == "command"]
    return wanted


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, list[tuple[str, str]]]:
    """Return status and headers of the agent's response; names are lowercase.

    Raises:
        ValueError: it is no HTTP response, or too large.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError("the response is too large") from error
    if len(head) > _MAX_HEAD:
        raise ValueError("the response is too large")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in lines if line]
    return int(first.split(" ")[1]), [(name.lower(), value.strip()) for name, _, value in pairs]


async def _read_error(reader: asyncio.StreamReader, headers: list[tuple[str, str]]) -> bytes:
    length = int(dict(headers).get("content-length", "0"))
    return await reader.readexactly(min(length, _MAX_ERROR))


async def _pipe(
    client: UpgradedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy in both directions until one end closes; each waits for slow readers."""

    async def to_agent() -> None:
        while data := await client.read():
            writer.write(data)
            await writer.drain()

    async def to_client() -> None:
        while data := await reader.read(_BLOCK):
            client.write(data)
            await client.drain()

    copies = [asyncio.ensure_future(to_agent()), asyncio.ensure_future(to_client())]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        writer.close()
        await cancel_and_wait(*copies)
