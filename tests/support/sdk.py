"""Both clients of the SDK for the same test, and a REST API in the test's process."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from support.rest import running_api, sqlite

from batholith.api.history.tasks import HistorySettings
from batholith.client import AsyncClient, Client, Retries
from batholith.client.options import ClientOptions
from batholith.testing import Cluster

FLAVOURS = ("blocking", "async")


@dataclass(slots=True)
class Sdk:
    """Calls of one of both clients; the blocking one runs in a thread."""

    flavour: str
    client: Any

    async def call(self, function: Callable[[Any], Any]) -> Any:
        """The result of *function*, called with the client; of a stream, the list of its items."""
        if self.flavour == "blocking":
            return await asyncio.to_thread(lambda: _drained(function(self.client)))
        found = function(self.client)
        if inspect.isasyncgen(found):
            return [item async for item in found]
        return await found if inspect.isawaitable(found) else found

    async def first(self, function: Callable[[Any], Any], count: int) -> list[Any]:
        """The first items of a stream, which is closed then."""
        if self.flavour == "blocking":
            return await asyncio.to_thread(_first, function, self.client, count)
        async with contextlib.aclosing(function(self.client)) as items:
            return [await anext(items) for _ in range(count)]


def submitting(job: Any) -> Callable[[Any], Any]:
    """A call that submits a job."""
    return lambda client: client.jobs.submit(job)


def _drained(found: Any) -> Any:
    return list(found) if inspect.isgenerator(found) else found


def _first(function: Callable[[Any], Any], client: Any, count: int) -> list[Any]:
    with contextlib.closing(function(client)) as items:
        return [next(items) for _ in range(count)]


@contextlib.asynccontextmanager
async def sdk(flavour: str, url: str, **options: Any) -> AsyncIterator[Sdk]:
    """A client of the REST API at *url*."""
    given: ClientOptions = {"retries": Retries(base=0.01, maximum=0.1)}
    given.update(options)  # type: ignore[typeddict-item]
    if flavour == "blocking":
        with Client(url, **given) as blocking:
            yield Sdk(flavour, blocking)
    else:
        async with AsyncClient(url, **given) as asynchronous:
            yield Sdk(flavour, asynchronous)


@dataclass(slots=True)
class RestCluster:
    """A cluster with all components, and its REST API."""

    cluster: Cluster
    url: str

    @property
    def token(self) -> str:
        return self.cluster.credentials.token

    def sdk(self, flavour: str, **options: Any) -> contextlib.AbstractAsyncContextManager[Sdk]:
        return sdk(flavour, self.url, **{"token": self.token, **options})


@contextlib.asynccontextmanager
async def rest_cluster(directory: Path, *, nodes: int = 2) -> AsyncIterator[RestCluster]:
    async with (
        Cluster(nodes=nodes) as cluster,
        cluster.client() as client,
        running_api(client, sqlite(directory), history=HistorySettings(record=True)) as url,
    ):
        yield RestCluster(cluster, url)


class LostResponse(httpx.ReadError):
    """A response that was sent and not received."""


@dataclass
class LossyTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Executes requests, and loses the responses of those that match, or cuts their bodies."""

    lose: Callable[[httpx.Request], bool] = lambda request: False
    cut: Callable[[httpx.Request], int | None] = lambda request: None
    """Number of bytes of the body that are received."""
    requests: list[httpx.Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._blocking = httpx.HTTPTransport()
        self._asynchronous = httpx.AsyncHTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = self._blocking.handle_request(request)
        if self.lose(request):
            response.close()
            raise LostResponse("lost", request=request)
        if (bytes_ := self.cut(request)) is not None:
            response.stream = _CutStream(response.stream, bytes_)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = await self._asynchronous.handle_async_request(request)
        if self.lose(request):
            await response.aclose()
            raise LostResponse("lost", request=request)
        if (bytes_ := self.cut(request)) is not None:
            response.stream = _AsyncCutStream(response.stream, bytes_)
        return response

    def close(self) -> None:
        self._blocking.close()

    async def aclose(self) -> None:
        await self._asynchronous.aclose()


@dataclass
class _CutStream(httpx.SyncByteStream):
    stream: Any
    bytes_: int

    def __iter__(self) -> Iterator[bytes]:
        left = self.bytes_
        for chunk in self.stream:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                raise LostResponse("lost")

    def close(self) -> None:
        self.stream.close()


@dataclass
class _AsyncCutStream(httpx.AsyncByteStream):
    stream: Any
    bytes_: int

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self.bytes_
        async for chunk in self.stream:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                raise LostResponse("lost")

    async def aclose(self) -> None:
        await self.stream.aclose()


class LoseFirst:
    """Matches the first request of each method given."""

    def __init__(self, *methods: str) -> None:
        self._left = set(methods)

    def __call__(self, request: httpx.Request) -> bool:
        if request.method in self._left:
            self._left.remove(request.method)
            return True
        return False
