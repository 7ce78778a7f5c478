"""A session of aiohttp with the credentials of a client, for libraries with a client of their own.

Tokens are reloaded as by :class:`~.client.Client`. aiohttp is slow to import, so this is a
separate module.
"""

import aiohttp

from ..timing import Timing
from .auth import CredentialSource, resolve_credentials, tls_context
from .config import Credentials


async def new_session(
    credentials: Credentials, timing: Timing, *, user_agent: str
) -> tuple[str, aiohttp.ClientSession]:
    """Return the URL of the API server, and a session to be closed.

    Raises:
        ConfigError: the credentials are unusable.
    """
    resolved, source = await resolve_credentials(credentials, timing)
    server, connector = resolved.server, _connector(resolved)
    if resolved.unix_socket:
        server = "http://localhost"
    return server, aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": user_agent},
        middlewares=(_Authenticator(resolved, source),),
        proxy=resolved.proxy or None,
    )


def _connector(credentials: Credentials) -> aiohttp.BaseConnector:
    if credentials.unix_socket:
        return aiohttp.UnixConnector(credentials.unix_socket)
    context = tls_context(credentials)
    return aiohttp.TCPConnector(limit=0, ssl=True if context is None else context)


class _Authenticator:
    """Adds the headers of the user to each request."""

    def __init__(self, credentials: Credentials, source: CredentialSource) -> None:
        self._credentials = credentials
        self._source = source

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if value := await self._source.header():
            request.headers["Authorization"] = value
        for name, value in self._credentials.impersonate:
            request.headers.add(name, value)
        if self._credentials.tls_server_name:
            request.server_hostname = self._credentials.tls_server_name
        response = await handler(request)
        if response.status == 401:
            self._source.invalidate()
        return response
