"""HTTP proxy support: a ``CONNECT`` tunnel, and TLS with the server inside it."""

import asyncio
import base64

from ..errors import ConfigError, ConnectionLostError
from .http1 import Connection
from .route import Origin, Route

_MAX_HEAD_SIZE = 16 * 1024
"""Maximum size of the proxy's response."""


def proxy_authorization(proxy: Origin) -> str:
    """Return the ``Proxy-Authorization`` header; empty if the proxy's URL has no user."""
    if not proxy.user_info:
        return ""
    return f"Basic {base64.b64encode(proxy.user_info.encode()).decode()}"


def validate_proxy(proxy: Origin) -> None:
    """Validate the proxy's scheme.

    Raises:
        ConfigError: the proxy does not use plain HTTP.
    """
    if proxy.scheme != "http":
        raise ConfigError(
            f"proxy {proxy.scheme}://{proxy.host}: only http:// proxies are supported"
        )


async def connect(proxy: Origin, route: Route, connection: Connection) -> None:
    """Connect *connection* to the origin of *route*.

    Without TLS there is no tunnel: requests to the proxy name absolute URLs instead.

    Raises:
        OSError: the proxy cannot be reached, or TLS fails.
        ConnectionLostError: the proxy refuses the tunnel.
    """
    loop = asyncio.get_running_loop()
    if route.tls is None:
        await loop.create_connection(lambda: connection, proxy.host, proxy.port)
        return
    transport, protocol = await loop.create_connection(_ConnectProtocol, proxy.host, proxy.port)
    try:
        transport.write(_connect_request(proxy, route))
        await protocol.established
        name = route.server_name or route.origin.host
        secured = await loop.start_tls(transport, connection, route.tls, server_hostname=name)
    except BaseException:
        transport.abort()
        raise
    if secured is None:
        raise ConnectionLostError("the proxy closed the connection")
    connection.connection_made(secured)


def _connect_request(proxy: Origin, route: Route) -> bytes:
    origin = route.origin
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    lines = [f"CONNECT {host}:{origin.port} HTTP/1.1", f"Host: {host}:{origin.port}"]
    if user := proxy_authorization(proxy):
        lines.append(f"Proxy-Authorization: {user}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


class _ConnectProtocol(asyncio.Protocol):
    """Waits for the proxy's response; no data may follow it, since the client starts TLS."""

    def __init__(self) -> None:
        self.established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._parse_response()
        elif len(self._head) > _MAX_HEAD_SIZE:
            self._fail("response too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("connection closed")

    def _parse_response(self) -> None:
        line = self._head.partition(b"\r\n")[0]
        fields = line.split(None, 2)
        if (
            len(fields) < 2
            or not fields[0].startswith(b"HTTP/1.")
            or not fields[1].startswith(b"2")
        ):
            self._fail(f"unexpected response {line[:200].decode('latin-1')!r}")
        elif not self._head.endswith(b"\r\n\r\n"):
            self._fail("data after the response")
        elif not self.established.done():
            self.established.set_result(None)

    def _fail(self, reason: str) -> None:
        if not self.established.done():
            self.established.set_exception(
                ConnectionLostError(f"cannot connect through the proxy: {reason}")
            )
            self.established.exception()
