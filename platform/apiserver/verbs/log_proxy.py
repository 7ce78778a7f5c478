"""Logs come from the agent on the pod's node; we pass them on as they come."""

import ssl
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from ..errors.status import StatusError, internal

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT = 10.0
"""Seconds to reach an agent; a log that is followed may then be quiet as long as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """Where the log of one container is."""

    host: str
    port: int
    namespace: str
    pod: str
    container: str
    parameters: Mapping[str, str]
    """Passed on as they are."""


class LogProxy:
    """The client side of the agents' HTTPS, with our certificate."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def open(self, source: LogSource) -> AsyncGenerator[bytes]:
        """Ask for a log; what is returned then gives its pieces.

        Raises:
            StatusError: what the agent answers, or 500 if it cannot be reached.
        """
        import aiohttp  # slow to import, and many a server never needs it

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
            self._session = aiohttp.ClientSession(timeout=timeout)
        parts = "/".join(quote(each) for each in (source.namespace, source.pod, source.container))
        url = f"https://{source.host}:{source.port}/containerLogs/{parts}"
        try:
            answer = await self._session.get(url, params=dict(source.parameters), ssl=self._context)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise internal(f'Get "{url}": {error}') from error
        if answer.status != 200:
            body = await answer.read()
            answer.release()
            raise _error_from_response(answer.status, body)
        return _stream_body(answer)

    async def close(self) -> None:
        """Hang up."""
        if self._session is not None:
            await self._session.close()


async def _stream_body(response: "aiohttp.ClientResponse") -> AsyncGenerator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    finally:
        response.close()


def _error_from_response(status: int, body: bytes) -> StatusError:
    """An agent refuses with a Status object or with plain text."""
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = None
    if isinstance(said, dict) and said.get("kind") == "Status":
        return StatusError(status, said.get("reason", ""), said.get("message", ""))
    reasons = {400: "BadRequest", 404: "NotFound"}
    text = body.decode(errors="replace").strip()
    return StatusError(status, reasons.get(status, "InternalError"), text)
