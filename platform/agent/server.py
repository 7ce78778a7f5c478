"""The agent's own server: logs of its containers, over TLS, for the API server alone.

Paths and parameters are the kubelet's, so that an API server can forward to either.
"""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from aiohttp import web

from ..httpserver.aiohttp_server import serve_application
from ..httpserver.buffering import BufferingListener
from ..httpserver.limits import Limits
from ..httpserver.metrics import ListenerMetrics
from ..httpserver.sockets import bind
from ..kube.private_files import read_credential
from ..machinery.clock import Clock
from ..model import times
from .runtime import logs
from .settings import ServingFiles

_MAX_BODY = 64 * 1024
"""Bytes of a request's body; none has a meaning."""

_STREAMS = {"": "", "All": "", "Stdout": "stdout", "Stderr": "stderr"}


class LogUnavailableError(Exception):
    """There is no such log; *status* is the HTTP status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LogFile(Protocol):
    """One container's log."""

    @property
    def path(self) -> Path:
        """Where it lies; nothing may be there yet."""
        ...

    def is_finished(self) -> bool:
        """Whether nothing more will be written."""
        ...


class LogSource(Protocol):
    """Who knows the logs of a node's containers."""

    def find_log(self, pod: str, container: str, *, previous: bool) -> LogFile:
        """The log of a container of the pod with this key; *previous* means the run before.

        Raises:
            LogRefusedError: there is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogServer:
    """Answers requests for logs."""

    source: LogSource
    clock: Clock

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        return app

    @asynccontextmanager
    async def running(
        self,
        files: ServingFiles,
        *,
        port: int,
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
    ) -> AsyncIterator[int]:
        """Listen on loopback for the length of the block, which gets the port.

        Raises:
            OSError: the port is taken, or the files cannot be read.
            UnsafePathError where the key is not ours alone.
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
        serving = serve_application(
            self.application(), fronts, sockets, tls=context, shutdown_timeout=0.5
        )
        async with serving:
            yield sockets[0].getsockname()[1]

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        where, query = request.match_info, request.query
        try:
            options = self._options(query)
            found = self.source.find_log(
                f"{where['namespace']}/{where['pod']}",
                where["container"],
                previous=_flag(query, "previous"),
            )
        except LogUnavailableError as refused:
            return web.Response(status=refused.status, text=str(refused))
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        if found.path.exists():

            def is_finished() -> bool:
                # Nothing else tells of a reader who hung up while nothing was written.
                return found.is_finished() or request.transport is None

            pieces = logs.read(found.path, options, is_finished=is_finished, clock=self.clock)
            async for piece in pieces:
                await answer.write(piece)
        await answer.write_eof()
        return answer

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
            raise LogUnavailableError(400, f"a parameter cannot be read: {error}") from error


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def server_context(files: ServingFiles) -> ssl.SSLContext:
    """TLS that answers only clients with a certificate of the cluster's authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.client_ca))
    context.verify_mode = ssl.CERT_REQUIRED
    read_credential(files.key)  # OpenSSL would take it from anybody
    context.load_cert_chain(files.certificate, files.key)
    return context
