"""uvicorn behind a listener that limits connections and requests."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...httpserver.buffering import BufferingConnection, BufferingListener
from ...httpserver.limits import Limits
from ...httpserver.listener import explain
from ...httpserver.metrics import ListenerMetrics
from ..identity.authentication import REJECTION
from ..identity.client_certificates import CERTIFICATE, ClientCertificate, parse_client_certificate
from ..problems import MEDIA_TYPE, encode_problem
from .limits import MAX_BODY, TOO_LARGE, body_limit

STALL_TIMEOUT = 1.0
"""Seconds of the shutdown for which a client that does not read is waited for."""
ABORT_MARGIN = 1.0
"""Seconds before the end of the shutdown at which responses are cut off."""


CredentialCheck = Callable[[str | None, ClientCertificate | None, str], Awaitable[Exception | None]]
"""Why a request is rejected by its ``Authorization`` header, certificate and source address."""


class _Listener(BufferingListener):
    """Accepts bodies from authenticated clients only, and large ones where jobs are created."""

    credential_check: CredentialCheck

    def body_limit_of(self, connection: BufferingConnection, headers: Mapping[bytes, bytes]) -> int:
        method, url = connection.target
        return body_limit(method, unquote(url.partition("?")[0]))

    def check_credentials(
        self, connection: BufferingConnection, headers: Mapping[bytes, bytes]
    ) -> Awaitable[Exception | None]:
        """Check them as for a complete request."""
        authorization = headers.get(b"authorization")
        peer = connection.transport.get_extra_info("peername")
        return self.credential_check(
            None if authorization is None else authorization.decode("latin-1"),
            _certificate_of(connection.transport),
            peer[0] if isinstance(peer, tuple) else "",
        )


class LimitedServer(uvicorn.Server):
    """A uvicorn server that buffers each request before serving it."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        limits: Limits,
        metrics: ListenerMetrics,
        credential_check: CredentialCheck,
        on_stop: Callable[[], None],
    ) -> None:
        """Initialize without listening.

        Args:
            config: of uvicorn.
            limits: of connections and requests.
            metrics: of the listener.
            credential_check: whether to read the body of a request.
            on_stop: called at the beginning of the shutdown, to end streams.
        """
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
        self._listener.credential_check = credential_check
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


class _LingeringTransport:
    """A transport that is closed as the connection in front of the backend decides."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Protocol(HttpToolsProtocol):
    """Notifies the listener of completed responses, and the application of early rejections."""

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
        certificate = _certificate_of(transport)
        if certificate is not None:
            self.app_state = {**self.app_state, CERTIFICATE: certificate}
        self._connection = self._listener.connection_of(self)
        if self._connection is not None:
            self.transport = _LingeringTransport(  # type: ignore[assignment]
                transport, self._connection.close_backend
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._connection is not None and self._connection.rejection is not None:
            self.scope["state"][REJECTION] = self._connection.rejection

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._listener.on_response_sent(self)


def _certificate_of(transport: asyncio.BaseTransport) -> ClientCertificate | None:
    """Return the client certificate, if there is one that was verified."""
    tls = transport.get_extra_info("ssl_object")
    der = tls.getpeercert(binary_form=True) if tls is not None else None
    if not der or tls.context.verify_mode is ssl.CERT_NONE:
        return None
    return parse_client_certificate(der)


def _describe(status: int) -> tuple[str, bytes]:
    """Return an error body in the API's format."""
    is_too_large = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return MEDIA_TYPE, encode_problem(status, TOO_LARGE if is_too_large else explain(status))
