"""uvicorn behind a listener that limits connections and requests."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.parse import unquote

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..httpserver.buffering import BufferingConnection, BufferingListener
from ..httpserver.limits import Limits
from ..httpserver.listener import explain
from ..httpserver.metrics import ListenerMetrics
from .client_certificates import CERTIFICATE, parse_client_certificate
from .limits import MAX_BODY, TOO_LARGE, body_limit
from .problems import MEDIA_TYPE, encode_problem

STALL_TIMEOUT = 1.0
"""Seconds of the shutdown for which a client that does not read is waited for."""
ABORT_MARGIN = 1.0
"""Seconds before the end of the shutdown at which responses are cut off."""


class _Listener(BufferingListener):
    """Accepts large bodies only where jobs are created, and from those who have credentials."""

    def body_limit_of(self, connection: BufferingConnection, headers: Mapping[bytes, bytes]) -> int:
        # Credentials are reviewed after the body is read: this rejects who has none at once.
        tls = connection.transport.get_extra_info("ssl_object")
        has_certificate = tls is not None and bool(tls.getpeercert(binary_form=True))
        if not (has_certificate or headers.get(b"authorization")):
            return self.body_limit
        method, url = connection.target
        return body_limit(method, unquote(url.partition("?")[0]))


class LimitedServer(uvicorn.Server):
    """A uvicorn server that buffers each request before serving it."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        limits: Limits,
        metrics: ListenerMetrics,
        on_stop: Callable[[], None],
    ) -> None:
        """Call *on_stop* at the beginning of the shutdown, to end streams."""
        super().__init__(config)
        self._on_stop = on_stop
        # The listener's own timeout must fire first.
        config.timeout_keep_alive = int(2 * limits.idle_timeout) + 1
        self._listener = _Listener(
            name="api",
            body_limit=MAX_BODY,
            limits=limits,
            metrics=metrics,
            error_content=_describe,
        )
        self._listener.backend_factory = lambda: _Protocol(self, self._listener)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on *sockets* with the buffering listener."""
        await super().startup(sockets=[])
        for listen_socket in sockets or ():
            self._listener.listen(listen_socket, tls=self.config.ssl)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections and drain requests in flight."""
        self._listener.stop()
        self._on_stop()
        drain = self.config.timeout_graceful_shutdown or 0
        loop = asyncio.get_running_loop()
        timers = (
            loop.call_later(min(STALL_TIMEOUT, drain), self._listener.abort_stalled),
            # What is left ends as if its client had disconnected, which is not an error.
            loop.call_later(max(drain - ABORT_MARGIN, 0.0), self._listener.abort_all),
        )
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()
        self._listener.abort_all()


class _Protocol(HttpToolsProtocol):
    """Notifies the listener of completed responses."""

    def __init__(self, server: LimitedServer, listener: BufferingListener) -> None:
        super().__init__(
            config=server.config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )
        self._listener = listener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Add the client certificate, if there is one, to the state of all requests."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        der = tls.getpeercert(binary_form=True) if tls is not None else None
        if der and tls.context.verify_mode is not ssl.CERT_NONE:
            found = parse_client_certificate(der)
            self.app_state = {**self.app_state, CERTIFICATE: found}

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._listener.on_response_sent(self)


def _describe(status: int) -> tuple[str, bytes]:
    """Return an error body in the API's format."""
    is_too_large = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return MEDIA_TYPE, encode_problem(status, TOO_LARGE if is_too_large else explain(status))
