"""An API server in the test's event loop, without sockets, so that nothing depends on real time.

Each request yields to other tasks at two points, before it takes effect and before its response is
delivered; a controller can be killed at either. Watches of a kind can be held back.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web
from support.inmemory_objects import InMemoryObjects, Object, Watcher, bookmark_line, parse_path

from batholith.kube.client.client import Client, ClientOptions, Lines
from batholith.kube.client.config import Credentials
from batholith.kube.errors import ConnectionLostError, from_response
from batholith.kube.timing import Timing
from batholith.machinery.testing import FakeClock
from batholith.model import times
from batholith.model.names import PODS, Resource

ChangeCallback = Callable[[str, str, Object, Object | None], None]
"""Called with (collection, ADDED/MODIFIED/DELETED, new object, old object)."""
QUOTA_EXCEEDED = "exceeded quota"
"""Message of an exceeded quota."""


def key_of(name: str) -> str:
    """*name* with its namespace, which is d if it has none."""
    return name if "/" in name else f"d/{name}"


class _Request:
    """What the server reads of a request."""

    def __init__(self, method: str, path: str, body: bytes | None, content_type: str) -> None:
        url = urlsplit(path)
        self.method, self.path = method, url.path
        self.query = dict(parse_qsl(url.query))
        self.headers = {"Content-Type": content_type}
        self._body = body or b""

    async def read(self) -> bytes:
        return self._body


class InMemoryApi(InMemoryObjects):
    """The server; bound pods are deleted in two steps, and specs have generations."""

    def __init__(self, clock: FakeClock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.clock = clock
        self._loop = loop
        self.on_change: ChangeCallback | None = None
        self.requesting_client = ""
        """Name of the client whose request is being carried out; empty for the test itself."""
        self.requests = 0
        """Of clients, without watches."""
        self.response_lag = 1
        """Loop iterations until a response arrives; watch events may be faster."""
        self.full_namespaces: set[str] = set()
        """Namespaces whose quota takes no more pods."""
        self._serial = 0
        self._held_watches: dict[str, asyncio.Future[bool]] = {}
        """Watches held back, by collection: whether they go on from there."""

    # What a client does.

    async def serve(self, client: "InMemoryClient", request: _Request) -> bytes:
        """Handle one request."""
        self.requests += 1
        await asyncio.sleep(0)
        if client.killed:
            raise ConnectionLostError("dead")
        if request.method == "POST" and parse_path(request.path).prefix == PODS.path():
            self._check_quota(parse_path(request.path).namespace)
        self.requesting_client = client.name
        try:
            response = cast("web.Response", await self._handle(cast("web.Request", request)))
        finally:
            self.requesting_client = ""
        for _ in range(self.response_lag):
            await asyncio.sleep(0)
        if client.killed:
            raise ConnectionLostError("dead")
        body = response.body
        assert isinstance(body, bytes)
        if response.status >= 300:
            raise from_response(response.status, body)
        return body

    def _check_quota(self, namespace: str) -> None:
        if namespace in self.full_namespaces:
            refusal = {
                "kind": "Status",
                "code": 403,
                "message": QUOTA_EXCEEDED,
                "reason": "Forbidden",
            }
            raise from_response(403, json.dumps(refusal).encode())

    async def _fail(self, request: web.Request, fault: Any) -> web.Response:
        if fault.action == "lost":
            await self._handle(request)
        if fault.action in ("hang", "done, hang"):
            if fault.action != "hang":
                await self._handle(request)
            await self._loop.create_future()
        if isinstance(fault.action, str) and fault.action.startswith("done"):
            done = cast("web.Response", await self._handle(request))
            if done.status >= 300:
                return done
            raise from_response(int(fault.action.partition(" ")[2]), b"as planned")
        if isinstance(fault.action, str):
            raise ConnectionLostError("as planned")
        return await super()._fail(request, fault)

    @asynccontextmanager
    async def watch(
        self, client: "InMemoryClient", path: str
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """Serve a watch."""
        await asyncio.sleep(0)
        if client.killed:
            raise ConnectionLostError("dead")
        request = _Request("GET", path, None, "")
        faults = self._injected_faults
        error = next((one for one in faults if one.times and one.match(request)), None)  # type: ignore[arg-type]
        if error is not None:
            error.times -= 1
            if isinstance(error.action, int):
                raise from_response(error.action, b"as planned")
            raise ConnectionLostError("as planned")
        target, query = parse_path(request.path), request.query
        selector = query.get("labelSelector", "")
        watcher = Watcher(target.prefix, target.namespace, selector, asyncio.Queue())
        for line in self._backlog(watcher, int(query.get("resourceVersion") or 0)):
            watcher.lines.put_nowait(line)
        if query.get("sendInitialEvents"):
            watcher.lines.put_nowait(bookmark_line(self.version, ends_list=True))
        self._watchers.append(watcher)
        try:
            yield self._lines(watcher)
        finally:
            self._watchers.remove(watcher)

    async def _lines(self, watcher: Watcher) -> AsyncIterator[Lines]:
        while (line := await watcher.lines.get()) is not None:
            if (
                watcher.prefix in self._held_watches
                and not await self._held_watches[watcher.prefix]
            ):
                return
            yield [line]

    # Fault injection.

    def hold_watches(self, resource: Resource) -> None:
        """Hold back events of watches of *resource* until :meth:`unlock`."""
        path = resource.path()
        if path not in self._held_watches:
            self._held_watches[path] = self._loop.create_future()

    def release_watches(self) -> None:
        """Let all watches go on."""
        self._release(True)

    def break_watches(self) -> None:
        """Break all watches and drop their undelivered events: informers must relist."""
        self.forget_history()
        self.end_watches()
        self._release(False)

    def _release(self, deliver: bool) -> None:
        for flow in self._held_watches.values():
            flow.set_result(deliver)
        self._held_watches.clear()

    def clear_faults(self) -> None:
        """Take back all planned faults."""
        self._injected_faults.clear()

    # What the server keeps.

    def now(self) -> str:
        """The time as objects have it."""
        return times.format(self.clock.now())

    def request_delete(self, resource: Resource, name: str) -> None:
        """Delete an object as a client would; without a namespace in *name* it is d."""
        self._delete(resource.path(), key_of(name))

    def force_delete(self, resource: Resource, name: str) -> None:
        """Remove an object at once, finalizers ignored; *name* as above."""
        self.delete_stored(resource.path(), key_of(name))

    def delete_stored(self, prefix: str, key: str) -> None:
        """Remove what is stored under *key* of *prefix* at once."""
        super()._delete(prefix, key)

    def _store(self, prefix: str, key: str, obj: Object) -> Object:
        old = self.stores.setdefault(prefix, {}).get(key)
        meta = dict(obj["metadata"])
        if old is None:
            self._serial += 1
            meta.setdefault("uid", f"uid-{self._serial}")
            meta.setdefault("creationTimestamp", self.now())
            meta["generation"] = 1
        elif old.get("spec") != obj.get("spec"):
            meta["generation"] = old["metadata"]["generation"] + 1
        return super()._store(prefix, key, {**obj, "metadata": meta})

    def _delete(self, prefix: str, key: str) -> Object:
        obj = self.stores[prefix][key]
        if not self._deletes_gracefully(prefix, obj):
            return super()._delete(prefix, key)
        if "deletionTimestamp" in obj["metadata"]:
            return obj
        when = times.format(self.clock.now() + timedelta(seconds=30))
        return self._store(
            prefix, key, {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": when}}
        )

    def _deletes_gracefully(self, prefix: str, obj: Object) -> bool:
        """Whether *obj* stays for a while when it is deleted."""
        if prefix == PODS.path():
            ended = obj.get("status", {}).get("phase") in ("Succeeded", "Failed")
            return bool(obj.get("spec", {}).get("nodeName")) and not ended
        body = (self.requesting_client and self.received[-1].body) or {}
        return bool(body.get("propagationPolicy") == "Foreground")

    def _broadcast(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        super()._broadcast(prefix, change, new, old)
        if self.on_change is not None:
            self.on_change(prefix, change, new, old)


class InMemoryClient(Client):
    """A client of a :class:`InMemoryApi`; it needs not be opened."""

    def __init__(self, api: InMemoryApi, name: str) -> None:
        clock = api.clock
        timing = Timing(
            monotonic=clock.monotonic, sleep=clock.sleep, random=lambda: 0.5, now=clock.now
        )
        nowhere = Credentials(server="http://nowhere.invalid")
        super().__init__(nowhere, user_agent=name, options=ClientOptions(timing=timing))
        self.name = name
        self.killed = False
        """Its process has been killed: nothing that it asks takes effect any more."""
        self._api = api

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        guard: Callable[[], None] | None = None,
    ) -> bytes:
        if guard is not None:
            guard()
        return await self._api.serve(self, _Request(method, path, body, content_type))

    @asynccontextmanager
    async def watch_lines(
        self, path: str, *, idle_timeout: float = 0.0, buffer_limit: int = 0
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """Open the watch at *path*."""
        async with self._api.watch(self, path) as lines:
            yield lines
