"""Operations without I/O: generators that yield effects, which an executor performs.

:mod:`.blocking_executor` performs them in the calling thread and :mod:`.async_executor` in an event
loop, so each operation of the API is written once. An operation yields an effect and receives its
result, or the error that it caused. A *stream* operation also emits items.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast

T = TypeVar("T")
ItemT = TypeVar("ItemT")


class Secret:
    """Text that is neither shown by ``repr`` nor formatted into messages."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('…')"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """One HTTP request, ready to be sent."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    authorization: Secret = field(default_factory=lambda: Secret(""))
    """The ``Authorization`` header; empty for none."""
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response; *body* is empty while it is streamed."""

    status: int
    headers: Mapping[str, str]
    """With names in lower case."""
    body: bytes = b""


class TransportError(Exception):
    """No complete response was received; whether the request was executed is unknown.

    *sent* is False if the connection was not established, so that the request was not executed.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request and read its response of at most *timeout* seconds: :class:`Reply`."""

    request: WireRequest
    timeout: float


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Send a request and read the head of its response: :class:`StreamHead`.

    *timeout* limits the seconds until the head is received, *idle_timeout* those between two
    chunks.
    """

    request: WireRequest
    timeout: float
    idle_timeout: float | None


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The head of a response whose body is read in chunks; only the executor uses *stream*."""

    reply: Reply
    stream: Any


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Read the next bytes of a stream; ``b""`` at its end."""

    stream: Any


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close a stream, of which more could be read."""

    stream: Any


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for *seconds*."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CallBlocking:
    """Call a function that blocks, such as a credential plugin."""

    function: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Emit(Generic[ItemT]):
    """Deliver an item of a stream operation to its consumer."""

    item: ItemT


Effect: TypeAlias = Send | OpenStream | ReadChunk | CloseStream | Sleep | CallBlocking
Operation: TypeAlias = Generator[Effect, Any, T]
Stream: TypeAlias = Generator[Effect | Emit[ItemT], Any, None]


def send(request: WireRequest, *, timeout: float) -> Operation[Reply]:
    """Send a request.

    Raises:
        TransportError: no complete response was received.
    """
    return cast(Reply, (yield Send(request, timeout)))


def open_stream(
    request: WireRequest, *, timeout: float, idle_timeout: float | None
) -> Operation[StreamHead]:
    """Send a request of which the response is read in chunks.

    Raises:
        TransportError: no response was received.
    """
    return cast(StreamHead, (yield OpenStream(request, timeout, idle_timeout)))


def read_chunk(stream: Any) -> Operation[bytes]:
    """Read the next bytes of *stream*; ``b""`` at its end.

    Raises:
        TransportError: the connection was lost.
    """
    return cast(bytes, (yield ReadChunk(stream)))


def close_stream(stream: Any) -> Operation[None]:
    """Close *stream*."""
    yield CloseStream(stream)


def sleep(seconds: float) -> Operation[None]:
    """Wait for *seconds*."""
    yield Sleep(seconds)


def call_blocking(function: Callable[[], T]) -> Operation[T]:
    """Call *function*, in a thread if the executor runs in an event loop."""
    return cast(T, (yield CallBlocking(function)))
