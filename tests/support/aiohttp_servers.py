"""The end of aiohttp servers in tests."""

import asyncio

from aiohttp import web


async def stop_server(runner: web.AppRunner) -> None:
    """Stop a server, and abort the connections that its clients have not closed.

    asyncio closes a connection with TLS only once the client has responded, which may be after the
    end of the event loop.
    """
    connections = runner.server.connections if runner.server is not None else []
    transports = [each.transport for each in connections if each.transport is not None]
    await runner.cleanup()
    for transport in transports:
        transport.abort()
    await asyncio.sleep(0)  # the loop closes the sockets
