"""Faults of the API server, injected between its connections and its handlers.

A request passes the faults in the order in which they were added, until one of them responds or
closes the connection.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress

from ..local.apiserver.errors.status import StatusError
from ..local.apiserver.http.connections import (
    AbortHandlerError,
    HttpRequest,
    HttpResponse,
    RequestHandler,
)
from .changes import Signal
from .requests import RecordedRequest, RequestMatcher
from .watches import WatchStream

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
MESSAGE = "injected fault"

_Next = Callable[[], Awaitable[HttpResponse]]
_Action = Callable[[_Next], Awaitable[HttpResponse]]


class Fault:
    """A fault that waits for requests."""

    def __init__(self, matcher: RequestMatcher, action: _Action) -> None:
        self.matcher = matcher
        self.injected = 0
        """Requests that it was applied to."""

        self._action = action
        self._matched = 0
        self._removed = False

    @property
    def pending(self) -> bool:
        """Whether it may still be applied."""
        count = self.matcher.count
        return not self._removed and (count is None or self.injected < count)

    def remove(self) -> None:
        """Apply it to no further request."""
        self._removed = True

    def takes(self, request: RecordedRequest) -> bool:
        """Whether the fault applies to *request*; it is counted then."""
        if not self.pending or not self.matcher.matches(request):
            return False
        self._matched += 1
        if self._matched < self.matcher.nth:
            return False
        self.injected += 1
        return True

    async def handle(self, following: _Next) -> HttpResponse:
        """Handle a request that it takes; *following* is the rest of the chain."""
        return await self._action(following)


class HeldRequests(Fault):
    """Requests that reach the server and wait there, before or after they are carried out."""

    def __init__(self, matcher: RequestMatcher, *, carry_out: bool = False) -> None:
        super().__init__(matcher, self._hold_response if carry_out else self._hold)
        self.held = 0
        """Requests that wait now."""

        self._signal = Signal()
        self._released = asyncio.Event()
        self._lost = False

    async def wait_held(self, count: int = 1) -> None:
        """Wait until *count* requests are held."""
        await self._signal.wait_until(lambda: self.held >= count)

    def release(self) -> None:
        """Let the requests go on, and hold no more."""
        self.remove()
        self._released.set()

    def lose(self) -> None:
        """Close the connections of the held requests; what waits to be carried out is not."""
        self._lost = True
        self.release()

    async def _hold(self, following: _Next) -> HttpResponse:
        await self._wait_released()
        return await following()

    async def _hold_response(self, following: _Next) -> HttpResponse:
        reply = await following()
        if reply.stream is None:
            await self._wait_released()
            return reply
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(aclosing(reply.stream))
            first = await anext(stream, b"")  # the initial state of a watch
            await self._wait_released()
            stack.pop_all()
        reply.stream = _prepended(first, stream)
        return reply

    async def _wait_released(self) -> None:
        self.held += 1
        self._signal.notify()
        try:
            await self._released.wait()
        finally:
            self.held -= 1
        if self._lost:
            raise AbortHandlerError


async def _prepended(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


class FaultInjector:
    """Plans faults, and records requests and watches."""

    def __init__(self, signal: Signal) -> None:
        self.requests: list[RecordedRequest] = []
        """Every request, in the order of arrival."""

        self.watches: list[WatchStream] = []
        """The watches that are open."""

        self._signal = signal
        self._faults: list[Fault] = []
        self._cleared = asyncio.Event()

    def error(
        self,
        matcher: RequestMatcher,
        status: int = 500,
        *,
        reason: str = "",
        message: str = MESSAGE,
        retry_after: int | None = None,
    ) -> Fault:
        """Refuse requests with a ``Status``; *reason* follows from *status* if it is empty."""
        error = StatusError(status, reason or _REASONS.get(status, "Unknown"), message)
        headers = b"content-type: application/json\r\n"
        if retry_after is not None:
            headers += b"retry-after: %d\r\n" % retry_after

        async def refuse(following: _Next) -> HttpResponse:
            return HttpResponse(status, headers, error.body() + b"\n")

        return self._add(Fault(matcher, refuse))

    def delay(self, matcher: RequestMatcher, seconds: float) -> Fault:
        """Carry requests out after *seconds*."""

        async def wait(following: _Next) -> HttpResponse:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._cleared.wait()
            return await following()

        return self._add(Fault(matcher, wait))

    def lose_request(self, matcher: RequestMatcher) -> Fault:
        """Close the connection instead of carrying requests out."""

        async def lose(following: _Next) -> HttpResponse:
            raise AbortHandlerError

        return self._add(Fault(matcher, lose))

    def lose_response(self, matcher: RequestMatcher) -> Fault:
        """Carry requests out, and close the connection before the response."""

        async def lose(following: _Next) -> HttpResponse:
            reply = await following()
            if reply.stream is not None:
                await reply.stream.aclose()
            raise AbortHandlerError

        return self._add(Fault(matcher, lose))

    def hold(self, matcher: RequestMatcher) -> HeldRequests:
        """Hold requests until they are released."""
        held = HeldRequests(matcher)
        self._add(held)
        return held

    def hold_response(self, matcher: RequestMatcher) -> HeldRequests:
        """Carry requests out, and hold their responses until they are released.

        A watch is carried out up to its initial events.
        """
        held = HeldRequests(matcher, carry_out=True)
        self._add(held)
        return held

    def reject_watch_lists(self) -> Fault:
        """Reject ``sendInitialEvents``, as a server without watch lists does; remove to accept."""
        matcher = RequestMatcher("watch", where=_is_watch_list, count=None)
        message = "sendInitialEvents is forbidden for watch"
        return self.error(matcher, 422, message=message)

    def clear(self) -> None:
        """Remove all faults, release held and delayed requests, resume stalled watches."""
        self._cleared.set()
        self._cleared = asyncio.Event()
        faults, self._faults = self._faults, []
        for fault in faults:
            fault.remove()
            if isinstance(fault, HeldRequests):
                fault.release()
        for stream in self.watches:
            stream.resume()

    def wrap(self, handler: RequestHandler) -> RequestHandler:
        """Return *handler* with faults in front of it."""

        async def handle(received: HttpRequest) -> HttpResponse:
            request = RecordedRequest.parse(received)
            self.requests.append(request)
            self._signal.notify()
            reply = await self._chain(iter(tuple(self._faults)), request, lambda: handler(received))
            if request.verb == "watch" and request.method == "GET" and reply.stream is not None:
                stream = WatchStream(request, reply.stream)
                self.watches.append(stream)
                self._signal.notify()
                reply.stream = stream.pieces(self._forget)
            return reply

        return handle

    async def _chain(
        self, faults: Iterator[Fault], request: RecordedRequest, handler: _Next
    ) -> HttpResponse:
        for fault in faults:
            if fault.takes(request):
                return await fault.handle(lambda: self._chain(faults, request, handler))
        return await handler()

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def _forget(self, stream: WatchStream) -> None:
        self.watches.remove(stream)
        self._signal.notify()


def _is_watch_list(request: RecordedRequest) -> bool:
    return request.query.get("sendInitialEvents") == "true"
