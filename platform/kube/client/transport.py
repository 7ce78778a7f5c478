"""Transport to one API server: sends requests over a connection pool, maps errors, retries.

A *fence* may block writes: it is called before a write waits for a connection, and again once it
has one and nothing but the write itself remains.

Retried are requests throttled by 429 and ``Retry-After`` (they had no effect), and a GET whose
connection broke. Nothing else: a write whose connection broke may have taken effect, and only the
caller can find out.

A request with an :class:`Identity` that replaces the credentials shares the pool of the client, or
has one without TLS client certificate: servers prefer a certificate to a token.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import msgspec

from .. import errors
from ..http import tunnel
from ..http.deadlines import Deadlines
from ..http.http1 import READ_BUFFER_LIMIT, Exchange
from ..http.pool import ConnectionPool
from ..http.request_heads import RequestHeadBuilder
from ..http.route import Origin, Route
from ..metrics import ClientMetrics
from ..timing import Timing
from .auth import (
    CertificateFile,
    CredentialSource,
    StaticCredentials,
    resolve_credentials,
    tls_context,
)
from .config import Credentials
from .flowcontrol import InFlightLimiter, TokenBucketRateLimiter
from .identity import Identity

INITIAL_BACKOFF = 0.1
"""Seconds before the first retry of a GET; doubled each time, with up to 100% jitter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a client."""

    max_connections: int = 0
    """Size of the connection pool, 0 for unlimited. With fewer connections than concurrent requests
    each wait costs more than a connection; limit *max_writes_in_flight* instead."""

    max_writes_in_flight: int = 64
    """Maximum concurrent POST, PUT, PATCH and DELETE requests; 0 for unlimited."""

    keepalive: float = 60.0
    """Seconds after which an idle connection is closed."""

    max_attempts: int = 10
    """Attempts for a request throttled by 429 with Retry-After."""

    max_read_attempts: int = 3
    """Attempts for a GET whose connection breaks."""

    fence: Callable[[], None] | None = None
    """Called before each POST, PUT, PATCH and DELETE is sent; its exception is raised to the
    caller: :class:`NotLeaderError` if the lease may have expired."""

    metrics: ClientMetrics = field(default_factory=ClientMetrics)
    timing: Timing = field(default_factory=Timing)


class ApiRequest(msgspec.Struct, frozen=True):
    """One request: *path* begins with a slash and includes its encoded query."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"
    background: bool = False
    identity: Identity | None = None
    buffer_limit: int = READ_BUFFER_LIMIT
    """Bytes of a streamed response that are buffered while its reader does not read."""
    fence: Callable[[], None] | None = None
    """Called in addition to that of the options."""
    guard: Callable[[], None] | None = None
    """Called like the fence; its exception is raised to the caller."""

    @property
    def path_only(self) -> str:
        """The path without its query, for error messages."""
        return self.path.partition("?")[0]

    @property
    def summary(self) -> str:
        """Method and path, for error messages."""
        return f"{self.method} {self.path_only}"


class ApiResponse(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    body: bytes
    retry_after: str | None
    warnings: tuple[str, ...]
    """Values of the ``Warning`` headers."""


class Transport:
    """Connection pool and shared state of all requests; open it with ``async with``."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str,
        limiter: TokenBucketRateLimiter | None,
        timeout: float,
        options: ClientOptions,
    ) -> None:
        self.options = options
        self.limiter = limiter
        self.credentials = credentials
        self._user_agent = user_agent
        self._timeout = timeout
        self._origin = Origin.parse(credentials.server)
        self._proxy = Origin.parse(credentials.proxy) if credentials.proxy else None
        if self._proxy is not None:
            tunnel.validate_proxy(self._proxy)
        self._server_label = f"(server {self._origin.authority})"
        self._metrics = options.metrics.for_host(self._origin.authority)
        self._in_flight = InFlightLimiter(options.max_writes_in_flight)
        self._pool: ConnectionPool | None = None
        self._pool_without_cert: ConnectionPool | None = None
        """The pool for other identities; the same unless the client has a certificate."""
        self._head_builder = RequestHeadBuilder(prefix="", headers=())
        self._identity_head_builder = self._head_builder
        self._credential_source: CredentialSource = StaticCredentials("")

    async def __aenter__(self) -> Self:
        """Resolve the credentials and open the (still empty) pool."""
        options = self.options
        credentials, self._credential_source = await resolve_credentials(
            self.credentials, options.timing
        )
        tls = None if credentials.unix_socket else tls_context(credentials)
        reload = None
        if tls is not None and credentials.cert_file and not credentials.cert_data:
            reload = CertificateFile(tls, credentials).reload
        route = Route(
            origin=self._origin,
            tls=tls,
            before_connect=reload,
            server_name=credentials.tls_server_name,
            proxy=self._proxy,
            unix_socket=credentials.unix_socket,
        )
        self._head_builder = self._new_head_builder(credentials)
        self._identity_head_builder = self._new_head_builder(replace(credentials, impersonate=()))
        self._deadlines = Deadlines()
        self._pool = self._pool_without_cert = self._new_pool(route)
        if credentials.has_certificate:
            tls = tls_context(credentials.without_certificate())
            route = replace(route, tls=tls, before_connect=None)
            self._pool_without_cert = self._new_pool(route)
        return self

    def _new_pool(self, route: Route) -> ConnectionPool:
        options = self.options
        return ConnectionPool(route, limit=options.max_connections, keepalive=options.keepalive)

    @property
    def impersonates(self) -> bool:
        """Whether the client's own requests impersonate a user."""
        return bool(self.credentials.impersonate)

    def _new_head_builder(self, credentials: Credentials) -> RequestHeadBuilder:
        origin = self._origin
        headers = [
            ("Host", origin.authority),
            ("User-Agent", self._user_agent),
            ("Accept", "application/json"),
            *credentials.impersonate,
        ]
        if self._proxy is None or origin.scheme == "https":
            return RequestHeadBuilder(prefix=origin.path, headers=headers)
        if user := tunnel.proxy_authorization(self._proxy):
            headers.append(("Proxy-Authorization", user))
        return RequestHeadBuilder(prefix=f"http://{origin.authority}{origin.path}", headers=headers)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection; running requests fail."""
        for pool in {self._pool, self._pool_without_cert}:
            if pool is not None:
                await pool.close()
        self._pool = self._pool_without_cert = None
        self._deadlines.close()

    async def send(self, request: ApiRequest) -> bytes:
        """Send one request and return the body of its successful response.

        Raises:
            ApiError, ConnectionLostError: as :meth:`exchange`.
        """
        return (await self.exchange(request)).body

    async def exchange(self, request: ApiRequest) -> ApiResponse:
        """Send one request and return its successful response.

        Raises:
            ApiError: the server rejected the request.
            ConnectionLostError: there was no complete response in time.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                response = await self._send_once(request)
            except errors.ConnectionLostError as error:
                await self._retry_after_disconnect(request, error, attempt)
                continue
            self._metrics.count_response(request.method, str(response.status))
            if response.status < 300:
                return response
            await self._retry_after_throttling(request, response, attempt)

    async def _retry_after_disconnect(
        self, request: ApiRequest, error: errors.ConnectionLostError, attempt: int
    ) -> None:
        """Back off if the request may be retried; else raise. A timeout is not retried."""
        self._metrics.count_response(request.method, "<error>")
        timed_out = isinstance(error, errors.RequestTimeoutError)
        if timed_out or request.method != "GET" or attempt >= self.options.max_read_attempts:
            raise error
        self._metrics.count_retry(request.method, "<error>")
        timing = self.options.timing
        await timing.sleep(INITIAL_BACKOFF * 2 ** (attempt - 1) * (1 + timing.random()))

    async def _retry_after_throttling(
        self, request: ApiRequest, response: ApiResponse, attempt: int
    ) -> None:
        """Wait for Retry-After if the request may be retried; else raise."""
        error = errors.from_response(
            response.status, response.body, retry_after=response.retry_after
        )
        error = self._note_rejected_credentials(request, error)
        if (
            response.status != 429
            or error.retry_after is None
            or attempt >= self.options.max_attempts
        ):
            raise error
        self._metrics.count_retry(request.method, "429")
        await self.options.timing.sleep(error.retry_after)

    def _note_rejected_credentials(
        self, request: ApiRequest, error: errors.ApiError
    ) -> errors.ApiError:
        """Renew the own credentials if the server rejected them; mark the error if others."""
        if error.status != 401:
            return error
        if request.identity is not None and request.identity.replaces_credentials:
            return errors.CallerUnauthorizedError(
                error.message, status=error.status, reason=error.reason, details=error.details
            )
        self._credential_source.invalidate()
        return error

    async def _send_once(self, request: ApiRequest) -> ApiResponse:
        if self.limiter is not None:
            await self._wait_for_rate_limit(self.limiter, request)
        if request.method == "GET":
            return await self._read_response(request)
        await self._in_flight.acquire(background=request.background)
        try:
            self._check_fences(request)
            return await self._read_response(request)
        finally:
            self._in_flight.release()

    def _check_fences(self, request: ApiRequest) -> None:
        """Call the fences and the guard of a write."""
        for check in (self.options.fence, request.fence, request.guard):
            if check is not None:
                check()

    async def _wait_for_rate_limit(
        self, limiter: TokenBucketRateLimiter, request: ApiRequest
    ) -> None:
        waited = await limiter.wait(background=request.background)
        self._metrics.observe_limiter_wait(request.method, waited)

    async def _read_response(self, request: ApiRequest) -> ApiResponse:
        started = time.perf_counter()
        try:
            exchange = await self._exchange(request, timeout=self._timeout)
            return ApiResponse(
                exchange.status, exchange.body(), exchange.retry_after, exchange.warnings
            )
        finally:
            self._metrics.observe_duration(request.method, time.perf_counter() - started)

    async def _exchange(
        self, request: ApiRequest, *, timeout: float | None, streamed: bool = False
    ) -> Exchange:
        """Send a request and wait for its response; of a *streamed* one for the headers."""
        deadlines = self._deadlines
        due = None if timeout is None else deadlines.now() + timeout
        try:
            exchange = await self._start_exchange(request, streamed=streamed, due=due)
            if due is not None:
                deadlines.set(exchange, due)
            try:
                await exchange.response_ready
            except asyncio.CancelledError:
                exchange.abort()
                raise
            finally:
                deadlines.clear(exchange)
        except (TimeoutError, errors.RequestTimeoutError) as error:
            limit = "" if timeout is None else f" within {timeout:g} s"
            text = f"{request.summary}: no response{limit} {self._server_label}"
            raise errors.RequestTimeoutError(text) from error
        except (errors.ConnectionLostError, OSError) as error:
            text = f"{request.summary}: {error} {self._server_label}"
            raise errors.ConnectionLostError(text) from error
        return exchange

    async def _start_exchange(
        self, api_request: ApiRequest, *, streamed: bool, due: float | None
    ) -> Exchange:
        """Send a request on a pooled connection; does not await after the fence.

        Raises:
            TimeoutError: it could not be sent before *due*.
        """
        identity, source = api_request.identity, self._credential_source
        pool, builder, authorization = self._pool, self._head_builder, source.current()
        if identity is not None:
            builder = self._identity_head_builder
        if identity is not None and identity.replaces_credentials:
            pool, authorization = self._pool_without_cert, ""
        if pool is None:
            raise RuntimeError("the client is used outside its `async with` block")
        if authorization is None:
            async with asyncio.timeout_at(due):
                authorization = await source.header()
        request = builder.encode(
            api_request.method,
            api_request.path,
            authorization=authorization,
            body=api_request.body,
            content_type=api_request.content_type,
            more_lines=b"" if identity is None else identity.header_lines,
        )
        connection = pool.idle_connection()
        if connection is None:
            async with asyncio.timeout_at(due):
                connection = await pool.acquire()
        try:
            if api_request.method != "GET":
                self._check_fences(api_request)
        except BaseException:
            pool.release(connection)
            raise
        return connection.send(
            request,
            streamed=streamed,
            bodiless=api_request.method == "HEAD",
            buffer_limit=api_request.buffer_limit,
        )

    @asynccontextmanager
    async def stream(
        self, request: ApiRequest, *, idle_timeout: float | None
    ) -> AsyncIterator[Callable[[], AsyncIterator[bytes]]]:
        """Open a streaming response; the block gets a function that yields its chunks as received.

        Raises RequestTimeoutError after *idle_timeout* seconds without data, never if it is None.

        Raises:
            ApiError, ConnectionLostError: as :meth:`send`, also from the iteration.
        """
        exchange = await self._open_stream(request, idle_timeout)
        try:
            yield lambda: self._body_chunks(exchange, request, idle_timeout)
        finally:
            exchange.abort()

    async def _open_stream(self, request: ApiRequest, idle_timeout: float | None) -> Exchange:
        """Wait for the headers of a successful streaming response."""
        attempt = 0
        while True:
            attempt += 1
            if self.limiter is not None:
                await self._wait_for_rate_limit(self.limiter, request)
            exchange = await self._stream_once(request, idle_timeout)
            self._metrics.count_response(request.method, str(exchange.status))
            if exchange.status < 300:
                return exchange
            try:
                body = [chunk async for chunk in self._body_chunks(exchange, request, idle_timeout)]
            finally:
                exchange.abort()
            response = ApiResponse(
                exchange.status, b"".join(body), exchange.retry_after, exchange.warnings
            )
            await self._retry_after_throttling(request, response, attempt)

    async def _stream_once(self, request: ApiRequest, idle_timeout: float | None) -> Exchange:
        try:
            return await self._exchange(request, timeout=idle_timeout, streamed=True)
        except errors.RequestTimeoutError:
            raise
        except errors.ConnectionLostError:
            self._metrics.count_response(request.method, "<error>")
            raise

    async def _body_chunks(
        self, exchange: Exchange, request: ApiRequest, idle_timeout: float | None
    ) -> AsyncIterator[bytes]:
        """Yield all chunks; the time between two reads does not count as idle."""
        deadlines = self._deadlines
        try:
            while True:
                if idle_timeout is not None:
                    deadlines.set(exchange, deadlines.now() + idle_timeout)
                try:
                    chunk = await exchange.read()
                finally:
                    deadlines.clear(exchange)
                if not chunk:
                    return
                yield chunk
        except errors.RequestTimeoutError as error:
            raise errors.RequestTimeoutError(
                f"{request.path_only}: no data before the idle timeout"
            ) from error
        except errors.ConnectionLostError as error:
            raise errors.ConnectionLostError(f"{request.path_only}: {error}") from error
