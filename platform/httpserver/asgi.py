"""Types of ASGI applications, and responses whose content is known."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response whose content is known."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def text(cls, text: str, *, status: int = 200) -> "Response":
        """Return a response of plain text."""
        return cls(status=status, body=text.encode())

    async def send(self, send: Send, *, close: bool = False) -> None:
        """Send it; *close* ends the connection after it."""
        headers = [
            ("content-type", self.content_type),
            ("content-length", str(len(self.body))),
            *self.headers,
            *((("connection", "close"),) if close else ()),
        ]
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": self.status, "headers": encoded})
        await send({"type": "http.response.body", "body": self.body})


async def read_body(receive: Receive) -> bytes:
    """Return the body of a request, which the listener has received completely."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


async def wait_disconnected(receive: Receive) -> None:
    """Wait until the client of a request, whose body was read, has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
