"""Client of the agents: container logs, streamed from the pod's node, and what a node uses."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from ..errors.status import StatusError, internal
from ..http.requests import Json

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT = 10.0
"""Seconds to connect to an agent; a followed log may then be idle for any time."""

USAGE_TIMEOUT = 5.0
"""Seconds until an agent has sent its usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """Address and parameters of one container's log."""

    host: str
    port: int
    namespace: str
    pod: str
    container: str
    parameters: Mapping[str, str]
    """Passed on unchanged."""


class LogProxy:
    """HTTPS client of the agents, with the server's client certificate."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def open(self, source: LogSource) -> AsyncGenerator[bytes]:
        """Request a log; return a stream of its chunks.

        Raises:
            StatusError: the agent's error, or 500 if it cannot be reached.
        """
        path = "/".join(quote(each) for each in (source.namespace, source.pod, source.container))
        url = f"https://{source.host}:{source.port}/containerLogs/{path}"
        return _stream_body(await self._get(url, dict(source.parameters)))

    async def usage(self, host: str, port: int) -> Json:
        """Return the usage summary of an agent.

        Raises:
            StatusError: the agent's error, or 500 if it cannot be reached in time.
        """
        url = f"https://{host}:{port}/stats/summary"
        try:
            async with asyncio.timeout(USAGE_TIMEOUT):
                response = await self._get(url, {})
                decoded = msgspec.json.decode(await response.read())
        except (TimeoutError, msgspec.DecodeError) as error:
            raise internal(f'Get "{url}": {error}') from error
        if not isinstance(decoded, dict):
            raise internal(f'Get "{url}": the response is no object')
        return decoded

    async def _get(self, url: str, parameters: Mapping[str, str]) -> "aiohttp.ClientResponse":
        import aiohttp  # slow to import, and often not needed

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            response = await self._session.get(url, params=parameters, ssl=self._context)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise internal(f'Get "{url}": {error}') from error
        if response.status != 200:
            body = await response.read()
            response.release()
            raise error_from_response(response.status, body)
        return response

    async def close(self) -> None:
        """Close the HTTP session."""
        if self._session is not None:
            await self._session.close()


async def _stream_body(response: "aiohttp.ClientResponse") -> AsyncGenerator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    finally:
        response.close()


def error_from_response(status: int, body: bytes) -> StatusError:
    """Return an agent's error, which is a Status object or plain text."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        decoded = None
    if isinstance(decoded, dict) and decoded.get("kind") == "Status":
        return StatusError(status, decoded.get("reason", ""), decoded.get("message", ""))
    reasons = {400: "BadRequest", 404: "NotFound"}
    text = body.decode(errors="replace").strip()
    return StatusError(status, reasons.get(status, "InternalError"), text)
