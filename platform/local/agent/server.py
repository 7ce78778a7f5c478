"""Server of the agent: logs and streams of containers over TLS, for the API server only.

Paths and parameters are those of the kubelet, so that any API server can proxy to it.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec

from ...httpserver.asgi import Receive, Response, Scope, Send, wait_disconnected
from ...httpserver.asgi_server import serve_application
from ...httpserver.buffering import BufferingListener
from ...httpserver.limits import Limits
from ...httpserver.metrics import ListenerMetrics
from ...httpserver.sockets import bind
from ...httpserver.upgrades import UpgradedConnection, UpgradeRequest
from ...kube.private_files import read_credential
from ...kube.supervision import cancel_and_wait
from ...machinery.clock import Clock
from ...machinery.file_watcher import FileWatcher
from ...model import times
from ...model.node_identity import API_SERVER_CLIENT
from .runtime import logs
from .settings import ServingFiles
from .streaming.command_streams import (
    Command,
    StreamOptions,
    StreamsRejectedError,
    serve_command,
)
from .streaming.port_forward import Connect, serve_port_forward

_MAX_BODY = 64 * 1024
"""Maximum bytes of a request's body, which is ignored."""

_STREAM_PARAMETERS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}

_STREAMS = {"": "", "All": "", "Stdout": "stdout", "Stderr": "stderr"}


class LogUnavailableError(Exception):
    """The log is not available; *status* is the HTTP status of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LogFile(Protocol):
    """One container's log."""

    @property
    def path(self) -> Path:
        """The file, which may not exist yet."""
        ...

    def is_finished(self) -> bool:
        """Return whether nothing more will be written."""
        ...


class LogSource(Protocol):
    """Finds the logs of a node's containers."""

    def find_log(self, pod: str, container: str, *, previous: bool) -> LogFile:
        """Return the log of a container by the pod's key; *previous*: of the previous run.

        Raises:
            LogUnavailableError: it does not exist.
        """
        ...


class UsageSource(Protocol):
    """Knows what the node and its containers use."""

    def usage_summary(self) -> dict[str, Any]:
        """Return the kubelet's summary, with CPU and memory."""
        ...


class StreamSource(Protocol):
    """Finds what clients may open streams to."""

    def find_exec(self, pod: str, container: str, argv: Sequence[str]) -> Command:
        """Return what runs *argv* in a running container, by the pod's key.

        Raises:
            StreamsRejectedError: it does not run.
        """
        ...

    def find_attach(self, pod: str, container: str) -> Command:
        """Return what attaches to a running container, by the pod's key.

        Raises:
            StreamsRejectedError: it does not run.
        """
        ...

    def find_port_forward(self, pod: str) -> Connect:
        """Return what connects to a port of a pod, by its key.

        Raises:
            StreamsRejectedError: it does not run.
        """
        ...


@dataclass(frozen=True, slots=True)
class AgentServer:
    """Handles requests for logs and streams."""

    source: LogSource
    clock: Clock
    streams: StreamSource | None = None
    usage: UsageSource | None = None
    _upgraded: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks that serve streams."""

    @asynccontextmanager
    async def running(
        self,
        files: ServingFiles,
        *,
        host: str = "127.0.0.1",
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
    ) -> AsyncIterator[int]:
        """Listen on a free port of *host* for the block; yield the port.

        Raises:
            OSError: *host* is no address of this machine, or the files cannot be read.
            UnsafePathError: other users may read the key.
        """
        context = server_context(files)
        fronts = BufferingListener(
            name="agent",
            body_limit=_MAX_BODY,
            client_cert_required=True,
            client_name=API_SERVER_CLIENT,
            limits=limits,
            metrics=metrics,
            upgrade_handler=self._serve_upgrade,
        )
        sockets = await bind(host, 0)
        renewal = asyncio.create_task(_watch_certificate(context, files, self.clock))
        try:
            async with serve_application(
                self._serve, fronts, sockets, tls=context, drain_timeout=0.5
            ):
                yield sockets[0].getsockname()[1]
        finally:
            tasks = [renewal, *self._upgraded]
            await cancel_and_wait(*tasks)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        match scope["path"].split("/")[1:]:
            case ["exec" | "attach" | "portForward", *_]:
                await Response.text("upgrade request required\n", status=400).send(send)
            case _ if scope["method"] not in ("GET", "HEAD"):
                await Response(status=405, headers=(("allow", "GET, HEAD"),)).send(send)
            case ["healthz"]:
                await Response.text("ok").send(send)
            case ["stats", "summary"] if self.usage is not None:
                body = msgspec.json.encode(self.usage.usage_summary())
                await Response(body=body, content_type="application/json").send(send)
            case ["containerLogs", namespace, pod, container]:
                query = dict(reversed(parse_qsl(scope["query_string"].decode("latin-1"))))
                try:
                    options = self._options(query)
                    previous = _flag(query, "previous")
                    found = self.source.find_log(f"{namespace}/{pod}", container, previous=previous)
                except LogUnavailableError as error:
                    await Response.text(str(error), status=error.status).send(send)
                else:
                    await self._send_log(receive, send, found, options)
            case _:
                await Response.text("404 page not found\n", status=404).send(send)

    async def _send_log(
        self, receive: Receive, send: Send, found: LogFile, options: logs.LogOptions
    ) -> None:
        disconnected = asyncio.ensure_future(wait_disconnected(receive))

        def is_finished() -> bool:
            # A client may disconnect while nothing is written.
            return found.is_finished() or disconnected.done()

        headers = [(b"content-type", b"text/plain")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if found.path.exists():
                # Closed here, and its file with it, also when the client has disconnected.
                async with aclosing(
                    logs.read(found.path, options, is_finished=is_finished, clock=self.clock)
                ) as chunks:
                    async for chunk in chunks:
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                        if disconnected.done():
                            return
            await send({"type": "http.response.body", "body": b""})
        finally:
            disconnected.cancel()

    async def _serve_upgrade(self, request: UpgradeRequest, connection: UpgradedConnection) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        self._upgraded.add(task)
        try:
            await self._open_streams(request, connection)
        except StreamsRejectedError as error:
            connection.write(_rejection(error))
        finally:
            self._upgraded.discard(task)

    async def _open_streams(self, request: UpgradeRequest, connection: UpgradedConnection) -> None:
        path, _, query = request.target.partition("?")
        parameters = parse_qsl(query, keep_blank_values=True)
        asked = {name: (theirs, "1") in parameters for name, theirs in _STREAM_PARAMETERS.items()}
        # A terminal has one output; the kubelet ignores the other, too.
        options = StreamOptions(**asked | {"stderr": asked["stderr"] and not asked["tty"]})
        streams = self.streams
        if streams is None or request.method not in ("GET", "POST"):
            raise StreamsRejectedError(404, "404 page not found")
        match [unquote(segment) for segment in path.split("/")[1:]]:
            case ["exec", namespace, pod, container]:
                argv = [value for name, value in parameters if name == "command"]
                if not argv:
                    raise StreamsRejectedError(400, "you must specify at least 1 command")
                command = streams.find_exec(f"{namespace}/{pod}", container, argv)
                await serve_command(request, connection, options, command)
            case ["attach", namespace, pod, container]:
                command = streams.find_attach(f"{namespace}/{pod}", container)
                await serve_command(request, connection, options, command)
            case ["portForward", namespace, pod]:
                connect = streams.find_port_forward(f"{namespace}/{pod}")
                ports = dict(parameters).get("port", "")
                await serve_port_forward(request, connection, ports, connect)
            case _:
                raise StreamsRejectedError(404, "404 page not found")

    def _options(self, query: Mapping[str, str]) -> logs.LogOptions:
        try:
            since = None
            if query.get("sinceTime"):
                since = times.parse(query["sinceTime"])
            elif query.get("sinceSeconds"):
                since = self.clock.now() - timedelta(seconds=int(query["sinceSeconds"]))
            return logs.LogOptions(
                follow=_flag(query, "follow"),
                tail=int(query["tailLines"]) if query.get("tailLines") else None,
                timestamps=_flag(query, "timestamps"),
                since=since,
                limit=int(query["limitBytes"]) if query.get("limitBytes") else None,
                stream=_STREAMS[query.get("stream", "")],
            )
        except (ValueError, KeyError, OverflowError) as error:
            raise LogUnavailableError(400, f"invalid query parameter: {error}") from error


def _rejection(error: StreamsRejectedError) -> bytes:
    status, body = HTTPStatus(error.status), f"{error}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


async def _watch_certificate(context: ssl.SSLContext, files: ServingFiles, clock: Clock) -> None:
    """Use a renewed certificate for new connections, until cancelled."""
    if files.renewed:
        paths = list(dict.fromkeys((files.certificate, files.key)))
        watcher = FileWatcher(
            paths, lambda _: context.load_cert_chain(files.certificate, files.key)
        )
        await watcher.watch(clock)


def server_context(files: ServingFiles) -> ssl.SSLContext:
    """Return a TLS context that accepts only clients with a certificate of the cluster's CA."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.client_ca))
    context.verify_mode = ssl.CERT_REQUIRED
    read_credential(files.key)  # checks its mode, which OpenSSL does not
    context.load_cert_chain(files.certificate, files.key)
    return context
