"""The listener of the REST API: it reads large bodies only from callers who may send them."""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from http import HTTPStatus
from urllib.parse import unquote

from ...httpserver.buffering import BufferingConnection, BufferingListener
from ...httpserver.limits import Limits
from ...httpserver.listener import explain
from ...httpserver.metrics import ListenerMetrics
from ..identity.authentication import REJECTION
from ..identity.client_certificates import (
    CERTIFICATE,
    ClientCertificate,
    parse_client_certificate,
)
from ..pages.app import Pages, owns
from ..problems import MEDIA_TYPE, encode_problem
from .limits import MAX_BODY, TOO_LARGE, body_limit

CredentialCheck = Callable[[str | None, ClientCertificate | None, str], Awaitable[Exception | None]]
"""Why a request is rejected by its ``Authorization`` header, certificate and source address."""


class _Connection(BufferingConnection):
    @cached_property
    def certificate(self) -> ClientCertificate | None:
        """The client certificate, if there is one that was verified."""
        tls = self.transport.get_extra_info("ssl_object")
        der = tls.getpeercert(binary_form=True) if tls is not None else None
        if not der or tls.context.verify_mode is ssl.CERT_NONE:
            return None
        return parse_client_certificate(der)


class ApiListener(BufferingListener):
    """Accepts bodies from authenticated clients only, and large ones where jobs are created."""

    def __init__(
        self,
        limits: Limits,
        metrics: ListenerMetrics,
        *,
        credential_check: CredentialCheck,
        pages: Pages | None = None,
    ) -> None:
        """Initialize without listening; *pages* are served besides the API."""
        super().__init__(
            name="api",
            body_limit=MAX_BODY,
            limits=limits,
            metrics=metrics,
            error_content=_describe,
        )
        self._credential_check = credential_check
        self._pages = pages

    def create_connection(self) -> BufferingConnection:
        """Return the protocol of a new connection."""
        return _Connection(self)

    def body_limit_of(self, connection: BufferingConnection, headers: Mapping[bytes, bytes]) -> int:
        """Return the limit by method and path."""
        return body_limit(connection.target[0], _path_of(connection))

    def check_credentials(
        self, connection: BufferingConnection, headers: Mapping[bytes, bytes]
    ) -> Awaitable[Exception | None]:
        """Check them as for a complete request; those for a page are in a cookie."""
        path = _path_of(connection)
        if self._pages is not None and owns(path):
            return self._check_session(self._pages, path, headers.get(b"cookie"))
        authorization = headers.get(b"authorization")
        peer = connection.transport.get_extra_info("peername")
        return self._credential_check(
            None if authorization is None else authorization.decode("latin-1"),
            _certificate_of(connection),
            peer[0] if isinstance(peer, tuple) else "",
        )

    @staticmethod
    async def _check_session(pages: Pages, path: str, cookie: bytes | None) -> Exception | None:
        return pages.find_rejection(path, None if cookie is None else cookie.decode("latin-1"))

    def request_state(self, connection: BufferingConnection) -> Mapping[str, object]:
        """Return the client certificate, and why the request was rejected without its body."""
        state = {CERTIFICATE: _certificate_of(connection), REJECTION: connection.rejection}
        return {key: value for key, value in state.items() if value is not None}


def _path_of(connection: BufferingConnection) -> str:
    return unquote(connection.target[1].partition("?")[0])


def _certificate_of(connection: BufferingConnection) -> ClientCertificate | None:
    return connection.certificate if isinstance(connection, _Connection) else None


def _describe(status: int) -> tuple[str, bytes]:
    """Return an error body in the API's format."""
    is_too_large = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return MEDIA_TYPE, encode_problem(status, TOO_LARGE if is_too_large else explain(status))
