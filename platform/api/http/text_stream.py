"""Responses of text whose length is not known: written as it arrives, until the client ends it.

An error before the first byte becomes a problem. One after it breaks the transfer: the response is
not completed, so that the client does not take what it has received for everything.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ...httpserver.asgi import wait_disconnected

log = logging.getLogger(__name__)

SEND_TIMEOUT = 300.0
"""Seconds for which a client may not read while there is something to write."""


class SlowReaderError(Exception):
    """The client has not read for `SEND_TIMEOUT`."""


class TextOutput:
    """The body of one response; safe for concurrent writers, which are served in order."""

    def __init__(self, send: Send) -> None:
        self.started = asyncio.Event()
        """The status was sent."""
        self._send = send
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Send status and headers, unless they were sent."""
        async with self._lock:
            await self._start()

    async def write(self, data: bytes) -> None:
        """Write *data*; wait while the client reads more slowly than this.

        Raises:
            SlowReaderError: it does not read at all.
        """
        async with self._lock:
            await self._start()
            await self._send_message(
                {"type": "http.response.body", "body": data, "more_body": True}
            )

    async def finish(self) -> None:
        """Complete the response."""
        async with self._lock:
            await self._start()
            await self._send_message({"type": "http.response.body", "body": b""})

    async def _start(self) -> None:
        if not self.started.is_set():
            headers = [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
            ]
            await self._send_message(
                {"type": "http.response.start", "status": 200, "headers": headers}
            )
            self.started.set()

    async def _send_message(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await self._send(message)
        except TimeoutError:
            raise SlowReaderError(f"the client has not read for {SEND_TIMEOUT:g} s") from None


class TextStream(Response):
    """A response that *write* produces; it is cancelled when the client disconnects."""

    media_type = "text/plain"

    def __init__(self, write: Callable[[TextOutput], Awaitable[None]]) -> None:
        super().__init__()
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the text is complete or the client disconnects."""
        output = TextOutput(send)
        writing = asyncio.ensure_future(self._write(output))
        others: list[asyncio.Future[Any]] = [asyncio.ensure_future(wait_disconnected(receive))]
        if scope["method"] == "HEAD":
            others.append(asyncio.ensure_future(output.started.wait()))
        try:
            await asyncio.wait((writing, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = writing.done()
            for task in (writing, *others):
                task.cancel()
            await asyncio.gather(writing, *others, return_exceptions=True)
        if not finished:
            if scope["method"] == "HEAD" and output.started.is_set():
                await output.finish()
            return
        error = writing.exception()
        if error is None:
            await output.finish()
        elif not output.started.is_set():
            raise error
        else:
            log.warning("text stream broken", extra={"path": scope["path"], "error": str(error)})
