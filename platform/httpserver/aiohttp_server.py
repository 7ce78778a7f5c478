"""aiohttp applications behind a listener with limits."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web

from .buffering import BufferingListener

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve_application(
    app: web.Application,
    listener: BufferingListener,
    sockets: Iterable[socket.socket],
    *,
    tls: ssl.SSLContext,
    shutdown_timeout: float,
) -> AsyncIterator[None]:
    """Serve *app* on *sockets* for the length of the block.

    On exit, requests in flight get *shutdown_timeout* seconds.
    """

    @web.middleware
    async def notify_listener(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            listener.on_response_sent(request.protocol)

    app.middlewares.append(notify_listener)
    # The listener's idle timeout must expire first.
    keepalive = 2 * listener.limits.idle_timeout
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        keepalive_timeout=keepalive,
        shutdown_timeout=shutdown_timeout,
    )
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("the application is not set up")
    listener.backend_factory = runner.server
    for listening_socket in sockets:
        listener.listen(listening_socket, tls=tls)
    try:
        yield
    finally:
        listener.stop()
        try:
            await runner.cleanup()
        finally:
            # Some clients are slow to close TLS properly.
            listener.abort_all()
            await asyncio.sleep(0)  # the loop closes the sockets
