"""The ASGI application: HTTP in, HTTP out, nothing of Kubernetes' objects in between.

Plain ASGI, because a framework would cost more than everything else a write needs. Every request
is authenticated, read, handed to the handler of its path, and every refusal becomes a ``Status``
here and only here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from .auth import ANONYMOUS, Authenticator, User, is_open
from .catalog import Catalog
from .discovery import AGGREGATED_TYPE
from .errors import StatusError, bad_request, internal, method_not_allowed, too_large, unauthorized
from .handlers import Handlers
from .negotiate import wants_aggregated
from .objects import new_uid
from .requests import JSON, TEXT, Request, Response, parse_query
from .routes import locate

log = logging.getLogger(__name__)

BODY_LIMIT = 3 * 1024 * 1024
"""Bytes that a request may send."""

NOT_MODIFIED = 304

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.0+batholith",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux",
}
"""Which Kubernetes we behave like."""

_NOT_FOUND = Response(status=404, body=b"404 page not found\n", content_type=TEXT)


@dataclass(slots=True, kw_only=True)
class App:
    """Everything that answers requests."""

    catalog: Catalog
    handlers: Handlers
    known: Authenticator
    address: str
    """``host:port`` at which we are reached."""

    ready: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        warnings: list[str] = []
        try:
            response = await self._answer(scope, receive, warnings)
        except StatusError as error:
            response = _refused(error)
        except Exception:
            log.exception("a request failed", extra={"path": scope["path"]})
            response = _refused(internal("see the server's log"))
        await _send(response, warnings, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, warnings: list[str]) -> Response:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        path: str = scope["path"]
        user = self._user(headers.get("authorization", ""), path)
        method: str = scope["method"]
        body = b"" if method in ("GET", "HEAD") else await _read(receive)
        request = Request(
            method=method,
            path=path,
            query=parse_query(scope["query_string"]),
            headers=headers,
            body=body,
            user=user,
            warnings=warnings,
        )
        place = locate(path)
        if place is None:
            return self._other(request)
        kind = self.catalog.get(place.group, place.version, place.plural)
        if kind is None:
            return _NOT_FOUND
        return await self.handlers.answer(request, kind, place)

    def _user(self, authorization: str, path: str) -> User:
        if authorization:
            user = self.known.from_header(authorization)
            if user is not None:
                return user
        elif is_open(path):
            return ANONYMOUS
        raise unauthorized()

    def _other(self, request: Request) -> Response:
        """Discovery, health, version."""
        path = request.path.rstrip("/") or "/"
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        if path == "/version":
            return Response(body=msgspec.json.encode(VERSION) + b"\n")
        if is_open(path):
            return self._health(request, path)
        if path.startswith(("/api", "/openapi/v3")):
            return self._document(request, path)
        return _NOT_FOUND

    def _health(self, request: Request, path: str) -> Response:
        well = self.ready or not path.startswith("/readyz")
        name = path.strip("/").split("/")[0]
        if "verbose" in request.query:
            mark = "[+]ping ok\n[+]store ok\n" if well else "[-]store failed: reason withheld\n"
            text = f"{mark}{name} check {'passed' if well else 'failed'}\n"
        else:
            text = "ok" if well else "not ready"
        return Response(status=200 if well else 500, body=text.encode(), content_type=TEXT)

    def _document(self, request: Request, path: str) -> Response:
        aggregated = path in ("/api", "/apis") and wants_aggregated(
            request.headers.get("accept", "")
        )
        found = self.catalog.document(path, aggregated=aggregated, address=self.address)
        if found is None:
            return _NOT_FOUND
        body, tag = found
        headers = ((b"etag", tag.encode()), (b"vary", b"Accept"))
        if request.headers.get("if-none-match") == tag:
            return Response(status=NOT_MODIFIED, headers=headers)
        content_type = AGGREGATED_TYPE if aggregated else JSON
        return Response(body=body, headers=headers, content_type=content_type)


async def _read(receive: Receive) -> bytes:
    """The body of a request.

    Raises:
        StatusError: 413.
    """
    message = await _piece(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if len(body) > BODY_LIMIT:
            raise too_large(BODY_LIMIT)
        return body
    pieces, size = [body], len(body)
    while message.get("more_body"):
        message = await _piece(receive)
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > BODY_LIMIT:
            raise too_large(BODY_LIMIT)
    return b"".join(pieces)


async def _piece(receive: Receive) -> Message:
    """The next piece of a body. Half a body could be a whole object, so the rest must come."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise bad_request("the client hung up in the middle of its request")
    return message


def _refused(error: StatusError) -> Response:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after is not None:
        headers = ((b"retry-after", str(error.retry_after).encode()),)
    return Response(status=error.code, body=error.body() + b"\n", headers=headers)


async def _send(response: Response, warnings: list[str], receive: Receive, send: Send) -> None:
    headers = [
        (b"cache-control", b"no-cache, private"),
        (b"audit-id", new_uid().encode()),
        *response.headers,
        *((b"warning", _warning(text)) for text in warnings),
    ]
    if response.status != NOT_MODIFIED:
        # A cache takes over the headers of "not modified" for the body that it has.
        headers.append((b"content-type", response.content_type.encode()))
        if response.stream is None:
            headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if response.stream is None:
        await send({"type": "http.response.body", "body": response.body})
        return
    await _stream(response, receive, send)


def _warning(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    # A header is one line of Latin-1; what a client sent may be neither.
    plain = "".join(sign if sign.isprintable() else " " for sign in quoted)
    return f'299 - "{plain}"'.encode("latin-1", errors="replace")


async def _stream(response: Response, receive: Receive, send: Send) -> None:
    """Send pieces until they end or the client hangs up, which frees the stream at once."""
    sending = asyncio.create_task(_send_pieces(response, send))
    gone = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, gone):
            task.cancel()
        results = await asyncio.gather(sending, gone, return_exceptions=True)
    if isinstance(results[0], Exception):
        log.error("a stream broke off", exc_info=results[0])


async def _send_pieces(response: Response, send: Send) -> None:
    if response.stream is None:
        return
    async with aclosing(response.stream) as pieces:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
