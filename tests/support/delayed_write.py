"""A leader whose last write is delayed while another replica takes the lead."""

import asyncio
from typing import Any

from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.errors import ConnectionLostError


class DelayedWriteClient(Client):
    """Holds the first *method* request whose path contains *in_path*; later requests fail."""

    def __init__(self, credentials: Credentials, method: str, in_path: str) -> None:
        super().__init__(credentials, user_agent="test")
        self.held = asyncio.Event()
        """The write is on its way."""
        self.arrived = asyncio.Event()
        """The server has had it."""
        self.error: Exception | None = None
        self._method, self._in_path = method, in_path
        self._released = asyncio.Event()

    async def deliver(self) -> None:
        """Let the server have it."""
        self._released.set()
        await self.arrived.wait()

    async def _send(self, method: str, path: str, *rest: Any) -> bytes:
        if self.held.is_set():
            raise ConnectionLostError("dead")
        if method != self._method or self._in_path not in path:
            return await super()._send(method, path, *rest)
        self.held.set()
        await self._released.wait()
        try:
            return await super()._send(method, path, *rest)
        except Exception as error:
            self.error = error
            raise
        finally:
            self.arrived.set()
