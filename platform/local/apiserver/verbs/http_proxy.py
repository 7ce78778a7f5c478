"""The subresource ``proxy`` of pods, Services and nodes: HTTP requests are passed on.

Requests reach pods at their own addresses only: another one in the status of a pod or in an
EndpointSlice could lead to a program that only users of this machine may reach.
"""

import ssl
from collections.abc import AsyncGenerator, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import msgspec

from ....model import names
from ....model.service_network import is_permitted_endpoint
from ..admission.services import NoEndpointError, ServiceResolver
from ..errors.status import StatusError, bad_request, not_found
from ..http.requests import Json, Request, Response
from ..kinds.info import KindInfo
from ..storage.object_store import ObjectStore
from .log_proxy import CONNECT_TIMEOUT
from .pod_subresources import kubelet_address
from .proxied_links import rewrite_html, rewrite_url
from .write_requests import WriteRequest

if TYPE_CHECKING:
    import aiohttp

PROXY = "proxy"
PATH_CHARACTERS = "/:@!$&'()*+,;=~"
"""Characters of a path that URLs contain as they are."""

_STATUSES = frozenset(each.value for each in HTTPStatus)
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_MAX_PAGE = 8 * 1024 * 1024
"""Bytes of an HTML page from which on its links are not rewritten."""

DROPPED_REQUEST_HEADERS = frozenset(
    ("accept-encoding", "authorization", "connection", "content-length", "expect", "host",
     "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade")
)  # fmt: skip
"""Headers of one connection, and the client's credentials, which pods must not get."""

_DROPPED_RESPONSE_HEADERS = frozenset(
    ("connection", "content-length", "content-type", "keep-alive", "proxy-authenticate",
     "proxy-connection", "trailer", "transfer-encoding", "upgrade")
)  # fmt: skip


class ProxyKinds(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds that the proxy reads."""

    pods: KindInfo
    nodes: KindInfo
    services: KindInfo


class _Target(NamedTuple):
    scheme: str
    host: str
    port: int
    of_agent: bool = False

    @property
    def origin(self) -> str:
        return f"{self.host}:{self.port}"


class HttpProxy:
    """Passes HTTP requests on to pods, Services and nodes.

    *kubelet_tls* has the server's client certificate, which only agents get.
    """

    def __init__(
        self,
        store: ObjectStore,
        kinds: ProxyKinds,
        services: ServiceResolver,
        kubelet_tls: ssl.SSLContext,
    ) -> None:
        self._store = store
        self._services = services
        self._kinds = kinds
        self._kubelet_tls = kubelet_tls
        self._session: aiohttp.ClientSession | None = None

    async def forward(self, write_request: WriteRequest, request: Request) -> Response:
        """Send a request to what its path names, and return the response.

        Raises:
            StatusError: 400, 404; 503, there is no endpoint, or it cannot be reached.
        """
        plural = write_request.kind.resource.plural
        if request.headers.get("upgrade"):
            raise bad_request("the embedded cluster proxies no upgraded connections")
        target = {
            "pods": self._pod,
            "services": self._service,
            "nodes": self._node,
        }[plural](write_request)
        head, found, path = request.path.partition(f"/{write_request.object_path.name}/{PROXY}")
        prefix = quote(head + found, safe=PATH_CHARACTERS)
        query = request.raw_query.decode("latin-1")
        if not path and request.method in ("GET", "HEAD"):
            location = f"{prefix}/?{query}" if query else f"{prefix}/"
            return Response(status=301, headers=((b"location", location.encode()),))
        return await self._send(target, request, prefix=prefix, path=path, query=query)

    async def close(self) -> None:
        """Close the HTTP session."""
        if self._session is not None:
            await self._session.close()

    def _pod(self, write_request: WriteRequest) -> _Target:
        scheme, name, port = _split_name(write_request)
        namespace = write_request.object_path.namespace
        entry = self._store.resource_store(self._kinds.pods).get(namespace, name)
        if entry is None:
            raise not_found(names.PODS, name)
        pod = entry.parse()
        if not port:
            port = next(_container_ports(pod), "")
        address = (pod.get("status") or {}).get("podIP", "")
        if not is_permitted_endpoint(address):
            raise bad_request("address not allowed")
        return _Target(scheme or "http", address, _port_number(port, scheme))

    def _service(self, write_request: WriteRequest) -> _Target:
        scheme, name, port = _split_name(write_request)
        namespace = write_request.object_path.namespace
        if self._store.resource_store(self._kinds.services).get(namespace, name) is None:
            raise not_found(names.SERVICES, name)
        try:
            wanted = int(port) if port.isdecimal() else port
            host, number = self._services.resolve(namespace, name, wanted)
        except NoEndpointError as error:
            raise _unavailable(str(error)) from error
        if not is_permitted_endpoint(host):
            raise bad_request("address not allowed")
        return _Target(scheme or "http", host, number)

    def _node(self, write_request: WriteRequest) -> _Target:
        _, name, port = _split_name(write_request)
        host, number = kubelet_address(self._store.resource_store(self._kinds.nodes), name)
        if port and port != str(number):
            raise bad_request("the embedded cluster proxies to the ports of agents only")
        return _Target("https", host, number, of_agent=True)

    async def _send(
        self, target: _Target, request: Request, *, prefix: str, path: str, query: str
    ) -> Response:
        import aiohttp  # slow to import, and often not needed
        import yarl

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
            self._session = aiohttp.ClientSession(
                timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        path = quote(path, safe=PATH_CHARACTERS)
        url = f"{target.scheme}://{target.origin}{path}"
        if query:
            url += f"?{query}"
        headers = {
            name: value
            for name, value in request.headers.items()
            if name not in DROPPED_REQUEST_HEADERS and not name.startswith("impersonate-")
        }
        # A page whose links are rewritten must not be compressed.
        headers |= {"x-forwarded-uri": prefix + path, "accept-encoding": "identity"}
        try:
            response = await self._session.request(
                request.method,
                yarl.URL(url, encoded=True),
                headers=headers,
                data=request.body or None,
                ssl=self._kubelet_tls if target.of_agent else False,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unavailable(f"error trying to reach service: {error}") from error
        hosts = (target.origin, request.headers.get("host", ""))
        return await pass_on(response, prefix=prefix, hosts=hosts)


async def pass_on(
    response: "aiohttp.ClientResponse", *, prefix: str = "", hosts: tuple[str, ...] = ()
) -> Response:
    """Return the response of another server; links to *hosts* get *prefix*, if there is one.

    Raises:
        StatusError: 503, it has an unknown status.
    """
    if response.status not in _STATUSES:
        response.close()
        raise _unavailable(f"error trying to reach service: its status is {response.status}")
    headers = tuple(
        (name.encode("latin-1"), _rewritten(name, value, prefix, hosts).encode("latin-1"))
        for name, value in response.headers.items()
        if name.lower() not in _DROPPED_RESPONSE_HEADERS
    )
    passed = Response(
        status=response.status,
        headers=headers,
        content_type=response.headers.get("content-type", "application/octet-stream"),
    )
    is_page = (
        prefix
        and response.content_type == "text/html"
        and "content-encoding" not in response.headers
    )
    length = response.content_length
    if is_page and length is not None and length <= _MAX_PAGE:
        text = (await response.read()).decode("utf-8", errors="surrogateescape")
        page = rewrite_html(text, prefix, hosts=hosts)
        passed.body = page.encode("utf-8", errors="surrogateescape")
    elif length == 0 or response.method == "HEAD" or response.status in _WITHOUT_BODY:
        response.release()
    else:
        passed.stream = _stream(response)
    return passed


async def _stream(response: "aiohttp.ClientResponse") -> AsyncGenerator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    finally:
        response.close()


def _rewritten(name: str, value: str, prefix: str, hosts: tuple[str, ...]) -> str:
    is_link = prefix and name.lower() == "location"
    return rewrite_url(value, prefix, hosts=hosts) if is_link else value


def _split_name(write_request: WriteRequest) -> tuple[str, str, str]:
    """Return scheme, name and port of ``name``, ``name:port`` or ``scheme:name:port``.

    Raises:
        StatusError: 400, it is none of these.
    """
    text = write_request.object_path.name
    fields = text.split(":")
    if len(fields) == 3 and fields[0] in ("", "http", "https") and fields[1]:
        return fields[0], fields[1], fields[2]
    if len(fields) <= 2 and fields[0]:
        return "", fields[0], fields[1] if len(fields) == 2 else ""
    kind = write_request.kind.singular
    raise bad_request(f'invalid {kind} request "{text}"')


def _container_ports(pod: Json) -> Iterator[str]:
    for container in (pod.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            yield str(port.get("containerPort", ""))


def _port_number(text: str, scheme: str) -> int:
    if not text:
        return 443 if scheme == "https" else 80
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise bad_request(f'invalid port "{text}"')
    return int(text)


def _unavailable(message: str) -> StatusError:
    """503: nothing can take the request now."""
    return StatusError(503, "ServiceUnavailable", message)
