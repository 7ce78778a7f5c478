"""A WebSocket client of exec, attach and port-forward, which sees every channel."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import aiohttp
from support.embedded_apiserver import Server

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


@dataclass(slots=True)
class ChannelSocket:
    """A WebSocket with channels."""

    socket: aiohttp.ClientWebSocketResponse
    received: dict[int, bytes] = field(default_factory=dict)

    async def send(self, channel: int, data: bytes) -> None:
        await self.socket.send_bytes(bytes([channel]) + data)

    async def resize(self, width: int, height: int) -> None:
        await self.send(RESIZE, json.dumps({"Width": width, "Height": height}).encode())

    async def receive(self) -> bool:
        """Receive one message; ``False`` at the end."""
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return False
        channel, data = message.data[0], message.data[1:]
        self.received[channel] = self.received.get(channel, b"") + data
        return True

    async def wait_output(self, text: bytes, channel: int = STDOUT) -> None:
        """Receive until *text* has arrived."""
        while text not in self.received.get(channel, b""):
            assert await self.receive(), self.received

    async def finish(self) -> dict[str, Any]:
        """Receive all; return the final status."""
        while await self.receive():
            continue
        status: dict[str, Any] = json.loads(self.received[ERROR])
        return status


@asynccontextmanager
async def open_channels(
    server: Server,
    path: str,
    *,
    protocol: str = "v4.channel.k8s.io",
    headers: Mapping[str, str] = MappingProxyType({}),
    **query: Any,
) -> AsyncIterator[ChannelSocket]:
    """A WebSocket to a subresource of a pod; *query* may have lists."""
    url = f"{server.url}{path}?{urlencode(query, doseq=True)}"
    sent = {"Authorization": f"Bearer {server.tokens['admin']}", **headers}
    async with server.session.ws_connect(url, headers=sent, protocols=[protocol]) as socket:
        yield ChannelSocket(socket)
