"""Between a client and its API server: proxies whose behaviour a test changes while they run.

`TcpProxy` passes bytes on and understands none of them: it can drop, hang, and be slow, as cables
and firewalls are. `HttpProxy` ends TLS itself and sees each request: it can respond
instead of the server, drop a response, and delay requests or responses until the test releases
them.
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

import aiohttp
import msgspec
from aiohttp import web
from support.aiohttp_servers import stop_server

from batholith.machinery.serving_certificate import KeyPairFiles

HOST = "127.0.0.1"
_CHUNK_SIZE = 2**16
_HOP_BY_HOP_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
)
"""Headers that are between neighbours."""


class TcpProxy:
    """Passes bytes on between clients and one port of this machine; an async context manager."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._delay = 0.0
        self._dropping = False
        self._requests = asyncio.Event()
        self._responses = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.resume()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.drop()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Where clients go; the server's certificate is good for it, too."""
        return f"https://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def resume(self) -> None:
        """Pass everything on, and what was held back first."""
        self._dropping = False
        self._delay = 0.0
        self._requests.set()
        self._responses.set()

    def drop(self) -> None:
        """Break all connections and each new one, until `resume`."""
        self._dropping = True
        for writer in self._writers:
            writer.transport.abort()

    def hang(self, *, requests: bool = True, responses: bool = True) -> None:
        """Pass nothing on in these directions, until `resume`; connections stay."""
        if requests:
            self._requests.clear()
        if responses:
            self._responses.clear()

    def delay(self, seconds: float) -> None:
        """Hold each piece of data back for so long, until `resume`."""
        self._delay = seconds

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        try:
            # A connection that breaks on one side is aborted on the other, too; only
            # the end of the proxy cancels this.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._serving.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._dropping:
            return
        back, forth = await asyncio.open_connection(HOST, self._target)
        self._writers.add(forth)
        pumps = [
            asyncio.create_task(self._copy(reader, forth, self._requests)),
            asyncio.create_task(self._copy(back, writer, self._responses)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            forth.transport.abort()
            self._writers.discard(forth)

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, open_: asyncio.Event
    ) -> None:
        while piece := await source.read(_CHUNK_SIZE):
            if self._delay:
                await asyncio.sleep(self._delay)
            await open_.wait()
            sink.write(piece)
            await sink.drain()
        await open_.wait()


class FaultKind(Enum):
    """What becomes of a request besides being passed on."""

    DROP_REQUEST = "the connection breaks before the server gets it"
    DROP_RESPONSE = "the server executes it, and the connection breaks before the response"


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """A response of the proxy; the server never sees the request."""

    status: int
    reason: str
    retry_after: int | None = None


ERROR_RESPONSES = (
    ErrorResponse(500, "InternalError"),
    ErrorResponse(429, "TooManyRequests"),
    ErrorResponse(429, "TooManyRequests", retry_after=1),
    ErrorResponse(409, "Conflict"),
)
"""Error responses that any request may get."""

FaultPolicy = Callable[[str, str], ErrorResponse | FaultKind | None]
"""From method and path (with query) to what becomes of the request; None: it is passed on."""


def random_faults(probability: float, *, seed: int) -> FaultPolicy:
    """Inject faults into a fraction of all requests: errors, 410 for reads, lost responses."""
    chance = random.Random(seed)

    def choose_fault(method: str, path: str) -> ErrorResponse | FaultKind | None:
        if chance.random() >= probability:
            return None
        if method == "GET":
            return chance.choice(
                (*ERROR_RESPONSES, ErrorResponse(410, "Expired"), FaultKind.DROP_RESPONSE)
            )
        return chance.choice((*ERROR_RESPONSES, FaultKind.DROP_REQUEST, FaultKind.DROP_RESPONSE))

    return choose_fault


class HttpProxy:
    """Passes requests on to one API server; an async context manager.

    A request that was read is forwarded even if its client has disconnected: that is how a write
    can arrive long after its sender gave it up.
    """

    def __init__(self, server: str, *, ca: bytes, own: KeyPairFiles) -> None:
        self.fault_policy: FaultPolicy = lambda method, path: None
        self.faults_injected = 0
        """Requests that were not simply passed on."""
        self.held = 0
        """Requests that wait to be passed on."""
        self._server = server
        self._ca = ssl.create_default_context(cadata=ca.decode())
        self._own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._own.load_cert_chain(own.certificate, own.key)
        self._requests = asyncio.Event()
        self._responses = asyncio.Event()
        self.release()

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._ca, limit=0)
        never = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=never,
            # What the client did not ask for, such as compression, is not asked for here.
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            auto_decompress=False,
            read_bufsize=2**20,
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0, ssl_context=self._own)
        await site.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        await self._session.close()
        await stop_server(self._runner)

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"https://{HOST}:{self._runner.addresses[0][1]}"

    def hold(self, *, requests: bool = False, responses: bool = False) -> None:
        """Keep these back until `release`."""
        if requests:
            self._requests.clear()
        if responses:
            self._responses.clear()

    def release(self) -> None:
        """Pass on what was kept back, and hold nothing any more."""
        self._requests.set()
        self._responses.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fault = self.fault_policy(request.method, request.path_qs)
        self.faults_injected += fault is not None
        if isinstance(fault, ErrorResponse):
            return _error_response(fault)
        if fault is FaultKind.DROP_REQUEST:
            return _abort_connection(request)
        body = await request.read() if request.body_exists else None
        self.held += 1
        try:
            await self._requests.wait()
        finally:
            self.held -= 1
        try:
            async with self._send(request, body) as response:
                if fault is FaultKind.DROP_RESPONSE:
                    await response.content.readany()
                    return _abort_connection(request)
                return await self._forward_response(request, response)
        except (aiohttp.ClientError, OSError):
            return _abort_connection(request)

    @contextlib.asynccontextmanager
    async def _send(
        self, request: web.Request, body: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {
            key: value
            for key, value in request.headers.items()
            if key.lower() not in _HOP_BY_HOP_HEADERS
        }
        url = self._server + request.raw_path
        async with self._session.request(
            request.method, url, data=body, headers=headers, allow_redirects=False
        ) as response:
            yield response

    async def _forward_response(
        self, request: web.Request, response: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        headers = {
            key: value
            for key, value in response.headers.items()
            if key.lower() not in _HOP_BY_HOP_HEADERS
        }
        passed = web.StreamResponse(status=response.status, headers=headers)
        await self._responses.wait()
        await passed.prepare(request)
        while piece := await response.content.readany():
            await self._responses.wait()
            await passed.write(piece)
        await passed.write_eof()
        return passed


def _error_response(fault: ErrorResponse) -> web.Response:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"injected by the test: {fault.reason}",
        "reason": fault.reason,
        "code": fault.status,
    }
    retry = {"Retry-After": str(fault.retry_after)} if fault.retry_after else {}
    return web.Response(
        status=fault.status,
        body=msgspec.json.encode(status),
        content_type="application/json",
        headers=retry,
    )


def _abort_connection(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
