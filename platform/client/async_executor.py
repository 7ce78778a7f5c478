"""Performs the effects of operations in an event loop, with ``httpx.AsyncClient``."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import Any, Generic, TypeVar, assert_never

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
        self.chunks = response.aiter_bytes()


class _Result(Generic[T]):
    """The result of an operation: an asynchronous generator returns none."""

    def __init__(self, value: T) -> None:
        self.value = value


class AsyncExecutor:
    """Runs operations in one event loop."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation and return its result."""
        async with contextlib.aclosing(self._drive(operation)) as items:
            async for item in items:
                if isinstance(item, _Result):
                    result: T = item.value
                    return result
        raise TypeError("the operation emits items")

    async def iterate(self, operation: Stream[ItemT]) -> AsyncGenerator[ItemT, None]:
        """Yield the items of a stream operation; closing the iterator closes its connection."""
        async with contextlib.aclosing(self._drive(operation)) as items:
            async for item in items:
                if not isinstance(item, _Result):
                    yield item

    async def _drive(
        self, operation: Generator[Effect | Emit[Any], Any, T]
    ) -> AsyncGenerator[Any, None]:
        streams: set[_OpenResponse] = set()
        async with _closing(streams, operation):
            value: object = None
            error: TransportError | None = None
            while True:
                try:
                    effect = operation.send(value) if error is None else operation.throw(error)
                except StopIteration as stop:
                    yield _Result(stop.value)
                    return
                value, error = None, None
                if isinstance(effect, Emit):
                    yield effect.item
                    continue
                try:
                    value = await self._perform(effect, streams)
                except TransportError as failure:
                    error = failure

    async def _perform(self, effect: Effect, streams: set[_OpenResponse]) -> object:
        match effect:
            case Send():
                return await self._send(effect)
            case OpenStream():
                return await self._open(effect, streams)
            case ReadChunk(stream):
                return await _read(stream)
            case CloseStream(stream):
                streams.discard(stream)
                await stream.response.aclose()
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case CallBlocking(function):
                return await asyncio.to_thread(function)
            case _:
                assert_never(effect)
        return None

    async def _send(self, effect: Send) -> Reply:
        request = build_request(effect.request, httpx.Timeout(effect.timeout))
        try:
            async with asyncio.timeout(effect.timeout):
                response = await self._client.send(request)
        except TimeoutError:
            raise TransportError("the response is not complete", sent=True) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise transport_error(error) from None
        return Reply(response.status_code, response.headers, response.content)

    async def _open(self, effect: OpenStream, streams: set[_OpenResponse]) -> StreamHead:
        request = build_request(effect.request, stream_timeouts(effect))
        try:
            async with asyncio.timeout(effect.timeout):
                response = await self._client.send(request, stream=True)
        except TimeoutError:
            raise TransportError("no response was received in time", sent=True) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise transport_error(error) from None
        stream = _OpenResponse(response)
        streams.add(stream)
        return StreamHead(Reply(response.status_code, response.headers), stream)


@contextlib.asynccontextmanager
async def _closing(
    streams: set[_OpenResponse], operation: Generator[Any, Any, Any]
) -> AsyncIterator[None]:
    try:
        yield
    finally:
        operation.close()
        for stream in streams:
            await stream.response.aclose()


async def _read(stream: _OpenResponse) -> bytes:
    try:
        return await anext(stream.chunks, b"")
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise transport_error(error) from None
