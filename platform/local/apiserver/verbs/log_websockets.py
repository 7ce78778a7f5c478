"""Logs of containers over WebSockets, for clients that can follow a log in no other way."""

import asyncio
import base64
from collections.abc import AsyncGenerator

from ....httpserver.upgrades import UpgradedConnection
from ....httpserver.websocket import WebSocket, handshake_headers
from ....kube.supervision import cancel_and_wait
from ..errors.status import StatusError
from ..http.requests import Request, Response
from .stream_proxy import SWITCHING_PROTOCOLS, check_upgrade

_BINARY, _BASE64 = "binary.k8s.io", "base64.binary.k8s.io"
_SUPPORTED = ("", _BINARY, _BASE64)


def negotiate(request: Request) -> str | None:
    """Return the first of the client's protocols that is supported; None without a WebSocket.

    Raises:
        StatusError: 403, none is supported.
    """
    try:
        check_upgrade(request)
    except StatusError:
        return None
    if request.headers["upgrade"].lower() != "websocket":
        return None
    header = request.headers.get("sec-websocket-protocol", "")
    offered = [each.strip() for each in header.split(",")]
    for each in offered:
        if each in _SUPPORTED:
            return each
    text = f"requested protocol(s) are not supported: {offered}; supports {list(_SUPPORTED)}"
    raise StatusError(403, "Forbidden", text)


def response(request: Request, protocol: str, log: AsyncGenerator[bytes]) -> Response:
    """Return the response that sends *log*, as kube-apiserver does.

    The first message is empty, so that the client sees an open connection before there is a line.
    """
    is_text = protocol == _BASE64

    async def tunnel(connection: UpgradedConnection) -> None:
        websocket = WebSocket(connection)

        def write(data: bytes) -> None:
            if is_text:
                websocket.write_text(base64.b64encode(data).decode())
            else:
                websocket.write(data)

        async def receive() -> None:
            async for _ in websocket.pieces():
                pass  # pings are replied to; what else a client sends has no meaning

        async def send() -> None:
            write(b"")
            async for chunk in log:
                write(chunk)
                await websocket.drain()
            await websocket.close()
            await asyncio.wait({receiving})  # a slow client has not read the rest yet

        receiving = asyncio.ensure_future(receive())
        tasks = [receiving, asyncio.ensure_future(send())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(*tasks)
            await log.aclose()

    headers = tuple(handshake_headers(request.headers.get("sec-websocket-key", ""), protocol))
    return Response(status=SWITCHING_PROTOCOLS, headers=headers, tunnel=tunnel)
