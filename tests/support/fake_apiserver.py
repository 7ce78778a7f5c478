"""A small Kubernetes API on loopback that keeps objects, history and versions, and fails on demand.

It really stores, really counts resource versions and really streams watches, so tests compare the
world, not calls. Faults are planned with :meth:`FakeApi.inject_fault`,
:meth:`FakeApi.drop_watches`, :meth:`FakeApi.forget_history` and the switches at the top of the
class.
"""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiohttp import web
from support.inmemory_objects import (
    InjectedFault,
    InMemoryObjects,
    Target,
    Watcher,
    bookmark_line,
    status_response,
)

from batholith.kube.client.config import Credentials


class FakeApi(InMemoryObjects):
    """The server; ``async with FakeApi() as api`` listens at ``api.credentials.server``."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_watch_list = True
        """Whether ``sendInitialEvents`` is understood; otherwise answered with 422."""
        self.hang_lists = False
        """Ignore ``sendInitialEvents``, as an old server does."""
        self.lists = asyncio.Event()
        """Clear it to hold back the responses to lists and watch lists."""
        self.lists.set()
        self.break_watch_after: int | None = None
        """Bytes after which the connection of a watch breaks, in the middle of a line."""
        self._hanging_requests = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hanging_requests.set()
        self.lists.set()
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def credentials(self) -> Credentials:
        return Credentials(server=self._url)

    # Watches.

    def drop_watches(self) -> None:
        """Break all connections of watches, as a dying network does."""
        for watcher in self._watchers:
            _abort(watcher.response)
            watcher.lines.put_nowait(None)

    def send_bookmarks(self) -> None:
        for watcher in self._watchers:
            watcher.lines.put_nowait(bookmark_line(self.version))

    def send_line(self, line: bytes) -> None:
        """Send any text to all watches."""
        for watcher in self._watchers:
            watcher.lines.put_nowait(line)

    # HTTP.

    async def _respond(self, request: web.Request, target: Target) -> web.StreamResponse:
        if request.method == "GET" and not target.name:
            if "watch" in request.query:
                return await self._watch(request, target)
            response = self._list(request, target)
            if request.query.get("limit") != "1":
                await self.lists.wait()
            return response
        return await super()._respond(request, target)

    async def _fail(self, request: web.Request, fault: InjectedFault) -> web.Response:
        if fault.action == "hang":
            await self._hanging_requests.wait()
            return web.Response(status=500)
        if isinstance(fault.action, int):
            return await super()._fail(request, fault)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        initial = query.get("sendInitialEvents") == "true"
        if initial and not self.supports_watch_list and not self.hang_lists:
            return status_response(422, "Invalid", "sendInitialEvents is forbidden")
        since = int(query.get("resourceVersion") or 0)
        watcher = Watcher(
            target.prefix, target.namespace, query.get("labelSelector", ""), asyncio.Queue()
        )
        for line in self._backlog(watcher, since):
            watcher.lines.put_nowait(line)
        if initial and not self.hang_lists:
            watcher.lines.put_nowait(bookmark_line(self.version, ends_list=True))
        response = web.StreamResponse()
        watcher.response = response
        self._watchers.append(watcher)
        try:
            await response.prepare(request)
            if initial:
                await self.lists.wait()
            await self._stream(watcher, response)
        except ConnectionError:
            pass  # the client, or drop_watches, closed it
        finally:
            self._watchers.remove(watcher)
        return response

    async def _stream(self, watcher: Watcher, response: web.StreamResponse) -> None:
        while (line := await watcher.lines.get()) is not None:
            while not watcher.lines.empty() and line.count(b"\n") < 50:
                more = watcher.lines.get_nowait()
                if more is None:
                    watcher.lines.put_nowait(None)
                    break
                line += more
            if self.break_watch_after is not None and self.break_watch_after < len(line):
                await response.write(line[: self.break_watch_after])
                self.break_watch_after = None
                await asyncio.sleep(0.01)  # let the piece arrive before the connection dies
                _abort(response)
                return
            await response.write(line)


def _abort(response: web.StreamResponse | None) -> None:
    request = getattr(response, "_req", None)
    if request is not None and request.transport is not None:
        with suppress(OSError):
            request.transport.abort()
