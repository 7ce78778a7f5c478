"""What a request body may be, held before anything is parsed or kept."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 64 * 1024
"""Bytes; a command is some fifty."""

_TOO_LARGE_BODY = (
    b'{"type":"about:blank","title":"Content Too Large","status":413,'
    b'"detail":"the body is larger than 65536 bytes"}'
)


class BodyLimitMiddleware:
    """ASGI middleware: bodies are JSON, and 413 answers one that is, or turns out, too large.

    The content type is not asked: `curl -d` calls everything a form, and with bearer tokens, which
    no browser sends by itself, there is nothing for a foreign page to forge.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body up to the ceiling, then hand it on in one piece."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > MAX_BODY:
            await _reject(send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # the rest of the body will not come: nothing is carried out
            body += message.get("body", b"")
            if len(body) > MAX_BODY:
                await _reject(send)
                return
            if not message.get("more_body"):
                break
        whole: Message = {"type": "http.request", "body": body, "more_body": False}
        parts = [whole]

        async def replay() -> Message:
            return parts.pop() if parts else await receive()

        others = [header for header in scope["headers"] if header[0] != b"content-type"]
        headers = [*others, (b"content-type", b"application/json")]
        await self._app({**scope, "headers": headers}, replay, send)


async def _reject(send: Send) -> None:
    headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": _TOO_LARGE_BODY})
