"""Watch streams that a test can break, expire and stall."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from ..local.apiserver.errors.status import expired
from ..local.apiserver.http.connections import AbortHandlerError
from ..local.apiserver.storage.stored_objects import watch_line
from .requests import RecordedRequest

_END = b""
"""Ends a stream; the server itself sends nothing that is empty."""


class WatchStream:
    """An open watch: the response that the server still sends."""

    def __init__(self, request: RecordedRequest, source: AsyncGenerator[bytes]) -> None:
        self.request = request
        self._source = source
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._pieces: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._allowance: int | None = None

    def close(self) -> None:
        """End the stream in order, as a server does after its ``timeoutSeconds``."""
        self._pieces.put_nowait(_END)

    def abort(self) -> None:
        """Close the connection without the end of the response."""
        self._pieces.put_nowait(AbortHandlerError())

    def abort_after(self, size: int) -> None:
        """Close the connection after *size* more bytes, be it in the middle of an event."""
        self._allowance = size

    def expire(self, message: str = "too old resource version") -> None:
        """Send the ERROR event of 410 ``Expired`` and end the stream."""
        self.send(watch_line("ERROR", expired(message).body()))
        self.close()

    def stall(self) -> None:
        """Deliver no more events, and leave the connection open."""
        self._flowing.clear()

    def resume(self) -> None:
        """Deliver what :meth:`stall` kept back, and what follows."""
        self._flowing.set()

    def send(self, data: bytes) -> None:
        """Send *data* between two events, whether the stream is stalled or not."""
        self._pieces.put_nowait(data)

    def send_event(self, type: str, obj: object) -> None:  # noqa: A002 - name of the field
        """Send an event that the server does not know of."""
        self.send(watch_line(type, msgspec.json.encode(obj)))

    async def pieces(self, forget: Callable[["WatchStream"], None]) -> AsyncGenerator[bytes]:
        """Yield what the client receives; *forget* is called at the end."""
        forwarding = asyncio.get_running_loop().create_task(self._forward())
        try:
            while (piece := await self._pieces.get()) != _END:
                yield self._checked(piece)
                if self._allowance == 0:
                    raise AbortHandlerError
        finally:
            forget(self)
            forwarding.cancel()
            await asyncio.wait([forwarding])

    def _checked(self, piece: bytes | Exception) -> bytes:
        if isinstance(piece, Exception):
            raise piece
        if self._allowance is not None:
            piece = piece[: self._allowance]
            self._allowance -= len(piece)
        return piece

    async def _forward(self) -> None:
        try:
            async with aclosing(self._source) as source:
                async for piece in source:
                    await self._flowing.wait()
                    if piece:
                        self._pieces.put_nowait(piece)
        except Exception as error:
            self._pieces.put_nowait(error)
        self.close()
