"""Requests to other API servers: those of clients are passed on, with their user in headers."""

import asyncio
import ssl
import string
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from ..admission.services import NoEndpointError, ServiceResolver
from ..admission.webhook_client import CallError, load_ca_bundle
from ..errors.status import bad_request
from ..http.auth import IMPERSONATION_PREFIX, User
from ..http.requests import Request, Response
from ..media_types import TEXT
from ..verbs.http_proxy import (
    DROPPED_REQUEST_HEADERS,
    PATH_CHARACTERS,
    pass_on,
)
from ..verbs.log_proxy import CONNECT_TIMEOUT
from ..verbs.stream_proxy import UpgradeRefusedError, open_tunnel, upgrade_head
from .remote_apis import RemoteApi

if TYPE_CHECKING:
    import aiohttp

USER_HEADER, UID_HEADER, GROUP_HEADER = "X-Remote-User", "X-Remote-Uid", "X-Remote-Group"
EXTRA_PREFIX = "X-Remote-Extra-"
_REMOTE_PREFIX = "x-remote-"
"""Of the names of all headers with the user of a request to another server."""

_CHECK_TIMEOUT = 5.0
_MAX_DOCUMENT = 16 * 2**20
_MAX_CONTEXTS = 64
_KEY_CHARACTERS = frozenset(string.ascii_letters + string.digits + "!#$&'*+-.^_`|~")
"""Characters of the name of a header, but for the one that escapes others."""

_AGGREGATOR = User(name="system:kube-aggregator", groups=("system:masters",))


def _controller(name: str) -> User:
    groups = ("serviceaccounts", "serviceaccounts:kube-system", "authenticated")
    return User(
        name=f"system:serviceaccount:kube-system:{name}",
        groups=tuple(f"system:{each}" for each in groups),
    )


NAMESPACE_CONTROLLER = _controller("namespace-controller")
GARBAGE_COLLECTOR = _controller("generic-garbage-collector")


class FrontProxyFiles(NamedTuple):
    """The certificate by which other servers know this one, and its key."""

    certificate: Path
    key: Path


class Document(NamedTuple):
    """A document of another server; *body* is ``None`` if it has not changed."""

    body: bytes | None
    etag: str


class AggregatorClient:
    """Connects to the endpoints of the Services of APIServices."""

    def __init__(self, resolver: ServiceResolver, files: FrontProxyFiles) -> None:
        self._resolver = resolver
        self._files = files
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[tuple[str, str, bool], ssl.SSLContext] = {}
        """By server name, bundle, and whether certificates are not verified."""

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def forward(self, request: Request, api: RemoteApi) -> Response:
        """Pass a request on, and return the response.

        Raises:
            StatusError: 400, its user cannot be named in headers.
        """
        if not api.available:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "service unavailable")
        import aiohttp

        path = quote(request.path, safe=PATH_CHARACTERS)
        if request.raw_query:
            path += f"?{request.raw_query.decode('latin-1')}"
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name not in DROPPED_REQUEST_HEADERS
            and not name.startswith((IMPERSONATION_PREFIX, _REMOTE_PREFIX))
        ]
        headers += user_headers(request.user)
        try:
            if upgrade := request.headers.get("upgrade"):
                headers.append(("upgrade", upgrade))
                return await self._upgrade(api, request.method, path, headers)
            response = await self._send(
                api, request.method, path, headers=headers, body=request.body
            )
        except UpgradeRefusedError as error:
            return Response(status=error.status, body=error.body, content_type=TEXT)
        except NoEndpointError:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "service unavailable")
        except (ssl.SSLError, ValueError) as error:
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (aiohttp.ClientError, OSError, TimeoutError, EOFError) as error:
            text = f"error trying to reach service: {error}"
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, text)
        passed = await pass_on(response)
        passed.is_watch = True  # not to be read ahead: it may be one
        return passed

    async def _upgrade(
        self, api: RemoteApi, method: str, path: str, headers: list[tuple[str, str]]
    ) -> Response:
        """Ask the server of *api* for an upgrade; return its response with a tunnel to it."""
        host, port = self._resolver.resolve(api.namespace, api.service, api.port, external=True)
        async with asyncio.timeout(CONNECT_TIMEOUT):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=self._context(api), server_hostname=api.server_name
            )
        head = upgrade_head(method, path, [("host", f"{api.server_name}:{port}"), *headers])
        return await open_tunnel(reader, writer, head)

    async def fetch(self, api: RemoteApi, path: str, *, etag: str = "") -> Document:
        """Return a document of the server of *api*.

        Raises:
            CallError: the server cannot be reached, or has no such document.
        """
        import aiohttp

        url = f"https://{api.server_name}:{api.port}{path}"
        headers = [("accept", "application/json"), *user_headers(_AGGREGATOR)]
        if etag:
            headers.append(("if-none-match", etag))
        try:
            async with (
                asyncio.timeout(_CHECK_TIMEOUT),
                await self._send(api, "GET", path, headers=headers) as response,
            ):
                if response.status == HTTPStatus.NOT_MODIFIED and etag:
                    return Document(None, etag)
                if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                    raise CallError(f"bad status from {url}: {response.status}")
                body = await _read(response)
                return Document(body, response.headers.get("etag", ""))
        except CallError as error:
            raise CallError(f"failing or missing response from {url}: {error}") from error
        except (NoEndpointError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            text = str(error) or "context deadline exceeded"
            raise CallError(f"failing or missing response from {url}: {text}") from error

    async def call(
        self,
        api: RemoteApi,
        method: str,
        path: str,
        *,
        user: User,
        accept: str = "application/json",
        body: bytes = b"",
    ) -> tuple[int, bytes]:
        """Send a request of a controller, *user*; return the status and the body.

        Raises:
            CallError: the server cannot be reached.
        """
        import aiohttp

        headers = [("accept", accept), *user_headers(user)]
        if body:
            kind = "merge-patch+json" if method == "PATCH" else "json"
            headers.append(("content-type", f"application/{kind}"))
        try:
            async with (
                asyncio.timeout(_CHECK_TIMEOUT),
                await self._send(api, method, path, headers=headers, body=body) as response,
            ):
                return response.status, await _read(response)
        except (NoEndpointError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise CallError(f"{api.path}: {error or 'timed out'}") from error

    async def _send(
        self,
        api: RemoteApi,
        method: str,
        path: str,
        *,
        headers: list[tuple[str, str]],
        body: bytes = b"",
    ) -> "aiohttp.ClientResponse":
        import aiohttp
        import multidict
        import yarl

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        context = self._context(api)
        address, port = self._resolver.resolve(api.namespace, api.service, api.port, external=True)
        host = f"[{address}]" if ":" in address else address
        headers = [*headers, ("host", f"{host}:{port}"), ("accept-encoding", "identity")]
        return await self._session.request(
            method,
            yarl.URL(f"https://{host}:{port}{path}", encoded=True),
            data=body or None,
            headers=multidict.CIMultiDict(headers),
            ssl=context,
            server_hostname=api.server_name,
            allow_redirects=False,
        )

    def _context(self, api: RemoteApi) -> ssl.SSLContext:
        """Return the TLS configuration for the server of *api*.

        Raises:
            ValueError: its CA bundle contains no certificates.
            ssl.SSLError: the same.
        """
        key = api.server_name, api.ca_bundle, api.insecure
        context = self._contexts.get(key)
        if context is None:
            context = load_ca_bundle("" if api.insecure else api.ca_bundle)
            if api.insecure:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.load_cert_chain(self._files.certificate, self._files.key)
            if len(self._contexts) >= _MAX_CONTEXTS:
                self._contexts.clear()
            self._contexts[key] = context
        return context


def user_headers(user: User) -> list[tuple[str, str]]:
    """Return the headers that name the user of a request to another server.

    Raises:
        StatusError: 400, a value would not arrive as it is.
    """
    found = [(USER_HEADER, user.name)]
    if user.uid:
        found.append((UID_HEADER, user.uid))
    found += [(GROUP_HEADER, group) for group in user.groups]
    for key, values in user.extra.items():
        found += [(EXTRA_PREFIX + _escaped(key), value) for value in values]
    for name, value in found:
        # White space around a value is removed by HTTP, and the rest would name another user.
        if value != value.strip() or any(ord(sign) < 32 or ord(sign) == 127 for sign in value):
            raise bad_request(f"the user cannot be named in the header {name}: {value!r}")
    return found


def _escaped(key: str) -> str:
    return "".join(_escaped_characters(key))


def _escaped_characters(key: str) -> Iterator[str]:
    for byte in key.encode():
        sign = chr(byte)
        yield sign if sign in _KEY_CHARACTERS else f"%{byte:02X}"


def _error(status: HTTPStatus, text: str) -> Response:
    """As kube-apiserver's aggregator: the error is plain text, no Status."""
    return Response(status=status, body=f"{text}\n".encode(), content_type=TEXT)


async def _read(response: "aiohttp.ClientResponse") -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > _MAX_DOCUMENT:
            raise CallError(f"the response is longer than {_MAX_DOCUMENT} bytes")
    return bytes(data)
