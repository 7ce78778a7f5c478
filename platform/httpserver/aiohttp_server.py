"""Applications of aiohttp behind a listener with limits."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web

from .buffering import Fronts

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving_application(
    app: web.Application,
    fronts: Fronts,
    sockets: Iterable[socket.socket],
    *,
    tls: ssl.SSLContext,
    grace: float,
) -> AsyncIterator[None]:
    """Serve *app* on *sockets* for the length of the block.

    At its end, requests under way get *grace* seconds.
    """

    @web.middleware
    async def tell(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            fronts.answered(request.protocol)

    app.middlewares.append(tell)
    # The listener's limit of idle connections is to be the first.
    keepalive = 2 * fronts.limits.idle_timeout
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        keepalive_timeout=keepalive,
        shutdown_timeout=grace,
    )
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("the application was not set up")
    fronts.inner = runner.server
    for listening in sockets:
        fronts.listen(listening, tls=tls)
    try:
        yield
    finally:
        fronts.stop()
        try:
            await runner.cleanup()
        finally:
            # Some clients take their time to end TLS in order.
            fronts.abort_all()
            await asyncio.sleep(0)  # the loop closes the sockets
