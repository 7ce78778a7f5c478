"""The HTTPS server: kopf's, with a listener of our own.

kopf defines the interface of webhook servers; a :class:`~.handler.AdmissionHandler` is a
``WebhookFn``. Reading requests is our own, because kopf limits bodies to 1 MiB and returns status
500 for a malformed review; so is the certificate, because kopf stops listening to replace one.
See docs/decisions/0008-kopf-serves-but-does-not-operate.md.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import kopf
import msgspec
from aiohttp import web

from ...httpserver.aiohttp_server import serve_application
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


class ReviewServer(kopf.WebhookServer):
    """Webhook server at *address* (empty: all addresses) and *port* (0: any free port)."""

    def __init__(
        self,
        serving_certificate: ServingCertificate,
        *,
        address: str,
        port: int,
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
    ) -> None:
        super().__init__(
            addr=address or None, port=port or None, context=serving_certificate.context
        )
        self.draining = False
        """Whether to close connections after each response, so that clients reconnect elsewhere."""
        self._serving_certificate = serving_certificate
        self._limits = limits
        self._metrics = metrics

    async def __call__(self, fn: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """Listen with limits; yield the URL once, as kopf's servers do."""

        async def handle(request: web.Request) -> web.Response:
            return await self._serve(fn, request)

        listener = BufferingListener(
            name="webhooks",
            body_limit=MAX_BODY,
            limits=self._limits,
            metrics=self._metrics,
            error_content=_describe,
        )
        app = web.Application()
        app.add_routes([web.post("/{id:.*}", handle)])
        sockets = await bind(self.addr or "", self.port or 0, reuse_port=True)
        async with serve_application(
            app, listener, sockets, tls=self._serving_certificate.context, shutdown_timeout=60
        ):
            host = self.addr or self._get_accessible_addr(self.addr)
            port = sockets[0].getsockname()[1]
            yield kopf.WebhookClientConfig(url=self._build_url("https", host, port, ""))
            await asyncio.get_running_loop().create_future()

    async def _serve(  # type: ignore[override]  # static in kopf, but called on the instance
        self, fn: kopf.WebhookFn, request: web.Request
    ) -> web.Response:
        """Handle one request."""
        response = await _handle(fn, request)
        if self.draining:
            response.force_close()
        return response


async def _handle(fn: kopf.WebhookFn, request: web.Request) -> web.Response:
    """Return the response of *fn* to the review in *request*."""
    if request.content_type != "application/json":
        return _error_response(415, f"expected application/json, got {request.content_type}")
    try:
        review = msgspec.json.decode(await request.content.read())
        result = await fn(review, webhook=request.match_info["id"])
    except UnknownPathError:
        return _error_response(404, f"no webhook is served at {request.path}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return _error_response(400, f"the body is not JSON: {error}")
    except MalformedReviewError as error:
        return _error_response(400, str(error))
    return web.Response(body=msgspec.json.encode(result), content_type="application/json")


@asynccontextmanager
async def serve_until_exit(
    server: ReviewServer, handler: AdmissionHandler, *, shutdown_timeout: float = 30
) -> AsyncIterator[str]:
    """Serve *handler* within the block; yield the URL.

    On exit stop accepting connections and drain reviews in flight for up to *shutdown_timeout*
    seconds.

    Raises:
        OSError: cannot listen on the address.
    """
    configs = cast(AsyncGenerator[kopf.WebhookClientConfig, None], server(cast(Any, handler)))
    async with aclosing(configs):
        config = await anext(configs)
        try:
            yield config["url"] or ""
        finally:
            try:
                async with asyncio.timeout(shutdown_timeout):
                    await server.__aexit__()
            except TimeoutError:
                log.warning(
                    "shutdown timeout: in-flight reviews aborted",
                    extra={"timeout": shutdown_timeout},
                )


def _describe(status: int) -> tuple[str, bytes]:
    """Return the body of an error response of the listener."""
    text = f"the review is larger than {MAX_BODY} bytes" if status == 413 else explain(status)
    return "text/plain; charset=utf-8", f"{text}\n".encode()


def _error_response(status: int, text: str) -> web.Response:
    log.warning("rejected request", extra={"status": status, "error": text})
    return web.Response(status=status, text=f"{text}\n")
