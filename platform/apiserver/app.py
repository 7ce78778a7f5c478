"""The application: HTTP in, HTTP out, nothing of Kubernetes' objects in between.

Every request is authenticated, handed to the handler of its path, and every refusal becomes a
``Status`` here and only here.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from .discovery.catalog import Catalog
from .discovery.documents import AGGREGATED_TYPE
from .errors.status import (
    StatusError,
    internal,
    method_not_allowed,
    no_impersonation,
    no_such_path,
    too_large,
    unauthorized,
)
from .http.auth import ANONYMOUS, Authenticator, User, impersonated, is_open
from .http.connections import BODY_LIMIT, Asked, Reply
from .http.negotiation import wants_aggregated, wants_indented
from .http.requests import JSON, TEXT, Request, Response, parse_query
from .http.routes import Place, locate
from .metrics import CONTENT_TYPE, Figures
from .storage.stored_objects import new_uid
from .verbs.handlers import Handlers

log = logging.getLogger(__name__)

NOT_MODIFIED = 304
_JSONS = (JSON, AGGREGATED_TYPE)

_WARNINGS_LENGTH = 4096
"""Characters of all warnings of an answer; if there are more, each is cut short."""

_WARNING_LENGTH = 256
_WARNINGS = 50
"""Some clients refuse an answer of more than a hundred headers."""

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
    figures: Figures
    address: str
    """``host:port`` at which we are reached."""

    writable: Callable[[], bool]
    """Whether the store takes writes."""

    ready: bool = False

    def knows(self, asked: Asked) -> bool:
        """Whether a request, whose body has not come yet, brings a token that is known."""
        return self.known.from_header(asked.headers.get("authorization", "")) is not None

    async def __call__(self, asked: Asked) -> Reply:
        """Answer one request."""
        warnings: list[str] = []
        indented = wants_indented(asked.query, asked.headers.get("user-agent", ""))
        try:
            response = await self._answer(asked, warnings)
            if indented and not response.live:
                await _gather(response)
        except StatusError as error:
            response = _refused(error)
        except Exception:
            log.exception("a request failed", extra={"path": asked.path})
            response = _refused(internal("see the server's log"))
        self.figures.requests[asked.method, response.status] += 1
        if indented and response.body and response.content_type in _JSONS:
            response.body = msgspec.json.format(response.body, indent=2) + b"\n"
        return _reply(response, warnings)

    async def _answer(self, asked: Asked, warnings: list[str]) -> Response:
        path, headers = asked.path, asked.headers
        user = self._user(headers.get("authorization", ""), path)
        if header := impersonated(headers):
            # Never as the caller: that could do what the other user may not.
            raise no_impersonation(user.name, header)
        if asked.too_large:
            raise too_large(BODY_LIMIT)
        request = Request(
            method=asked.method,
            path=path,
            query=parse_query(asked.query),
            headers=headers,
            body=asked.body,
            user=user,
            warnings=warnings,
        )
        place = locate(path)
        if place is None:
            return self._other(request)
        kind = self.catalog.get(place.group, place.version, place.plural)
        if kind is None:
            if self._is_built_in(place):
                raise no_such_path()
            return _NOT_FOUND
        return await self.handlers.answer(request, kind, place)

    def _is_built_in(self, place: Place) -> bool:
        """Whether *place* is of a group of Kubernetes, in a version that we serve."""
        if "." in place.group and not place.group.endswith(".k8s.io"):
            return False
        path = f"/apis/{place.group}/{place.version}" if place.group else f"/api/{place.version}"
        return self.catalog.document(path, aggregated=False, address="") is not None

    def _user(self, authorization: str, path: str) -> User:
        if authorization:
            user = self.known.from_header(authorization)
            if user is not None:
                return user
        elif is_open(path):
            return ANONYMOUS
        raise unauthorized()

    def _other(self, request: Request) -> Response:
        """Discovery, health, figures, version."""
        path = request.path.rstrip("/") or "/"
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        if path == "/version":
            return Response(body=msgspec.json.encode(VERSION) + b"\n")
        if is_open(path):
            return self._health(request, path)
        if path == "/metrics":
            return Response(body=self.figures.text(), content_type=CONTENT_TYPE)
        if path.startswith(("/api", "/openapi/v3")):
            return self._document(request, path)
        return _NOT_FOUND

    def _health(self, request: Request, path: str) -> Response:
        well = not path.startswith("/readyz") or (self.ready and self.writable())
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


def _refused(error: StatusError) -> Response:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after is not None:
        headers = ((b"retry-after", str(error.retry_after).encode()),)
    return Response(status=error.code, body=error.body() + b"\n", headers=headers)


def _reply(response: Response, warnings: list[str]) -> Reply:
    lines = b"cache-control: no-cache, private\r\naudit-id: %b\r\n" % new_uid().encode()
    for name, value in response.headers:
        lines += b"%b: %b\r\n" % (name, value)
    for text in _short(warnings):
        lines += b"warning: %b\r\n" % _warning(text)
    if response.status != NOT_MODIFIED:
        # A cache takes over the headers of "not modified" for the body that it has.
        lines += b"content-type: %b\r\n" % response.content_type.encode()
    return Reply(response.status, lines, response.body, response.stream)


def _short(warnings: list[str]) -> list[str]:
    """What of *warnings* fits into the headers of an answer; each of them once."""
    if not warnings:
        return warnings
    texts = list(dict.fromkeys(warnings))
    if sum(map(len, texts)) > _WARNINGS_LENGTH:
        texts = [text[:_WARNING_LENGTH] for text in texts]
    sums = accumulate(map(len, texts))
    return [text for text, length in zip(texts, sums, strict=True) if length <= _WARNINGS_LENGTH][
        :_WARNINGS
    ]


async def _gather(response: Response) -> None:
    """Have a long list in one piece."""
    if response.stream is not None and response.content_type == JSON:
        response.body = b"".join([piece async for piece in response.stream])
        response.stream = None


def _warning(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    # A header is one line of Latin-1; what a client sent may be neither.
    plain = "".join(sign if sign.isprintable() else " " for sign in quoted)
    return f'299 - "{plain}"'.encode("latin-1", errors="replace")
