"""ASGI applications on uvicorn, behind a listener with limits.

The listener accepts connections, does TLS, and forwards complete requests. uvicorn's protocol runs
the application for them and writes its responses.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import lru_cache
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .asgi import AsgiApp
from .buffering import BufferingListener

log = logging.getLogger(__name__)

STALL_TIMEOUT = 1.0
"""Seconds of the shutdown for which a client that does not read is waited for."""
END_TIMEOUT = 1.0
"""Seconds for which an application is waited for whose connections were closed."""


@asynccontextmanager
async def serve_application(
    app: AsgiApp,
    listener: BufferingListener,
    sockets: Iterable[socket.socket],
    *,
    tls: ssl.SSLContext | None,
    drain_timeout: float,
) -> AsyncIterator[None]:
    """Serve *app* on *sockets*, with TLS if there is a context, for the length of the block.

    On exit no connection is accepted any more, and requests in flight get *drain_timeout* seconds.
    """
    backends = _Backends(app, listener)
    listener.backend_factory = lambda: _Backend(backends)
    for listening_socket in sockets:
        listener.listen(listening_socket, tls=tls)
    try:
        yield
    finally:
        listener.stop()
        await backends.drain(drain_timeout)


class _Backends:
    """The connections of one application."""

    def __init__(self, app: AsgiApp, listener: BufferingListener) -> None:
        self.listener = listener
        self.state = ServerState()
        self.lost = asyncio.Event()
        """Set when a connection was lost."""
        self.config = uvicorn.Config(
            app,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,  # the process configures logging
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # any client could forge its address
            timeout_keep_alive=int(2 * listener.limits.idle_timeout) + 1,  # the listener's is first
        )
        self.config.load()

    async def drain(self, timeout: float) -> None:
        """Wait for requests in flight; after *timeout* seconds, close their connections."""
        for connection in list(self.state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        stalled = loop.call_later(min(STALL_TIMEOUT, timeout), self.listener.abort_stalled)
        try:
            async with asyncio.timeout(timeout):
                await self._wait_idle()
        except TimeoutError:
            number = len(self.state.tasks)
            log_fields = {"serves": self.listener.name, "timeout": timeout, "requests": number}
            log.info("shutdown timeout: requests in flight are aborted", extra=log_fields)
        finally:
            stalled.cancel()
            # For the application, its clients have disconnected. Some are slow to close TLS.
            self.listener.abort_all()
        if self.state.tasks:
            _, running = await asyncio.wait(self.state.tasks, timeout=END_TIMEOUT)
            for task in running:
                task.cancel()
        await asyncio.sleep(0)  # the loop closes the sockets

    async def _wait_idle(self) -> None:
        while self.state.tasks or self.state.connections:
            self.lost.clear()
            if self.state.tasks:
                await asyncio.wait(self.state.tasks)
            if self.state.connections:
                await self.lost.wait()


class _LingeringTransport:
    """A transport that is closed as the connection in front of the backend decides."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Backend(HttpToolsProtocol):
    """uvicorn's protocol for one connection; it reports responses that are complete."""

    def __init__(self, backends: _Backends) -> None:
        super().__init__(config=backends.config, server_state=backends.state, app_state={})
        self._backends = backends
        self._listener = backends.listener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection = self._listener.connection_of(self)
        if self._connection is not None:
            self.transport = _LingeringTransport(  # type: ignore[assignment]
                transport, self._connection.close_backend
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._backends.lost.set()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._connection is not None:
            self.scope["state"].update(self._listener.request_state(self._connection))

    def on_headers_complete(self) -> None:
        self.server_state.default_headers = [(b"date", _http_date(int(time.time())))]
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._listener.on_response_sent(self)


@lru_cache(maxsize=1)
def _http_date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()
