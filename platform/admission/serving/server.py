"""The HTTPS server of admission reviews.

It responds to a malformed review with status 400, to an unknown path with 404, and replaces its
certificate without closing connections. See docs/decisions/0008-webhooks-without-kopf.md.
"""

import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from ...httpserver.asgi import Receive, Response, Scope, Send, read_body
from ...httpserver.asgi_server import serve_application
from ...httpserver.buffering import BufferingListener
from ...httpserver.limits import Limits
from ...httpserver.listener import explain
from ...httpserver.metrics import ListenerMetrics
from ...httpserver.sockets import bind
from ...machinery.serving_certificate import ServingCertificate
from .handler import AdmissionHandler, UnknownPathError
from .reviews import MalformedReviewError

log = logging.getLogger(__name__)

MAX_BODY = 3 * 2**20
"""Maximum bytes of a review: holds old and new object of the maximum size that etcd stores."""


class ReviewServer:
    """Serves reviews at *address* (empty: all addresses) and *port* (0: any free port)."""

    def __init__(
        self,
        handler: AdmissionHandler,
        serving_certificate: ServingCertificate,
        *,
        address: str,
        port: int,
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
    ) -> None:
        self.draining = False
        """Whether to close connections after each response, so that clients reconnect elsewhere."""
        self._handler = handler
        self._serving_certificate = serving_certificate
        self._address, self._port = address, port
        self._limits = limits
        self._metrics = metrics

    @asynccontextmanager
    async def running(self, *, shutdown_timeout: float = 30) -> AsyncIterator[str]:
        """Serve within the block; yield the URL.

        On exit stop accepting connections and drain reviews in flight for up to *shutdown_timeout*
        seconds.

        Raises:
            OSError: cannot listen on the address.
        """
        listener = BufferingListener(
            name="webhooks",
            body_limit=MAX_BODY,
            limits=self._limits,
            metrics=self._metrics,
            error_content=_describe,
        )
        sockets = await bind(self._address, self._port, reuse_port=True)
        context = self._serving_certificate.context
        async with serve_application(
            self._serve, listener, sockets, tls=context, drain_timeout=shutdown_timeout
        ):
            yield f"https://{_url_host(self._address)}:{sockets[0].getsockname()[1]}"

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        response = await self._respond(scope, await read_body(receive))
        await response.send(send, close=self.draining)

    async def _respond(self, scope: Scope, body: bytes) -> Response:
        if scope["method"] != "POST":
            return Response(status=405, headers=(("allow", "POST"),))
        kind = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
        if kind.partition(";")[0].strip().lower() != "application/json":
            return _rejection(415, f"expected application/json, got {kind or 'no content type'}")
        try:
            result = await self._handler.handle(scope["path"], msgspec.json.decode(body))
        except UnknownPathError:
            return _rejection(404, f"no webhook is served at {scope['path']}")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return _rejection(400, f"the body is not JSON: {error}")
        except MalformedReviewError as error:
            return _rejection(400, str(error))
        return Response(body=msgspec.json.encode(result), content_type="application/json")


def _url_host(address: str) -> str:
    """Return the host for URLs: ``localhost`` for a server of all addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address or "localhost"
    if parsed.is_unspecified:
        return "localhost"
    return f"[{address}]" if parsed.version == 6 else address


def _describe(status: int) -> tuple[str, bytes]:
    """Return the body of an error response of the listener."""
    text = f"the review is larger than {MAX_BODY} bytes" if status == 413 else explain(status)
    return "text/plain; charset=utf-8", f"{text}\n".encode()


def _rejection(status: int, text: str) -> Response:
    log.warning("rejected request", extra={"status": status, "error": text})
    return Response.text(f"{text}\n", status=status)
