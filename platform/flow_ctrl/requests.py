"""Requests of probes to pods: HTTP and TCP, to IP addresses only.

A response is read up to its status line. Redirects are not followed, names are not resolved, and
no proxy is used.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address

from ..model.flow import HttpGetProbe

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r\n]")
_MAX_STATUS_LINE = 4096
"""Bytes read of a response."""


class RequestError(Exception):
    """A request of a probe failed; the text is the reason."""


async def connect(address: str, port: int, *, timeout: float) -> None:
    """Open and close a TCP connection.

    Raises:
        RequestError: it was not accepted in time.
    """
    async with _connection(address, port, timeout):
        pass


async def http_get(address: str, probe: HttpGetProbe, *, timeout: float) -> None:
    """Send a GET request and read the status of the response.

    Raises:
        RequestError: the status is not within 200 to 399, or there was none in time.
    """
    async with _connection(address, probe.port, timeout) as (reader, writer):
        writer.write(_request(address, probe))
        await writer.drain()
        match = _STATUS_LINE.match(await reader.readline())
    if match is None:
        raise RequestError("response is not HTTP/1")
    status = int(match[1])
    if not 200 <= status < 400:
        raise RequestError(f"status {status}")


@asynccontextmanager
async def _connection(
    address: str, port: int, timeout: float
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        host = str(ip_address(address))
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port, limit=_MAX_STATUS_LINE)
            try:
                yield reader, writer
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise RequestError(f"no response within {timeout:g} s") from None
    except (OSError, ValueError) as error:  # ValueError: no address, or too long a line
        raise RequestError(str(error)) from error


def _request(address: str, probe: HttpGetProbe) -> bytes:
    """Return the request; the rules of JobFlows exclude line breaks in path and header."""
    host = f"[{address}]" if isinstance(ip_address(address), IPv6Address) else address
    path = probe.path if probe.path.startswith("/") else f"/{probe.path}"
    headers = {"Host": f"{host}:{probe.port}", "User-Agent": "batholith", "Accept": "*/*"}
    if (given := probe.http_header) is not None:
        headers = {
            name: value for name, value in headers.items() if name.lower() != given.name.lower()
        }
        headers[given.name] = given.value
    headers["Connection"] = "close"
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
