"""Limits in front of an HTTP server without limits, uvicorn's: the backend.

A :class:`BufferingConnection` reads a request completely before the backend sees it, and forwards
it in one piece with a length. So truncated requests are never executed, the backend needs no memory
for incomplete requests, and its parser cannot interpret them differently.

A listener may check the credentials of a request whose body has not arrived: if they are rejected,
the backend gets the request without its body, and responds to it at once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from .limits import Limits
from .listener import LimitedConnection, Listener, Phase
from .metrics import ListenerMetrics
from .upgrades import UpgradedConnection, UpgradeHandler, UpgradeRequest

log = logging.getLogger(__name__)

MAX_HEADER_SIZE = 64 * 1024
"""Maximum size of a request's headers."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_DROPPED_HEADERS = frozenset(
    (b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te")
)
"""Headers about the transfer of a request, replaced when forwarding."""

ErrorContent = Callable[[int], tuple[str, bytes]]
"""Content type and body of an error response."""


class BufferingListener(Listener):
    """Listener whose connections forward to a backend."""

    backend_factory: Callable[[], asyncio.Protocol]
    """Creates protocols of the backend; to be set before listening."""

    def __init__(
        self,
        *,
        name: str,
        body_limit: int,
        client_cert_required: bool = False,
        client_name: str = "",
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
        error_content: ErrorContent | None = None,
        upgrade_handler: UpgradeHandler | None = None,
        time: Callable[[], float] | None = None,
    ) -> None:
        """Initialize without listening.

        Args:
            body_limit: maximum size of a request body.
            client_cert_required: whether the TLS handshake requires a client certificate.
            client_name: common name that the client certificate must have.
            error_content: content of error responses; plain text by default.
            upgrade_handler: handles the requests that ask for another protocol; without it, the
                backend handles them as if they did not.
        """
        super().__init__(name=name, limits=limits, metrics=metrics, time=time)
        self.body_limit = body_limit
        self.client_cert_required = client_cert_required
        self._client_name = client_name
        self._error_content = error_content
        self.upgrade_handler = upgrade_handler
        self._by_backend: dict[asyncio.BaseProtocol, BufferingConnection] = {}

    def accepts(self, transport: asyncio.BaseTransport) -> bool:
        """See `Listener.accepts`."""
        if not self._client_name:
            return True
        tls = transport.get_extra_info("ssl_object")
        pairs = tls.getpeercert().get("subject", ()) if tls is not None else ()
        names = [value for ((key, value), *_) in pairs if key == "commonName"]
        return names == [self._client_name]

    def body_limit_of(
        self, connection: "BufferingConnection", headers: Mapping[bytes, bytes]
    ) -> int:
        """Return the maximum size of the body of a request; *headers* have lowercase names."""
        return self.body_limit

    def check_credentials(
        self, connection: "BufferingConnection", headers: Mapping[bytes, bytes]
    ) -> Awaitable[Exception | None] | None:
        """Return the check of a request whose headers are complete, and whose body is not.

        It results in the reason why the request is rejected, which the backend finds in
        `BufferingConnection.rejection`; ``None`` if the body is to be read. Without a check the
        body of every request is read.
        """
        return None

    def request_state(self, connection: "BufferingConnection") -> Mapping[str, object]:
        """Return what the application gets as the state of each request of *connection*."""
        return {}

    def connection_of(self, backend: asyncio.BaseProtocol) -> "BufferingConnection | None":
        """Return the connection that *backend* serves."""
        return self._by_backend.get(backend)

    def create_connection(self) -> "BufferingConnection":
        """Return the protocol of a new connection."""
        return BufferingConnection(self)

    def error_content(self, status: int) -> tuple[str, bytes]:
        """See `Listener.error_content`."""
        return self._error_content(status) if self._error_content else super().error_content(status)

    def set_backend(
        self, backend: asyncio.BaseProtocol, connection: "BufferingConnection | None"
    ) -> None:
        """Register *backend* as serving *connection*, or unregister it."""
        if connection is None:
            self._by_backend.pop(backend, None)
        else:
            self._by_backend[backend] = connection

    def on_response_sent(self, backend: asyncio.BaseProtocol) -> None:
        """The backend has sent a response."""
        connection = self._by_backend.get(backend)
        if connection is not None:
            connection.on_response_sent()


class BufferingConnection(LimitedConnection):
    """One connection; methods named ``on_…`` are called by the parser."""

    listener: BufferingListener
    transport: asyncio.Transport

    def __init__(self, listener: BufferingListener) -> None:
        super().__init__(listener)
        self._parser = HttpRequestParser(self)
        self._backend: asyncio.Protocol | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._body_limit = 0
        self._in_header = self._in_body = False
        self._complete_requests: deque[bytes] = deque()
        """Requests queued behind the one being served."""
        self._responding = False
        self._discard_input = False
        self._rejection_status = 0
        self._is_checked = False
        """Whether the credentials of the request being received are checked, or being checked."""
        self._check: asyncio.Task[None] | None = None
        self._upgrade_request: UpgradeRequest | None = None
        self._upgraded: UpgradedConnection | None = None
        self._upgrade_task: asyncio.Task[None] | None = None
        self.rejection: Exception | None = None
        """Why the last request was forwarded without its body."""

    @property
    def target(self) -> tuple[str, str]:
        """Method and URL of the request whose headers are complete."""
        return self._parser.get_method().decode("latin-1"), self._url.decode("latin-1")

    # -- called by the transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection and notify the backend."""
        super().connection_lost(exc)
        self._complete_requests.clear()
        for task in (self._check, self._upgrade_task):
            if task is not None:
                task.cancel()
        if self._upgraded is not None:
            self._upgraded.connection_lost()
        backend, self._backend = self._backend, None
        if backend is not None:
            self.listener.set_backend(backend, None)
            backend.connection_lost(exc)

    def pause_writing(self) -> None:
        """Notify the backend."""
        super().pause_writing()
        if self._upgraded is not None:
            self._upgraded.pause_writing()
        if self._backend is not None:
            self._backend.pause_writing()

    def resume_writing(self) -> None:
        """Notify the backend."""
        super().resume_writing()
        if self._upgraded is not None:
            self._upgraded.resume_writing()
        if self._backend is not None:
            self._backend.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        if self._upgraded is not None:
            self._upgraded.feed_data(data)
            return
        if self._discard_input:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._discard_input = True  # serve the request; ignore what follows
            if self._upgrade_request is not None:
                self._start_upgrade(self._upgrade_request, data[upgrade.args[0] :])
        except HttpParserError:
            self.listener.count_rejection("malformed")
            self.reject(400)
        if self._in_header:
            self._size += len(data)
            if self._size > MAX_HEADER_SIZE:
                self.listener.count_rejection("header_too_large")
                self.reject(431)
        self._forward_next()
        self._start_check()
        self._update_phase()

    def eof_received(self) -> bool | None:
        """Reject a truncated request."""
        if self._upgraded is not None:
            self._upgraded.feed_eof()
            return None
        if not self._discard_input and (self._in_header or self._in_body):
            self.listener.count_rejection("truncated")
            self.reject(400)
        return self._backend.eof_received() if self._backend is not None else None

    # -- called by the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers, self._body, self._size = b"", [], [], 0
        self._in_header, self._is_checked = True, False

    def on_url(self, chunk: bytes) -> None:
        """A chunk of the request target."""
        self._url += chunk

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers are ignored."""
        if self._in_header:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The headers are complete; the body follows."""
        self._in_header, self._in_body, self._size = False, True, 0
        lines = sum(len(name) + len(value) for name, value in self._headers)
        if len(self._url) + lines > MAX_HEADER_SIZE:
            # They may have arrived in one piece, before which nothing was counted.
            self.listener.count_rejection("header_too_large")
            self.reject(431)
            return
        headers = {name.lower(): value for name, value in self._headers}
        self._body_limit = self.listener.body_limit_of(self, headers)
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        if has_body and self._parser.should_upgrade():
            # The parser would treat the body as another protocol's data.
            self.listener.count_rejection("malformed")
            self.reject(400)
        elif int(headers.get(b"content-length", b"0")) > self._body_limit:
            self._reject_body()
        elif self._parser.should_upgrade() and self.listener.upgrade_handler is not None:
            method, target = self.target
            decoded = [
                (name.decode("latin-1").lower(), value.decode("latin-1"))
                for name, value in self._headers
            ]
            self._upgrade_request = UpgradeRequest(method=method, target=target, headers=decoded)

    def on_body(self, chunk: bytes) -> None:
        """A chunk of the body."""
        if self._discard_input:
            return
        self._size += len(chunk)
        self._body.append(chunk)
        if self._size > self._body_limit:
            self._reject_body()

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_body = False
        if self._discard_input or self._upgrade_request is not None:
            return
        self._complete_requests.append(self._request())
        self._headers, self._body = [], []

    def _request(self) -> bytes:
        """Return the request with the body received so far."""
        parser = self._parser
        lines = [
            b"%b %b HTTP/%b\r\n"
            % (parser.get_method(), self._url, parser.get_http_version().encode())
        ]
        sized = False
        for name, value in self._headers:
            lowered = name.lower()
            sized = sized or lowered in (b"content-length", b"transfer-encoding")
            if lowered not in _DROPPED_HEADERS:
                lines.append(b"%b: %b\r\n" % (name, value))
        if sized:
            lines.append(b"content-length: %d\r\n" % sum(map(len, self._body)))
        return b"".join((*lines, b"\r\n", *self._body))

    def _reject_body(self) -> None:
        self.listener.count_rejection("body_too_large")
        self.reject(413)

    # -- credentials

    def _start_check(self) -> None:
        """Check the credentials of the request whose body is being received."""
        if not self._in_body or self._is_checked or self._discard_input:
            return
        if self._responding or self._complete_requests:
            self.transport.pause_reading()  # until `_resume`: responses are in order
            return
        self._is_checked = True
        headers = {name.lower(): value for name, value in self._headers}
        check = self.listener.check_credentials(self, headers)
        if check is None:
            self._continue()
            return
        self.transport.pause_reading()
        self._check = asyncio.ensure_future(self._finish_check(check))

    async def _finish_check(self, check: Awaitable[Exception | None]) -> None:
        try:
            rejection = await check
        except Exception:
            log.exception("cannot check credentials", extra={"listener": self.listener.name})
            self.reject(500)
            return
        if self._discard_input or self.transport.is_closing():
            return
        self.transport.resume_reading()
        if rejection is None:
            self._continue()
            return
        self.listener.count_rejection("unauthenticated")
        self._discard_input, self._in_body = True, False
        self.rejection, self._body = rejection, []
        self._complete_requests.append(self._request())
        self._forward_next()
        self._update_phase()

    def _continue(self) -> None:
        """Let a client that waits for it send the body."""
        for name, value in self._headers:
            if name.lower() == b"expect" and value.lower() == b"100-continue":
                self.transport.write(_CONTINUE)

    # -- upgrade

    def _start_upgrade(self, request: UpgradeRequest, received: bytes) -> None:
        """Leave the connection to the handler of upgrades."""
        if self._responding or self._complete_requests:
            self.listener.count_rejection("malformed")
            self.reject(400)  # the responses to earlier requests are not sent yet
            return
        self._responding = True
        self._upgraded = UpgradedConnection(self.transport, received)
        self._upgrade_task = asyncio.ensure_future(self._serve_upgrade(request, self._upgraded))

    async def _serve_upgrade(self, request: UpgradeRequest, connection: UpgradedConnection) -> None:
        handler = self.listener.upgrade_handler
        try:
            if handler is not None:
                await handler(request, connection)
        except ConnectionError:
            pass  # the client has disconnected
        except Exception:
            log.exception("cannot serve upgrade", extra={"listener": self.listener.name})
        finally:
            connection.close()

    # -- backend

    def close_backend(self) -> None:
        """The backend closes the connection after its response."""
        if self._discard_input:
            self.half_close()  # a client that still sends would not read the response otherwise
        else:
            self.transport.close()

    def on_response_sent(self) -> None:
        """The backend has sent a response."""
        self._responding = False
        if self._rejection_status or self._complete_requests or self._in_body:
            # It may still write the end of its response in this iteration of the loop.
            self.listener.call_soon(self._resume)
        self._update_phase()

    def _resume(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        self._forward_next()
        if self._rejection_status and not (self._responding or self._complete_requests):
            self._send_rejection()
        else:
            self._start_check()
            self._update_phase()

    def _forward_next(self) -> None:
        """Forward the next request, if none is being served."""
        if self._responding:
            if self._complete_requests:
                self.transport.pause_reading()
            return
        if not self._complete_requests:
            return
        backend = self._backend
        if backend is None:
            backend = self._backend = self.listener.backend_factory()
            self.listener.set_backend(backend, self)
            backend.connection_made(self.transport)
        self._responding = True
        backend.data_received(self._complete_requests.popleft())

    def reject(self, status: int) -> None:
        """Discard a partial request, respond with *status* after earlier requests, and close."""
        if self._rejection_status:
            return
        self._discard_input, self._rejection_status = True, status
        self._in_header = self._in_body = False
        self._headers, self._body = [], []
        if status == 429:
            self._complete_requests.clear()
        if not (self._responding or self._complete_requests):
            self._send_rejection()

    def _send_rejection(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self.listener.rejection_response(self._rejection_status))
            self.half_close()

    def _update_phase(self) -> None:
        """Enter the connection's current phase and report its buffered bytes."""
        if self._responding:
            phase = Phase.RESPONDING
        elif self._in_header:
            phase = Phase.HEADER
        elif self._in_body:
            phase = Phase.BODY
        elif self._backend is None:
            return  # before the first request
        else:
            phase = Phase.IDLE
        if phase is not self.phase and self.phase is not Phase.CLOSING:
            self.enter_phase(phase)
        buffered = sum(map(len, self._complete_requests))
        if self._in_header or self._in_body:
            buffered += self._size
        if buffered != self.buffered_bytes:
            self.listener.set_buffered_bytes(self, buffered)
