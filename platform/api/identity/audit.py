"""Audit log: one line for each request that writes, also for a rejected one.

It names the user and the object, and contains neither bodies nor headers.
"""

import logging
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...model.names import JOBS

log = logging.getLogger(__name__)

RECORD = "audit"
"""Key of the record in the request's state."""

_CONVERTOR = re.compile(r":\w+}")
"""Convertor of a path parameter in the path of a route, ``{kind:job_kind}``."""

_READS = frozenset(("GET", "HEAD", "OPTIONS"))
_INTERNAL_ERROR = 500
_NO_RESPONSE = 0
_MAX_PATH = _MAX_NAME = 256


@dataclass(slots=True, kw_only=True)
class AuditRecord:
    """What a request does; the layers below complete it."""

    user: str = ""
    """Empty before authentication."""

    uid: str = ""
    template: str = ""
    """Path of the route, with the names of its parameters."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    """Path parameters, in the order of the path."""

    operation: uuid.UUID | None = None
    dry_run: bool = False
    status: int = _NO_RESPONSE


def record_of(scope: Scope) -> AuditRecord | None:
    """Return the record of a request, if it writes."""
    record: AuditRecord | None = scope.get("state", {}).get(RECORD)
    return record


def note_operation(scope: Scope, operation: uuid.UUID) -> None:
    """Note the id from which the names of everything created are derived."""
    record = record_of(scope)
    if record is not None:
        record.operation = operation


def note_dry_run(scope: Scope) -> None:
    """Note that nothing is written."""
    record = record_of(scope)
    if record is not None:
        record.dry_run = True


class AuditMiddleware:
    """Outermost ASGI middleware: logs each write once its response is sent, or has failed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request and log it."""
        if scope["type"] != "http" or scope["method"] in _READS:
            await self._app(scope, receive, send)
            return
        record = scope.setdefault("state", {})[RECORD] = AuditRecord()
        started = time.perf_counter()

        async def send_observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_observed)
        except Exception:
            # The error handler responds outside of this middleware.
            record.status = record.status or _INTERNAL_ERROR
            raise
        finally:
            log.info("request", extra=_fields(scope, record, time.perf_counter() - started))


class RouteMiddleware:
    """Innermost ASGI middleware: notes the route, which the router adds to its own scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request and note its route."""
        try:
            await self._app(scope, receive, send)
        finally:
            record = record_of(scope) if scope["type"] == "http" else None
            if record is not None:
                record.template = _CONVERTOR.sub("}", getattr(scope.get("route"), "path", ""))
                record.parameters = {
                    name: str(value)[:_MAX_NAME]
                    for name, value in scope.get("path_params", {}).items()
                }


def _asks_for_dry_run(scope: Scope) -> bool:
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return "true" in query.get("dry_run", ())


def _job(record: AuditRecord) -> str:
    """Return ``namespace/name`` of the Volcano job that a request is about, as in all logs."""
    parameters = record.parameters
    if not ("/jobs/{name}" in record.template or parameters.get("kind") == JOBS.plural):
        return ""
    name = parameters.get("name")
    return f"{parameters.get('namespace')}/{name}" if name else ""


def _fields(scope: Scope, record: AuditRecord, seconds: float) -> dict[str, Any]:
    """Return the fields of the log line; those that are unknown are missing."""
    client = scope.get("client")
    fields: dict[str, Any] = {
        "audit": "write",
        "user": record.user,
        "user_uid": record.uid,
        "source": client[0] if client else "",
        "verb": scope["method"],
        "path": record.template or scope["path"][:_MAX_PATH],
        "object": "/".join(record.parameters.values()),
        "job": _job(record),
        "status": record.status,
        "duration_seconds": round(seconds, 6),
        "operation": "" if record.operation is None else str(record.operation),
        "dry_run": record.dry_run or _asks_for_dry_run(scope),
    }
    return {key: value for key, value in fields.items() if value != ""}
