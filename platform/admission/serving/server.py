"""The HTTPS server: kopf's, with doors of our own.

kopf listens, speaks TLS and ends connections in order; a :class:`~.desk.AdmissionHandler` is its
``WebhookFn``. How a request is read is ours: kopf takes no body above 1 MiB and answers 500 to
what is no review; so is the certificate, because kopf stops listening for a moment to change one.
The reasons: docs/decisions/0008-kopf-serves-but-does-not-operate.md.
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
"""Bytes of a review at most: an object of the largest size that is stored, old and new."""


class ReviewServer(kopf.WebhookServer):
    """A server of webhooks at *address* (empty: all) and *port* (0: a free one)."""

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
        """Whether each answer is the last on its connection, so that clients look elsewhere."""
        self._serving_certificate = serving_certificate
        self._limits = limits
        self._metrics = metrics

    async def __call__(self, fn: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """Listen as kopf would, with limits; yields the URL once."""

        async def handle(request: web.Request) -> web.Response:
            return await self._serve(fn, request)

        fronts = BufferingListener(
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
            app, fronts, sockets, tls=self._serving_certificate.context, shutdown_timeout=60
        ):
            host = self.addr or self._get_accessible_addr(self.addr)
            port = sockets[0].getsockname()[1]
            yield kopf.WebhookClientConfig(url=self._build_url("https", host, port, ""))
            await asyncio.get_running_loop().create_future()

    async def _serve(  # type: ignore[override]  # static in kopf, but called on the instance
        self, fn: kopf.WebhookFn, request: web.Request
    ) -> web.Response:
        """Answer one request."""
        response = await _handle(fn, request)
        if self.draining:
            response.force_close()
        return response


async def _handle(fn: kopf.WebhookFn, request: web.Request) -> web.Response:
    """What *fn* says to the review in *request*."""
    if request.content_type != "application/json":
        return _error_response(415, f"want application/json, not {request.content_type}")
    try:
        review = msgspec.json.decode(await request.content.read())
        answer = await fn(review, webhook=request.match_info["id"])
    except UnknownPathError:
        return _error_response(404, f"no webhook is served at {request.path}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return _error_response(400, f"the body is no JSON: {error}")
    except MalformedReviewError as error:
        return _error_response(400, str(error))
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


@asynccontextmanager
async def serve_until_exit(
    server: ReviewServer, handler: AdmissionHandler, *, shutdown_timeout: float = 30
) -> AsyncIterator[str]:
    """Serve *desk* for the length of the block, which gets the URL.

    At its end no connection is taken any more; reviews in hand get *grace* seconds to be answered.

    Raises:
        OSError: the address cannot be listened on.
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
                log.warning("reviews were cut off at the end", extra={"grace": shutdown_timeout})


def _describe(status: int) -> tuple[str, bytes]:
    """What a client reads whose request was no whole one."""
    text = f"a review has at most {MAX_BODY} bytes" if status == 413 else explain(status)
    return "text/plain; charset=utf-8", f"{text}\n".encode()


def _error_response(status: int, text: str) -> web.Response:
    log.warning("not a review", extra={"status": status, "error": text})
    return web.Response(status=status, text=f"{text}\n")
