"""Limit of request bodies, enforced before parsing."""

import re
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...model.workdirs import MAX_ARCHIVE
from ..jobs.kinds import KINDS
from ..pages.app import LOGIN, MAX_LOGIN_BODY
from ..problems import MEDIA_TYPE, encode_problem

MAX_BODY = 64 * 1024
"""Maximum bytes of a body; a command has about fifty."""

MAX_MANIFEST = 3 * 1024 * 1024
"""Maximum bytes of the manifest of a job, as at kube-apiserver."""

TOO_LARGE = (
    f"the body is larger than {MAX_BODY} bytes, or than {MAX_MANIFEST} bytes where jobs are"
    f" created, or than {MAX_ARCHIVE} bytes where working directories are stored"
)
"""Detail of the error response."""

_CREATION = re.compile(rf"/v1/namespaces/[^/]+/({'|'.join(KINDS)})")
_SUBMISSION = re.compile(r"/v1/namespaces/[^/]+/jobs/[^/]+/submission")


def body_limit(method: str, path: str) -> int:
    """Return the maximum size of the body of a request to *path*, which has no query."""
    if path == LOGIN:
        return MAX_LOGIN_BODY
    if method == "POST" and _CREATION.fullmatch(path):
        return MAX_MANIFEST
    return MAX_ARCHIVE if method == "PUT" and _SUBMISSION.fullmatch(path) else MAX_BODY


class BodyLimitMiddleware:
    """ASGI middleware: treats bodies as JSON and rejects too large ones with status 413.

    The content type is ignored: `curl -d` declares a form, and bearer tokens, which browsers do not
    send automatically, rule out cross-site request forgery.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body up to the limit, then pass it on as one message."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = body_limit(scope["method"], scope["path"])
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _reject(send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # Incomplete body: nothing is executed.
            body += message.get("body", b"")
            if len(body) > limit:
                await _reject(send)
                return
            if not message.get("more_body"):
                break
        buffered: Message = {"type": "http.request", "body": bytes(body), "more_body": False}
        messages = [buffered]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        others = [header for header in scope["headers"] if header[0] != b"content-type"]
        headers = [*others, (b"content-type", b"application/json")]
        await self._app({**scope, "headers": headers}, replay, send)


async def _reject(send: Send) -> None:
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": encode_problem(status, TOO_LARGE)})
