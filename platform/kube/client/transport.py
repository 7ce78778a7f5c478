"""One HTTP connection pool to one API server: sends requests, maps failures, retries what may be.

A *fence* may hold writes back: it is asked before a connection is sought for one, and once more
when one is there and nothing but the write itself is left to do.

What may be sent again: anything that the server turned away with 429 and ``Retry-After`` (it has
not been carried out), and a GET whose connection broke. Nothing else: a write whose connection
broke may have taken effect, and only the caller knows how to find out.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import msgspec

from .. import errors
from ..http import tunnel
from ..http.http1 import Exchange
from ..http.pool import Origin, Pool, Route
from ..http.request_heads import Heads
from ..metrics import ClientMetrics
from ..timing import Timing
from .auth import FixedIdentity, Identity, establish, tls_context
from .config import Credentials
from .flowcontrol import InFlight, RateLimiter

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
"""Seconds before a broken GET is sent again; doubled each time, and up to twice that by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Settings of a client that have good defaults."""

    connections: int = 0
    """Upper bound of the connection pool, 0 for none. Below the number of requests under way
    each wait costs more than a connection; bound *writes_in_flight* instead."""

    writes_in_flight: int = 64
    """Upper bound of POST, PUT, PATCH and DELETE under way; 0 for none."""

    keepalive: float = 60.0
    """Seconds after which an idle connection is closed."""

    tries: int = 10
    """How often a request may be sent that the server turns away with 429 and Retry-After."""

    read_tries: int = 3
    """How often a GET may be sent whose connection breaks."""

    fence: Callable[[], None] | None = None
    """Called before each POST, PUT, PATCH and DELETE goes out; what it raises, the caller gets:
    :class:`.errors.NotLeadingError` when somebody else may lead by now."""

    metrics: ClientMetrics = field(default_factory=ClientMetrics)
    timing: Timing = field(default_factory=Timing)


class Call(msgspec.Struct, frozen=True):
    """One request: *path* begins with a slash and carries its query, already encoded."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"
    background: bool = False

    @property
    def place(self) -> str:
        """The path without its query: what an error is about."""
        return self.path.partition("?")[0]


class _Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    retry_after: str | None


class Transport:
    """The pool and everything that all requests share; open it with ``async with``."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str,
        limiter: RateLimiter | None,
        timeout: float,
        options: ClientOptions,
    ) -> None:
        self.options = options
        self.limiter = limiter
        self._credentials = credentials
        self._user_agent = user_agent
        self._timeout = timeout
        self._origin = Origin.parse(credentials.server)
        self._proxy = Origin.parse(credentials.proxy) if credentials.proxy else None
        if self._proxy is not None:
            tunnel.check(self._proxy)
        self._whence = f"(server {self._origin.authority})"
        self._figures = options.metrics.for_host(self._origin.authority)
        self._flow = InFlight(options.writes_in_flight)
        self._pool: Pool | None = None
        self._heads = Heads(prefix="", headers=())
        self._identity: Identity = FixedIdentity("")

    async def __aenter__(self) -> Self:
        """Fetch credentials and open the (still empty) pool."""
        options = self.options
        credentials, self._identity = await establish(self._credentials, options.timing)
        route = Route(
            origin=self._origin,
            tls=tls_context(credentials),
            server_name=credentials.tls_server_name,
            proxy=self._proxy,
        )
        self._heads = self._make_heads(credentials)
        self._pool = Pool(route, limit=options.connections, keepalive=options.keepalive)
        return self

    def _make_heads(self, credentials: Credentials) -> Heads:
        origin = self._origin
        headers = [
            ("Host", origin.authority),
            ("User-Agent", self._user_agent),
            ("Accept", "application/json"),
            *credentials.impersonate,
        ]
        if self._proxy is None or origin.scheme == "https":
            return Heads(prefix=origin.path, headers=headers)
        if user := tunnel.authorization(self._proxy):
            headers.append(("Proxy-Authorization", user))
        return Heads(prefix=f"http://{origin.authority}{origin.path}", headers=headers)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection; running requests fail."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def send(self, call: Call) -> bytes:
        """Send one request and return the body of its good answer.

        Raises:
            ApiError: the server refused.
            ConnectionLostError: there was no complete answer in time.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = await self._once(call)
            except errors.ConnectionLostError as error:
                await self._after_break(call, error, attempt)
                continue
            self._figures.answered(call.method, str(answer.status))
            if answer.status < 300:
                return answer.body
            await self._after_refusal(call, answer, attempt)

    async def _after_break(
        self, call: Call, error: errors.ConnectionLostError, attempt: int
    ) -> None:
        """Wait if the request may be sent again; raise otherwise. A timeout has had its time."""
        self._figures.answered(call.method, "<error>")
        late = isinstance(error, errors.RequestTimeoutError)
        if late or call.method != "GET" or attempt >= self.options.read_tries:
            raise error
        self._figures.sent_again(call.method, "<error>")
        timing = self.options.timing
        await timing.sleep(FIRST_PAUSE * 2 ** (attempt - 1) * (1 + timing.random()))

    async def _after_refusal(self, call: Call, answer: _Answer, attempt: int) -> None:
        """Wait if the request may be sent again; raise otherwise."""
        error = errors.from_answer(answer.status, answer.body, retry_after=answer.retry_after)
        if answer.status == 401:
            self._identity.doubt()
        if answer.status != 429 or error.retry_after is None or attempt >= self.options.tries:
            raise error
        self._figures.sent_again(call.method, "429")
        await self.options.timing.sleep(error.retry_after)

    async def _once(self, call: Call) -> _Answer:
        await self._wait_for_limit(call)
        if call.method == "GET":
            return await self._exchange(call)
        await self._flow.enter(background=call.background)
        try:
            if self.options.fence is not None:
                self.options.fence()
            return await self._exchange(call)
        finally:
            self._flow.leave()

    async def _wait_for_limit(self, call: Call) -> None:
        if self.limiter is not None:
            waited = await self.limiter.take(background=call.background)
            self._figures.waited(call.method, waited)

    async def _exchange(self, call: Call) -> _Answer:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout):
                exchange = await self._ask(call)
                try:
                    await exchange.answered
                except asyncio.CancelledError:
                    exchange.abandon()
                    raise
            return _Answer(exchange.status, exchange.body(), exchange.retry_after)
        except TimeoutError as error:
            text = f"{call.method} {call.place}: no answer in {self._timeout:g} s {self._whence}"
            raise errors.RequestTimeoutError(text) from error
        except (errors.ConnectionLostError, OSError) as error:
            text = f"{call.method} {call.place}: {error} {self._whence}"
            raise errors.ConnectionLostError(text) from error
        finally:
            self._figures.took(call.method, time.perf_counter() - started)

    async def _ask(self, call: Call, *, streamed: bool = False) -> Exchange:
        """Put a request on a connection; nothing is waited for once it is on its way."""
        pool = self._pool
        if pool is None:
            raise RuntimeError("the client is used outside its `async with` block")
        request = self._heads.request(
            call.method,
            call.path,
            authorization=await self._identity.header(),
            body=call.body,
            content_type=call.content_type,
        )
        connection = pool.spare() or await pool.take()
        try:
            if call.method != "GET" and self.options.fence is not None:
                self.options.fence()
        except BaseException:
            pool.give_back(connection)
            raise
        return connection.ask(request, streamed=streamed, headless=call.method == "HEAD")

    @asynccontextmanager
    async def stream(
        self, call: Call, *, inactivity: float
    ) -> AsyncIterator[Callable[[], AsyncIterator[bytes]]]:
        """Open a long answer; the block gets a function that yields its pieces as they come.

        A piece is whatever one read gave; silence of *inactivity* seconds breaks the stream.

        Raises:
            ApiError, ConnectionLostError: as :meth:`send`, also out of the iteration.
        """
        await self._wait_for_limit(call)
        exchange = await self._open(call, inactivity)
        try:
            self._figures.answered(call.method, str(exchange.status))
            if exchange.status >= 300:
                if exchange.status == 401:
                    self._identity.doubt()
                whole = [piece async for piece in _pieces(exchange, call, inactivity)]
                raise errors.from_answer(
                    exchange.status, b"".join(whole), retry_after=exchange.retry_after
                )
            yield lambda: _pieces(exchange, call, inactivity)
        finally:
            exchange.abandon()

    async def _open(self, call: Call, inactivity: float) -> Exchange:
        """Wait for the head of a long answer."""
        try:
            async with asyncio.timeout(inactivity):
                exchange = await self._ask(call, streamed=True)
                try:
                    await exchange.answered
                except asyncio.CancelledError:
                    exchange.abandon()
                    raise
                return exchange
        except TimeoutError as error:
            text = f"{call.place}: silent for {inactivity:g} s {self._whence}"
            raise errors.RequestTimeoutError(text) from error
        except (errors.ConnectionLostError, OSError) as error:
            self._figures.answered(call.method, "<error>")
            raise errors.ConnectionLostError(f"{call.place}: {error} {self._whence}") from error


async def _pieces(exchange: Exchange, call: Call, inactivity: float) -> AsyncIterator[bytes]:
    """Read to the end; our own slowness between two reads is no silence."""
    try:
        while True:
            async with asyncio.timeout(inactivity):
                piece = await exchange.read()
            if not piece:
                return
            yield piece
    except TimeoutError as error:
        raise errors.RequestTimeoutError(f"{call.place}: the stream fell silent") from error
    except errors.ConnectionLostError as error:
        raise errors.ConnectionLostError(f"{call.place}: {error}") from error
