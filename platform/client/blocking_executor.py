"""Performs the effects of operations in the calling thread, with ``httpx.Client``."""

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import Any, TypeVar, assert_never

import httpx

from .effects import (
    CallBlocking,
    CloseStream,
    Effect,
    Emit,
    OpenStream,
    Operation,
    ReadChunk,
    Reply,
    Send,
    Sleep,
    Stream,
    StreamHead,
    TransportError,
)
from .http_requests import build_request, stream_timeouts, transport_error

T = TypeVar("T")
ItemT = TypeVar("ItemT")


class _OpenResponse:
    """A streamed response, and its chunks."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.chunks = response.iter_bytes()


class BlockingExecutor:
    """Runs operations; safe for use by several threads."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and return its result."""
        items: Generator[object, None, T] = self._drive(operation)
        try:
            next(items)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise TypeError("the operation emits items")

    def iterate(self, operation: Stream[ItemT]) -> Generator[ItemT, None, None]:
        """Yield the items of a stream operation; closing the iterator closes its connection."""
        yield from self._drive(operation)

    def _drive(
        self, operation: Generator[Effect | Emit[ItemT], Any, T]
    ) -> Generator[ItemT, None, T]:
        streams: set[_OpenResponse] = set()
        with contextlib.closing(operation), _closing(streams):
            value: object = None
            error: TransportError | None = None
            while True:
                try:
                    effect = operation.send(value) if error is None else operation.throw(error)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                value, error = None, None
                if isinstance(effect, Emit):
                    yield effect.item
                    continue
                try:
                    value = self._perform(effect, streams)
                except TransportError as failure:
                    error = failure

    def _perform(self, effect: Effect, streams: set[_OpenResponse]) -> object:
        match effect:
            case Send():
                return self._send(effect)
            case OpenStream():
                return self._open(effect, streams)
            case ReadChunk(stream):
                return _read(stream)
            case CloseStream(stream):
                streams.discard(stream)
                stream.response.close()
            case Sleep(seconds):
                time.sleep(seconds)
            case CallBlocking(function):
                return function()
            case _:
                assert_never(effect)
        return None

    def _send(self, effect: Send) -> Reply:
        end = time.monotonic() + effect.timeout
        request = build_request(effect.request, httpx.Timeout(effect.timeout))
        try:
            response = self._client.send(request, stream=True)
            try:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if time.monotonic() > end:
                        raise TransportError("the response is not complete", sent=True)
            finally:
                response.close()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise transport_error(error) from None
        return Reply(response.status_code, response.headers, bytes(body))

    def _open(self, effect: OpenStream, streams: set[_OpenResponse]) -> StreamHead:
        request = build_request(effect.request, stream_timeouts(effect))
        try:
            response = self._client.send(request, stream=True)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise transport_error(error) from None
        stream = _OpenResponse(response)
        streams.add(stream)
        return StreamHead(Reply(response.status_code, response.headers), stream)


@contextlib.contextmanager
def _closing(streams: set[_OpenResponse]) -> Iterator[None]:
    try:
        yield
    finally:
        for stream in streams:
            stream.response.close()


def _read(stream: _OpenResponse) -> bytes:
    try:
        return next(stream.chunks, b"")
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise transport_error(error) from None
