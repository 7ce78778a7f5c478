"""One HTTP connection pool to one API server: sends requests, maps failures, retries what may be.

A *fence* may hold writes back: it is asked before a connection is sought for one, and once more
when one is there and nothing but the write itself is left to do.

What may be sent again: anything that the server turned away with 429 and ``Retry-After`` (it has
not been carried out), and a GET whose connection broke. Nothing else: a write whose connection
broke may have taken effect, and only the caller knows how to find out.
"""

import asyncio
import io
import logging
import time
from asyncio import selector_events
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
import yarl
from aiohttp.abc import AbstractStreamWriter

from . import errors
from .auth import FixedIdentity, Identity, establish, tls_context
from .config import Credentials
from .flow import InFlight, RateLimiter
from .metrics import ClientMetrics
from .timing import Timing

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
"""Seconds before a broken GET is sent again; doubled each time, and up to twice that by chance."""

_READ_SIZE = 64 * 1024
_NEVER = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


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


@dataclass(frozen=True, slots=True)
class Call:
    """One request: *path* begins with a slash and carries its query, already encoded."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"
    background: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
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
        self._figures = options.metrics.for_host(yarl.URL(credentials.server).authority)
        self._flow = InFlight(options.writes_in_flight)
        self._session: aiohttp.ClientSession | None = None
        self._identity: Identity = FixedIdentity("")
        self._extra: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Fetch credentials and open the (still empty) pool."""
        options = self.options
        credentials, self._identity = await establish(self._credentials, options.timing)
        _cap_receive_buffer()
        tls = tls_context(credentials)
        headers = [("User-Agent", self._user_agent), ("Accept", "application/json")]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=options.connections,
                keepalive_timeout=options.keepalive,
                ssl=True if tls is None else tls,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers + list(credentials.impersonate),
            skip_auto_headers=("Accept-Encoding",),
            auto_decompress=False,
            timeout=_NEVER,
            requote_redirect_url=False,
            read_bufsize=_READ_SIZE,
        )
        # aiohttp would send PUT and DELETE again by itself when a connection breaks. A second
        # delete may hit a namesake made in between. (Private, but a test holds it.)
        self._session._retry_connection = False
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection; running requests fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None

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
        async with self._flow.place(background=call.background):
            if self.options.fence is not None:
                self.options.fence()
            return await self._exchange(call)

    async def _wait_for_limit(self, call: Call) -> None:
        if self.limiter is not None:
            waited = await self.limiter.take(background=call.background)
            self._figures.waited(call.method, waited)

    async def _exchange(self, call: Call) -> _Answer:
        started = time.perf_counter()
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._request(call, await self._headers(call), _NEVER) as response,
            ):
                body = await response.read()
                return _Answer(response.status, body, response.headers.get("Retry-After"))
        except TimeoutError as error:
            text = f"{call.method} {call.path}: no answer in {self._timeout:g} s"
            raise errors.RequestTimeoutError(text) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error.__cause__, errors.NotLeadingError):
                raise error.__cause__ from None
            raise errors.ConnectionLostError(f"{call.method} {call.path}: {error}") from error
        finally:
            self._figures.took(call.method, time.perf_counter() - started)

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
        silence = aiohttp.ClientTimeout(total=None, sock_connect=inactivity, sock_read=inactivity)
        try:
            async with self._request(call, await self._headers(call), silence) as response:
                self._figures.answered(call.method, str(response.status))
                if response.status >= 300:
                    if response.status == 401:
                        self._identity.doubt()
                    raise errors.from_answer(
                        response.status,
                        await response.read(),
                        retry_after=response.headers.get("Retry-After"),
                    )
                yield lambda: _pieces(response, call)
                response.close()  # the rest is not wanted: don't drain it for the pool
        except TimeoutError as error:
            text = f"{call.path}: silent for {inactivity:g} s"
            raise errors.RequestTimeoutError(text) from error
        except (aiohttp.ClientError, OSError) as error:
            self._figures.answered(call.method, "<error>")
            raise errors.ConnectionLostError(f"{call.path}: {error}") from error

    async def _headers(self, call: Call) -> dict[str, str]:
        headers: dict[str, str] = {}
        authorization = await self._identity.header()
        if authorization:
            headers["Authorization"] = authorization
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        return headers

    def _request(
        self, call: Call, headers: dict[str, str], timeout: aiohttp.ClientTimeout
    ) -> "aiohttp.client._RequestContextManager":
        if self._session is None:
            raise RuntimeError("the client is used outside its `async with` block")
        credentials = self._credentials
        return self._session.request(
            call.method,
            yarl.URL(credentials.server + call.path, encoded=True),
            data=_payload(call.body, self.options.fence),
            headers=headers,
            timeout=timeout,
            proxy=credentials.proxy or None,
            server_hostname=credentials.tls_server_name or None,
            allow_redirects=False,
        )


class _Fenced:
    """Asks the fence when there is a connection; headers are still held back for the body."""

    fence: Callable[[], None]

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        self.fence()
        await super().write_with_length(writer, content_length)  # type: ignore[misc]


class _FencedBytes(_Fenced, aiohttp.BytesPayload):
    pass


class _FencedStream(_Fenced, aiohttp.BytesIOPayload):
    pass


def _payload(
    body: bytes | None, fence: Callable[[], None] | None
) -> bytes | io.BytesIO | aiohttp.Payload | None:
    """Long bodies as a stream, so that writing them does not hold up the loop."""
    if body is None:
        return None
    long = len(body) > _READ_SIZE
    if fence is None:
        return io.BytesIO(body) if long else body
    fenced = _FencedStream(io.BytesIO(body)) if long else _FencedBytes(body)
    fenced.fence = fence
    return fenced


async def _pieces(response: aiohttp.ClientResponse, call: Call) -> AsyncIterator[bytes]:
    try:
        while piece := await response.content.readany():
            yield piece
    except TimeoutError as error:
        raise errors.RequestTimeoutError(f"{call.path}: the stream fell silent") from error
    except (aiohttp.ClientError, OSError) as error:
        raise errors.ConnectionLostError(f"{call.path}: {error}") from error


def _cap_receive_buffer() -> None:
    """Keep asyncio from allocating 256 KiB for each read, a third of a small request's cost.

    The attribute is private, so its absence is no error; uvloop does not have the problem.
    """
    transport = getattr(selector_events, "_SelectorSocketTransport", None)
    if getattr(transport, "max_size", 0) > _READ_SIZE:
        transport.max_size = _READ_SIZE  # type: ignore[union-attr]
