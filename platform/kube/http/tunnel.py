"""The way to a server through an HTTP proxy: ``CONNECT``, then TLS with the server itself."""

import asyncio
import base64

from ..errors import ConfigError, ConnectionLostError
from .http1 import Connection
from .route import Origin, Route

_MAX_HEAD_SIZE = 16 * 1024
"""Bytes of the proxy's answer."""


def proxy_authorization(proxy: Origin) -> str:
    """The ``Proxy-Authorization`` header; empty when the proxy's URL names no user."""
    if not proxy.user_info:
        return ""
    return f"Basic {base64.b64encode(proxy.user_info.encode()).decode()}"


def validate_proxy(proxy: Origin) -> None:
    """Refuse what we cannot speak.

    Raises:
        ConfigError: it is not reached by plain HTTP.
    """
    if proxy.scheme != "http":
        raise ConfigError(
            f"proxy {proxy.scheme}://{proxy.host}: only http:// proxies are supported"
        )


async def connect(proxy: Origin, route: Route, connection: Connection) -> None:
    """Connect *connection* to the origin of *route*.

    Without TLS the proxy is asked for whole URLs instead, which is the business of the requests.

    Raises:
        OSError: the proxy cannot be reached, or TLS fails.
        ConnectionLostError: the proxy does not let us through.
    """
    loop = asyncio.get_running_loop()
    if route.tls is None:
        await loop.create_connection(lambda: connection, proxy.host, proxy.port)
        return
    transport, asking = await loop.create_connection(_ConnectProtocol, proxy.host, proxy.port)
    try:
        transport.write(_connect_request(proxy, route))
        await asking.established
        name = route.server_name or route.origin.host
        secured = await loop.start_tls(transport, connection, route.tls, server_hostname=name)
    except BaseException:
        transport.abort()
        raise
    if secured is None:
        raise ConnectionLostError("the proxy hung up")
    connection.connection_made(secured)


def _connect_request(proxy: Origin, route: Route) -> bytes:
    origin = route.origin
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    lines = [f"CONNECT {host}:{origin.port} HTTP/1.1", f"Host: {host}:{origin.port}"]
    if user := proxy_authorization(proxy):
        lines.append(f"Proxy-Authorization: {user}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


class _ConnectProtocol(asyncio.Protocol):
    """Waits for the proxy's word; nothing may follow it, for TLS begins with us."""

    def __init__(self) -> None:
        self.established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._parse_response()
        elif len(self._head) > _MAX_HEAD_SIZE:
            self._fail("its answer is too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("it hung up")

    def _parse_response(self) -> None:
        line = self._head.partition(b"\r\n")[0]
        words = line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].startswith(b"2"):
            self._fail(f"it says {line[:200].decode('latin-1')!r}")
        elif not self._head.endswith(b"\r\n\r\n"):
            self._fail("it spoke in the server's place")
        elif not self.established.done():
            self.established.set_result(None)

    def _fail(self, reason: str) -> None:
        if not self.established.done():
            self.established.set_exception(
                ConnectionLostError(f"no way through the proxy: {reason}")
            )
            self.established.exception()
