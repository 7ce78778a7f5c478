"""Streams for pages: that something has changed, and logs.

A page reads its content again when its stream reports a change. So a stream that is resumed, or
that reports a change twice, adds no row twice.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Scope, Send

from .rest import Query, RestCalls

CHANGES = (b"added", b"modified", b"deleted")
_EVENT = re.compile(rb"^event: (\w+)$", re.MULTILINE)
_ID = re.compile(rb"^id: .*\n?", re.MULTILINE)


class ChangeFilter:
    """Reduces the events of a stream of jobs to what a page needs of them."""

    def __init__(self) -> None:
        self._incomplete = b""

    def __call__(self, piece: bytes) -> bytes:
        """Return *piece* without the initial list and without objects; positions are kept."""
        *frames, self._incomplete = (self._incomplete + piece).split(b"\n\n")
        return b"".join(_reduce(frame) for frame in frames)


def _reduce(frame: bytes) -> bytes:
    found = _EVENT.match(frame)
    if found is None or found[1] not in (*CHANGES, b"list"):
        return frame + b"\n\n"
    if found[1] == b"list":
        return b""
    position = _ID.search(frame + b"\n")
    return b"event: change\ndata: {}\n%b\n" % (b"" if position is None else position[0])


class StreamResponse:
    """The response of a stream of the REST API, which ends with the session."""

    def __init__(
        self,
        rest: RestCalls,
        path: str,
        query: Query,
        *,
        convert: Callable[[bytes], bytes],
        session_end: Callable[[], Awaitable[None]],
        last_event_id: str | None = None,
    ) -> None:
        """*session_end* returns when the session has ended."""
        self._rest = rest
        self._path = path
        self._query = query
        self._convert = convert
        self._session_end = session_end
        self._headers: tuple[tuple[bytes, bytes], ...] = ()
        if last_event_id is not None:
            self._headers = ((b"last-event-id", last_event_id.encode("latin-1")),)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond until the stream, the session or the connection ends."""
        more = False

        async def send_observed(message: Message) -> None:
            nonlocal more
            more = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        session_end = asyncio.ensure_future(self._session_end())
        try:
            await self._rest.stream(
                self._path,
                self._query,
                headers=self._headers,
                receive=receive,
                send=send_observed,
                convert=self._convert,
                end=session_end,
            )
            if more and session_end.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            session_end.cancel()
