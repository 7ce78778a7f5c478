"""Metrics and the access log: one line per request.

Values of the query are not logged, since they may be secrets of the caller; their names are.
"""

import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..identity.authentication import CALLER
from .metrics import ApiMetrics
from .operations import operation_of

log = logging.getLogger(__name__)

_MAX_PATH = 500
"""Characters of a path that are logged."""
_INTERNAL_ERROR = 500


class RequestMiddleware:
    """Outermost ASGI middleware: counts requests, and logs them if asked to."""

    def __init__(self, app: ASGIApp, *, metrics: ApiMetrics, access_log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, count it and log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})  # shared with the copies of inner middleware
        observed = _Observed(send)
        self._metrics.in_flight += 1
        try:
            await self._app(scope, receive, observed)
        finally:
            self._metrics.in_flight -= 1
            # Without a head, an error handler outside of this middleware responds.
            status = observed.status or _INTERNAL_ERROR
            seconds = time.perf_counter() - observed.started
            operation = operation_of(scope)
            route = "" if operation is None else operation.route
            self._metrics.observe(scope["method"], route, status, observed.head_seconds or seconds)
            if self._access_log:
                log.info("request served", extra=_fields(scope, observed, status, seconds))


class _Observed:
    """Passes the messages of a response on, and remembers status, time and size."""

    __slots__ = ("head_seconds", "send", "size", "started", "status")

    def __init__(self, send: Send) -> None:
        self.send = send
        self.status = 0
        self.size = 0
        self.head_seconds = 0.0
        self.started = time.perf_counter()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.head_seconds = time.perf_counter() - self.started
        else:
            self.size += len(message.get("body", b""))
        await self.send(message)


def _fields(scope: Scope, observed: _Observed, status: int, seconds: float) -> dict[str, Any]:
    """Return the fields of the log line; those that are unknown are missing."""
    operation = operation_of(scope)
    caller = scope["state"].get(CALLER)
    client = scope.get("client")
    query = scope.get("query_string", b"").decode("latin-1")
    names = dict.fromkeys(term.partition("=")[0] for term in query.split("&") if term)
    fields = {
        "verb": scope["method"],
        "path": scope["raw_path"].decode("latin-1")[:_MAX_PATH],  # without control characters
        "route": "" if operation is None else operation.route,
        "query": ",".join(names)[:_MAX_PATH],
        "status": status,
        "seconds": round(seconds, 6),
        "bytes": observed.size,
        "user": "" if caller is None else caller.user.username,
        "source": client[0] if client else "",
    }
    return {key: value for key, value in fields.items() if value != ""}
