"""Received bytes of one stream, in bounded memory."""

import asyncio

_LIMIT = 256 * 1024


class Inbox:
    """Bytes from a connection's reader to the user of one of its streams.

    The reader waits while 256 KiB are unread, and so stops to receive, for all streams.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._closed = self._discarding = False
        self._available = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()

    async def put(self, data: bytes) -> None:
        """Append *data*, once there is space; drop it after `close` or `discard`."""
        await self._space.wait()
        if data and not (self._closed or self._discarding):
            self._chunks.append(data)
            self._size += len(data)
            if self._size >= _LIMIT:
                self._space.clear()
            self._available.set()

    def close(self) -> None:
        """Mark the end; what was received can still be read."""
        self._closed = True
        self._available.set()
        self._space.set()

    def discard(self) -> None:
        """Drop what is unread and what arrives from now on."""
        self._discarding = True
        self._chunks.clear()
        self._size = 0
        self._space.set()

    async def get(self) -> bytes:
        """Return all that is unread, at least a byte; empty at the end."""
        while not self._chunks:
            if self._closed:
                return b""
            self._available.clear()
            await self._available.wait()
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        self._space.set()
        return data
