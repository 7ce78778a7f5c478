"""Cross-origin requests of browsers (CORS), off unless origins are configured.

Credentials are sent in a header by scripts, never by the browser itself, so no response allows
credentials.
"""

from collections.abc import Sequence

import re2
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
REQUEST_HEADERS = (
    b"Accept, Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID"
)
EXPOSED_HEADERS = b"Date, ETag, Location, Retry-After, Warning"
PREFLIGHT_MAX_AGE = b"600"
"""Seconds for which a browser may cache the response to a preflight request."""

_STARTS = ("^", "//", "(?i)^", "(?i)//")
_ENDS = ("$", ":", "(:|$)", "($|:)")
_NO_CONTENT = 204
_VARY = (b"vary", b"Origin")


class OriginPatternError(ValueError):
    """A pattern of ``--cors-allowed-origins`` is invalid; the text names it."""


class OriginPatterns:
    """The regular expressions (RE2, as in Go) of allowed origins."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile the patterns.

        Raises:
            OriginPatternError: one is malformed, or does not determine where an origin begins and
                ends: ``example.org`` would allow ``https://example.org.evil.com``.
        """
        self._patterns = [_compile(pattern) for pattern in patterns]

    def match(self, origin: str) -> bool:
        """Return whether *origin* is allowed."""
        return any(pattern.search(origin) for pattern in self._patterns)


def _compile(pattern: str) -> "re2._Regexp[str]":
    if not pattern.startswith(_STARTS) or not pattern.endswith(_ENDS) or _has_alternatives(pattern):
        text = "it must begin with ^ or // and end with $, : or (:|$), to match whole host names"
        raise OriginPatternError(f"invalid origin pattern {pattern!r}: {text}")
    try:
        return re2.compile(pattern)
    except re2.error as error:
        raise OriginPatternError(f"invalid origin pattern {pattern!r}: {error}") from error


def _has_alternatives(pattern: str) -> bool:
    """Return whether *pattern* has alternatives outside of parentheses, each with its own ends."""
    depth, escaped = 0, False
    for sign in pattern:
        if escaped:
            escaped = False
        elif sign == "\\":
            escaped = True
        else:
            depth += (sign == "(") - (sign == ")")
            if sign == "|" and depth == 0:
                return True
    return False


class CorsMiddleware:
    """ASGI middleware: responds to preflight requests, and marks responses for allowed origins."""

    def __init__(self, app: ASGIApp, *, origins: OriginPatterns) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request from a script of another origin; pass on all others."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"")
        allowed = bool(origin) and self._origins.match(origin.decode("latin-1"))
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers and origin:
            await _respond_to_preflight(send, origin if allowed else b"")
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [_VARY]
                if allowed:
                    more.append((b"access-control-allow-origin", origin))
                    more.append((b"access-control-expose-headers", EXPOSED_HEADERS))
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self._app(scope, receive, send_marked)


async def _respond_to_preflight(send: Send, allowed_origin: bytes) -> None:
    """Respond, to an origin that is not allowed without headers of permission."""
    headers = [_VARY]
    if allowed_origin:
        headers += [
            (b"access-control-allow-origin", allowed_origin),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", REQUEST_HEADERS),
            (b"access-control-max-age", PREFLIGHT_MAX_AGE),
        ]
    await send({"type": "http.response.start", "status": _NO_CONTENT, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
