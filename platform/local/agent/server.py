"""Log server of the agent: container logs over TLS, for the API server only.

Paths and parameters are those of the kubelet, so that any API server can proxy to it.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl

from ...httpserver.asgi import Receive, Response, Scope, Send, wait_disconnected
from ...httpserver.asgi_server import serve_application
from ...httpserver.buffering import BufferingListener
from ...httpserver.limits import Limits
from ...httpserver.metrics import ListenerMetrics
from ...httpserver.sockets import bind
from ...kube.private_files import read_credential
from ...machinery.clock import Clock
from ...model import times
from .runtime import logs
from .settings import ServingFiles

_MAX_BODY = 64 * 1024
"""Maximum bytes of a request's body, which is ignored."""

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


@dataclass(frozen=True, slots=True)
class LogServer:
    """Handles requests for logs."""

    source: LogSource
    clock: Clock

    @asynccontextmanager
    async def running(
        self,
        files: ServingFiles,
        *,
        port: int,
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
    ) -> AsyncIterator[int]:
        """Listen on loopback for the block; yield the port.

        Raises:
            OSError: the port is in use, or the files cannot be read.
            UnsafePathError: other users may read the key.
        """
        context = server_context(files)
        fronts = BufferingListener(
            name="agent",
            body_limit=_MAX_BODY,
            client_cert_required=True,
            limits=limits,
            metrics=metrics,
        )
        sockets = await bind("127.0.0.1", port)
        async with serve_application(self._serve, fronts, sockets, tls=context, drain_timeout=0.5):
            yield sockets[0].getsockname()[1]

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        match scope["path"].split("/")[1:]:
            case _ if scope["method"] not in ("GET", "HEAD"):
                await Response(status=405, headers=(("allow", "GET, HEAD"),)).send(send)
            case ["healthz"]:
                await Response.text("ok").send(send)
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


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def server_context(files: ServingFiles) -> ssl.SSLContext:
    """Return a TLS context that accepts only clients with a certificate of the cluster's CA."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.client_ca))
    context.verify_mode = ssl.CERT_REQUIRED
    read_credential(files.key)  # checks its mode, which OpenSSL does not
    context.load_cert_chain(files.certificate, files.key)
    return context
