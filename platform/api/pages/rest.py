"""Calls of the REST API within its process, with the bearer token of a session.

They pass through the whole application: authentication, rate limits, audit log and routes. So the
pages can do what their user can do over REST, and nothing else.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from ...httpserver.asgi import AsgiApp, Message, Receive, Scope, Send, wait_disconnected
from ...wire.problem import Problem

T = TypeVar("T")

Query = Mapping[str, object]
"""Parameters of a query; those that are ``None`` or empty are omitted, and a list is repeated."""

_MAX_PAGES = 100
"""Pages of a list that are read for one page of HTML."""


class RestError(Exception):
    """The REST API has responded with a problem."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def rest_path(*segments: str) -> str:
    """Return the path of *segments* below ``/v1``.

    Raises:
        RestError: a segment would address something else.
    """
    for segment in segments:
        if not segment or "/" in segment or segment in (".", ".."):
            raise RestError(404, f"{segment!r} is no name")
    return "/v1/" + "/".join(segments)


def encode_query(query: Query) -> str:
    """Return the query of a URL."""
    given = {key: value for key, value in query.items() if value not in (None, "", [], ())}
    return urlencode(given, doseq=True)


class RestCalls:
    """Calls on behalf of the request with *scope*, which is their source, too."""

    def __init__(self, app: AsgiApp, scope: Scope, token: str) -> None:
        """Call *app*, the REST API, with *token*."""
        self._app = app
        self._scope = scope
        self._authorization = f"Bearer {token}".encode("latin-1")

    async def get(self, path: str, type_: type[T], query: Query | None = None) -> T:
        """Return the response to a GET.

        Raises:
            RestError: the API has responded with a problem.
        """
        return msgspec.json.decode(await self.call("GET", path, query=query), type=type_)

    async def items(
        self, path: str, page_type: type[Any], query: Query | None = None
    ) -> AsyncIterator[Any]:
        """Yield the items of all pages of a list.

        Raises:
            RestError: the API has responded with a problem.
        """
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self.get(
                path, page_type, {"limit": 500, **(query or {}), "cursor": cursor}
            )
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def call(
        self, method: str, path: str, *, query: Query | None = None, body: object = None
    ) -> bytes:
        """Return the body of the response.

        Raises:
            RestError: the API has responded with a problem.
        """
        sent = b"" if body is None else msgspec.json.encode(body)
        messages = [{"type": "http.request", "body": sent, "more_body": False}]
        status, pieces = 0, []

        async def receive() -> Message:
            if messages:
                return messages.pop()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                pieces.append(message.get("body", b""))

        await self._app(self._scope_of(method, path, query or {}, sent), receive, send)
        content = b"".join(pieces)
        if status >= HTTPStatus.BAD_REQUEST:
            raise RestError(status, _detail(status, content))
        return content

    async def stream(
        self,
        path: str,
        query: Query,
        *,
        headers: tuple[tuple[bytes, bytes], ...],
        receive: Receive,
        send: Send,
        convert: Callable[[bytes], bytes],
        end: asyncio.Future[None],
    ) -> None:
        """Respond with the body of a GET, piece by piece, each converted.

        Ends when the client of *receive* disconnects, or once *end* is done.
        """
        scope = self._scope_of("GET", path, query, b"")
        scope["headers"] += headers
        requested = False

        async def receive_or_end() -> Message:
            nonlocal requested
            if not requested:
                requested = True
                return {"type": "http.request", "body": b"", "more_body": False}
            disconnected = asyncio.ensure_future(wait_disconnected(receive))
            try:
                await asyncio.wait((disconnected, end), return_when=asyncio.FIRST_COMPLETED)
            finally:
                disconnected.cancel()
            return {"type": "http.disconnect"}

        async def send_converted(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": convert(message.get("body", b""))}
            await send(message)

        await self._app(scope, receive_or_end, send_converted)

    def _scope_of(self, method: str, path: str, query: Query, body: bytes) -> dict[str, Any]:
        outer = self._scope
        headers = [(b"authorization", self._authorization)]
        if body:
            headers.append((b"content-length", str(len(body)).encode()))
        return {
            "type": "http",
            "asgi": outer.get("asgi", {"version": "3.0"}),
            "http_version": "1.1",
            "method": method,
            "scheme": outer.get("scheme", "http"),
            "path": path,
            "raw_path": quote(path).encode(),
            "root_path": "",
            "query_string": encode_query(query).encode(),
            "headers": headers,
            "client": outer.get("client"),
            "server": outer.get("server"),
            "state": {},
        }


def _detail(status: int, content: bytes) -> str:
    try:
        return msgspec.json.decode(content, type=Problem).detail
    except msgspec.DecodeError:
        return HTTPStatus(status).phrase
