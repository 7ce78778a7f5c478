"""Connections after an upgrade from HTTP: bytes in both directions, in bounded memory."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

_READ_SIZE = 64 * 1024
"""Bytes of one read; twice as many are buffered before the transport stops to receive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeRequest:
    """The request that asked for another protocol."""

    method: str
    target: str
    """Path and query, as received."""

    headers: Sequence[tuple[str, str]]
    """Names are lowercase."""

    def values(self, name: str) -> list[str]:
        """Return the items of a header whose values are lists; it may be repeated."""
        found = (value for key, value in self.headers if key == name)
        return [item.strip() for value in found for item in value.split(",") if item.strip()]


class UpgradedConnection:
    """A connection that another protocol uses; its HTTP protocol passes on all calls."""

    def __init__(self, transport: asyncio.Transport, received: bytes = b"") -> None:
        """Adopt *transport*; *received* are the bytes after the request."""
        self._transport = transport
        self._reader = asyncio.StreamReader(limit=_READ_SIZE)
        self._reader.set_transport(transport)
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = False
        self.lost = asyncio.Event()
        """Set when the connection is closed."""
        if received:
            self._reader.feed_data(received)

    # -- called by the protocol

    def feed_data(self, data: bytes) -> None:
        """Handle received bytes."""
        if not self._ended:
            self._reader.feed_data(data)

    def feed_eof(self) -> None:
        """Handle the end of what the peer sends."""
        if not self._ended:
            self._ended = True
            self._reader.feed_eof()

    def pause_writing(self) -> None:
        """Let `drain` wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let `drain` return."""
        self._writable.set()

    def connection_lost(self) -> None:
        """End reads, and fail writes."""
        self.lost.set()
        self.feed_eof()
        self._writable.set()

    # -- called by the user of the connection

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end."""
        return await self._reader.read(_READ_SIZE)

    def write(self, data: bytes) -> None:
        """Send *data*; to be followed by `drain`, else the buffer grows."""
        if not self.lost.is_set():
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait while the peer reads more slowly than is written.

        Raises:
            ConnectionResetError: the connection is closed.
        """
        await self._writable.wait()
        if self.lost.is_set():
            raise ConnectionResetError("the connection is closed")

    def close(self) -> None:
        """Close once all is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()


UpgradeHandler = Callable[[UpgradeRequest, UpgradedConnection], Awaitable[None]]
"""Writes the response to the request, uses the connection, and returns once it may be closed."""
