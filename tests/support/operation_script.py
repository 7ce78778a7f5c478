"""Runs operations of the SDK against scripted responses, with a clock that sleeps advance."""

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from batholith.client.calls import Session
from batholith.client.credentials import CredentialSource, StaticToken
from batholith.client.effects import (
    CallBlocking,
    CloseStream,
    Emit,
    OpenStream,
    ReadChunk,
    Reply,
    Send,
    Sleep,
    StreamHead,
    TransportError,
    WireRequest,
)
from batholith.client.timing import Retries, Timing

START = datetime(2026, 1, 1, tzinfo=UTC)
LOST = TransportError("the connection was closed", sent=True)
REFUSED = TransportError("connection refused", sent=False)


def reply(status: int = 200, body: object = None, **headers: str) -> Reply:
    """A response with JSON; a problem if it is an error."""
    kind = "application/problem+json" if status >= 400 else "application/json"
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    content = {"status": status, "title": "t", "detail": "d"} if body is None else body
    return Reply(status, {"content-type": kind, **names}, json.dumps(content).encode())


@dataclass
class Chunks:
    """A streamed response: the chunks of its body, then its end or the loss of the connection."""

    chunks: list[bytes]
    lost: bool = False
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Script:
    """Responses in order, and what was requested."""

    replies: list[Any]
    requests: list[WireRequest] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    sleeps: list[float] = field(default_factory=list)
    now: float = 0.0
    open_streams: int = 0
    seconds_per_chunk: float = 0.0

    def session(
        self,
        *,
        credentials: CredentialSource | None = None,
        timeout: float = 30.0,
        retries: Retries | None = None,
    ) -> Session:
        timing = Timing(
            monotonic=lambda: self.now,
            now=lambda: START + timedelta(seconds=self.now),
            random=lambda: 0.5,
        )
        return Session(
            url="https://api",
            credentials=credentials or StaticToken("secret"),
            timeout=timeout,
            retries=retries or Retries(base=1.0, maximum=8.0),
            timing=timing,
        )

    def run(self, operation: Generator[Any, Any, Any]) -> Any:
        """The result of an operation."""
        items = self.items(operation)
        while True:
            try:
                next(items)
            except StopIteration as stop:
                return stop.value

    def items(self, operation: Generator[Any, Any, Any]) -> Generator[Any, None, Any]:
        """The items of a stream operation."""
        value: Any = None
        while True:
            try:
                if isinstance(value, TransportError):
                    effect = operation.throw(value)
                else:
                    effect = operation.send(value)
            except StopIteration as stop:
                return stop.value
            if isinstance(effect, Emit):
                yield effect.item
                value = None
            else:
                value = self._perform(effect)

    def _perform(self, effect: object) -> Any:
        match effect:
            case Send(request, timeout):
                self.requests.append(request)
                self.timeouts.append(timeout)
                return self.replies.pop(0)
            case OpenStream(request):
                self.requests.append(request)
                found = self.replies.pop(0)
                if isinstance(found, TransportError):
                    return found
                self.open_streams += 1
                if isinstance(found, Reply):
                    head = Reply(found.status, found.headers)
                    return StreamHead(head, self._read(Chunks([found.body])))
                return StreamHead(Reply(found.status, found.headers), self._read(found))
            case ReadChunk(stream):
                self.now += self.seconds_per_chunk
                return next(stream, b"")
            case CloseStream():
                self.open_streams -= 1
            case Sleep(seconds):
                self.sleeps.append(seconds)
                self.now += seconds
            case CallBlocking(function):
                return function()
        return None

    def _read(self, stream: Chunks) -> Iterator[bytes | TransportError]:
        yield from stream.chunks
        if stream.lost:
            yield LOST
