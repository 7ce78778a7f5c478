"""The application: handles HTTP requests.

Every request is authenticated, authorized and passed to the handler of its path; every error
becomes a ``Status`` here and only here.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from ...machinery.clock import Clock
from ...machinery.x509 import Subject
from .aggregation.client import AggregatorClient
from .aggregation.remote_apis import RemoteApis
from .authorization.attributes import request_attributes
from .authorization.authorizer import Authorizer
from .authorization.impersonation import acting_user, impersonates
from .authorization.node_authorizer import NOT_NEEDED
from .authorization.rules import Attributes
from .current_time import use_clock
from .discovery.catalog import Catalog
from .discovery.documents import aggregated_type
from .errors.status import (
    StatusError,
    internal,
    method_not_allowed,
    path_not_found,
    timed_out,
    too_large,
    unauthorized,
)
from .http.auth import (
    ANONYMOUS,
    COMPONENTS_GROUP,
    MASTERS_GROUP,
    Authenticator,
    User,
    certificate_user,
)
from .http.connections import MAX_BODY_SIZE, AbortHandlerError, HttpRequest, HttpResponse
from .http.negotiation import (
    DISCOVERY_VERSIONS,
    aggregated_version,
    openapi_v2_type,
    wants_pretty,
)
from .http.offload import run_in_thread
from .http.requests import Request, Response, parse_query
from .http.routes import RequestInfo, parse_path
from .media_types import JSON, TEXT
from .metrics import CONTENT_TYPE, ServerMetrics
from .service_accounts.issuer import IssuerDiscovery
from .storage.stored_objects import new_uid
from .verbs.handlers import Handlers
from .verbs.options import request_timeout

log = logging.getLogger(__name__)

NOT_MODIFIED = 304
_WITHOUT_CONTENT = frozenset((101, NOT_MODIFIED))
_JSON_TYPES = (JSON, *map(aggregated_type, DISCOVERY_VERSIONS))

_MAX_WARNINGS_LENGTH = 4096
"""Total characters of the warnings of one response; beyond it, each is truncated."""

_MAX_WARNING_LENGTH = 256
_MAX_WARNINGS = 50
"""Some clients reject a response with more than a hundred headers."""

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
"""Kubernetes version that the server implements."""

_HEALTH_CHECKS = ("healthz", "livez", "readyz")

COMPONENT_DENIED = "component lacks a right"
"""Log message of a denied request of a component of the cluster."""

_LONG_RUNNING = frozenset(("attach", "exec", "log", "portforward", "proxy"))
"""Subresources whose requests have no time limit, as watches."""

_CHECKS = ("/ping", "/store")
"""Paths of single checks below those of health."""

_DOCUMENTS = (
    "/.well-known/openid-configuration", "/api", "/api/v1", "/apis", "/metrics", "/openapi/v2",
    "/openapi/v3", "/openid/v1/jwks", "/version",
)  # fmt: skip
_NOT_FOUND = Response(status=404, body=b"404 page not found\n", content_type=TEXT)


@dataclass(slots=True, kw_only=True)
class App:
    """Request handler of the server."""

    catalog: Catalog
    handlers: Handlers
    authenticator: Authenticator
    authorizer: Authorizer
    metrics: ServerMetrics
    address: str
    """``host:port`` at which clients reach the server."""

    writable: Callable[[], bool]
    """Whether the store accepts writes."""

    clock: Clock
    issuer: IssuerDiscovery
    is_revoked: Callable[[str], bool]
    """Whether the certificates of a user are revoked."""

    remote_apis: RemoteApis
    aggregator: AggregatorClient
    ready: bool = False

    def is_authenticated(self, http_request: HttpRequest) -> bool:
        """Return whether a request, whose body is not received yet, has valid credentials."""
        try:
            return self._authenticate(http_request) is not ANONYMOUS
        except StatusError:
            return False

    async def __call__(self, http_request: HttpRequest) -> HttpResponse:
        """Handle one request."""
        use_clock(self.clock)
        warnings: list[str] = []
        indented = wants_pretty(http_request.query, http_request.headers.get("user-agent", ""))
        try:
            response = await self._handle(http_request, warnings)
            if indented and not response.is_watch:
                await _buffer_stream(response)
        except StatusError as error:
            response = _error_response(error)
        except Exception:
            log.exception("cannot handle a request", extra={"path": http_request.path})
            response = _error_response(internal("see the server's log"))
        self.metrics.requests[http_request.method, response.status] += 1
        if indented and response.body and response.content_type in _JSON_TYPES:
            response.body = msgspec.json.format(response.body, indent=2) + b"\n"
        if response.stream is not None and http_request.certificate is not None:
            response.stream = self._until_revoked(response.stream, http_request.certificate)
        return _to_http_response(response, warnings)

    async def _until_revoked(
        self, stream: AsyncGenerator[bytes], certificate: Subject
    ) -> AsyncGenerator[bytes]:
        """Yield what the stream of a client yields until its certificate is revoked."""
        user = certificate_user(certificate, self.clock.now())
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                if user is not None and self.is_revoked(user.name):
                    raise AbortHandlerError
                yield piece

    async def _handle(self, http_request: HttpRequest, warnings: list[str]) -> Response:
        path, headers = http_request.path, http_request.headers
        user = self._authenticate(http_request)
        query = parse_query(http_request.query)
        api = self.remote_apis.find(path)
        request_info = parse_path(path, remote=api is not None)
        timeout = None if _is_long_running(request_info, query) else request_timeout(query)
        if MASTERS_GROUP not in user.groups or impersonates(headers):
            attributes = request_attributes(http_request.method, path, query, request_info)
            user = self._authorize(user, headers, attributes)
        if http_request.too_large:
            raise too_large(MAX_BODY_SIZE)
        request = Request(
            method=http_request.method,
            path=path,
            query=query,
            raw_query=http_request.query,
            headers=headers,
            body=http_request.body,
            user=user,
            warnings=warnings,
        )
        if api is not None:
            return await self.aggregator.forward(request, api)
        if request_info is None:
            return await self._handle_non_resource(request)
        kind = self.catalog.get(request_info.group, request_info.version, request_info.plural)
        if kind is None:
            if self._is_built_in(request_info):
                raise path_not_found()
            return _NOT_FOUND
        if timeout is None:
            return await self.handlers.handle(request, kind, request_info)
        try:
            async with asyncio.timeout(timeout) as deadline:
                return await self.handlers.handle(request, kind, request_info)
        except TimeoutError:
            if deadline.expired():
                raise timed_out() from None
            raise

    def _authorize(self, user: User, headers: Mapping[str, str], attributes: Attributes) -> User:
        """Return the user as whom a request of *user* is handled, if it is allowed.

        Raises:
            StatusError: 400 or 403.
        """
        try:
            acting = user
            if impersonates(headers):
                acting = acting_user(user, headers, attributes, self.authorizer)
            self.authorizer.check(acting, attributes)
        except StatusError as error:
            # A component of the cluster lacks a right, which its user cannot add.
            if COMPONENTS_GROUP in user.groups and NOT_NEEDED not in error.message:
                log.error(COMPONENT_DENIED, extra={"component": user.name, "error": error.message})
            raise
        return acting

    def _is_built_in(self, request_info: RequestInfo) -> bool:
        """Whether the path is in a group and version of Kubernetes that is served."""
        if "." in request_info.group and not request_info.group.endswith(".k8s.io"):
            return False
        path = (
            f"/apis/{request_info.group}/{request_info.version}"
            if request_info.group
            else f"/api/{request_info.version}"
        )
        return self.catalog.document(path, aggregated="", address="") is not None

    def _authenticate(self, http_request: HttpRequest) -> User:
        if http_request.certificate is not None:
            user = certificate_user(http_request.certificate, self.clock.now())
            if user is not None and self.is_revoked(user.name):
                raise unauthorized()
            if user is not None:
                return user
        authorization = http_request.headers.get("authorization", "")
        if not authorization:
            return ANONYMOUS
        user = self.authenticator.authenticate_header(authorization)
        if user is None:
            raise unauthorized()
        return user

    async def _handle_non_resource(self, request: Request) -> Response:
        """Serve discovery, health, metrics and version."""
        found = await self._non_resource(request, request.path.rstrip("/") or "/")
        if request.method not in ("GET", "HEAD") and found is not _NOT_FOUND:
            raise method_not_allowed()
        return found

    async def _non_resource(self, request: Request, path: str) -> Response:
        if path == "/":
            return Response(body=msgspec.json.encode({"paths": self._paths()}) + b"\n")
        if path == "/version":
            return Response(body=msgspec.json.encode(VERSION) + b"\n")
        if path.split("/")[1] in _HEALTH_CHECKS:
            return self._health(request, path)
        if found := self.issuer.document(path):
            return found
        if path == "/metrics":
            return Response(body=self.metrics.render(), content_type=CONTENT_TYPE)
        if path.startswith(("/api", "/openapi/v")):
            return await self._document(request, path)
        return _NOT_FOUND

    def _paths(self) -> list[str]:
        """Return the paths outside of the resources, and the groups and versions of these."""
        served = self.catalog.group_versions()
        versions = {f"/apis/{group}/{version}" for group, version in served if group}
        groups = {f"/apis/{group}" for group, _ in served if group}
        checks = {f"/{name}{check}" for name in _HEALTH_CHECKS for check in ("", *_CHECKS)}
        return sorted({*_DOCUMENTS, *checks, *groups, *versions})

    def _health(self, request: Request, path: str) -> Response:
        name = path.strip("/").split("/")[0]
        if path.removeprefix(f"/{name}") not in ("", *_CHECKS):
            return _NOT_FOUND
        healthy = not path.startswith("/readyz") or (self.ready and self.writable())
        if "verbose" in request.query:
            mark = "[+]ping ok\n[+]store ok\n" if healthy else "[-]store failed: reason withheld\n"
            text = f"{mark}{name} check {'passed' if healthy else 'failed'}\n"
        else:
            text = "ok" if healthy else "not ready"
        return Response(status=200 if healthy else 500, body=text.encode(), content_type=TEXT)

    async def _document(self, request: Request, path: str) -> Response:
        accept = request.headers.get("accept", "")
        content_type, aggregated = JSON, ""
        if path in ("/api", "/apis") and (aggregated := aggregated_version(accept)):
            content_type = aggregated_type(aggregated)
        elif path == "/openapi/v2":
            content_type = openapi_v2_type(accept)
        if path.startswith("/openapi/"):
            found = await self.catalog.openapi_document(path, content_type, run_in_thread)
        else:
            found = self.catalog.document(path, aggregated=aggregated, address=self.address)
        if found is None:
            return _NOT_FOUND
        body, tag = found
        headers = ((b"etag", tag.encode()), (b"vary", b"Accept"))
        if request.headers.get("if-none-match") == tag:
            return Response(status=NOT_MODIFIED, headers=headers)
        return Response(body=body, headers=headers, content_type=content_type)


def _is_long_running(request_info: RequestInfo | None, query: Mapping[str, str]) -> bool:
    if request_info is None:
        return False
    watches = request_info.watch or query.get("watch", "false").lower() not in ("false", "0")
    return watches or request_info.object_path.subresource in _LONG_RUNNING


def _error_response(error: StatusError) -> Response:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after is not None:
        headers = ((b"retry-after", str(error.retry_after).encode()),)
    return Response(status=error.code, body=error.body() + b"\n", headers=headers)


def _to_http_response(response: Response, warnings: list[str]) -> HttpResponse:
    lines = b"audit-id: %b\r\n" % new_uid().encode()
    if not any(name == b"cache-control" for name, _ in response.headers):
        lines += b"cache-control: no-cache, private\r\n"
    for name, value in response.headers:
        lines += b"%b: %b\r\n" % (name, value)
    for text in _truncate_warnings(warnings):
        lines += b"warning: %b\r\n" % _warning_header(text)
    if response.status not in _WITHOUT_CONTENT:
        # A client's cache keeps the headers of a 304 for the body that it has.
        lines += b"content-type: %b\r\n" % response.content_type.encode()
    return HttpResponse(response.status, lines, response.body, response.stream, response.tunnel)


def _truncate_warnings(warnings: list[str]) -> list[str]:
    """Return the distinct warnings that fit into the headers of a response."""
    if not warnings:
        return warnings
    texts = list(dict.fromkeys(warnings))
    if sum(map(len, texts)) > _MAX_WARNINGS_LENGTH:
        texts = [text[:_MAX_WARNING_LENGTH] for text in texts]
    sums = accumulate(map(len, texts))
    return [
        text for text, length in zip(texts, sums, strict=True) if length <= _MAX_WARNINGS_LENGTH
    ][:_MAX_WARNINGS]


async def _buffer_stream(response: Response) -> None:
    """Replace the stream of a long list by one body."""
    if response.stream is not None and response.content_type == JSON:
        response.body = b"".join([piece async for piece in response.stream])
        response.stream = None


def _warning_header(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    # A header is one line of Latin-1; text from a client may be neither.
    plain = "".join(sign if sign.isprintable() else " " for sign in quoted)
    return f'299 - "{plain}"'.encode("latin-1", errors="replace")
