"""A small Kubernetes API on loopback that keeps objects, history and versions, and fails on demand.

It really stores, really counts resource versions and really streams watches, so tests compare the
world, not calls. Faults are planned with :meth:`FakeApi.inject_fault`,
:meth:`FakeApi.drop_watches`, :meth:`FakeApi.forget_history` and the switches at the top of the
class.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from batholith.apiserver.kinds.strategic_merge import PatchError
from batholith.apiserver.verbs.patches import json_patch
from batholith.kube.client.config import Credentials
from batholith.model.names import Resource

Object = dict[str, Any]


@dataclass
class ReceivedRequest:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass
class InjectedFault:
    """What becomes of the next *times* requests that *match*: a status, ``drop`` or ``hang``."""

    match: Callable[[web.Request], bool]
    action: int | str
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class _Watcher:
    prefix: str
    namespace: str
    selector: str
    lines: asyncio.Queue[bytes | None]
    response: web.StreamResponse | None = None


@dataclass(frozen=True)
class _Target:
    """A parsed path: which collection, and what in it."""

    prefix: str
    namespace: str
    name: str
    subresource: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class FakeApi:
    """The server; ``async with FakeApi() as api`` listens at ``api.credentials.server``."""

    def __init__(self) -> None:
        self.supports_watch_list = True
        """Whether ``sendInitialEvents`` is understood; otherwise answered with 422."""
        self.hang_lists = False
        """An old server: ignores ``sendInitialEvents`` and never ends the list."""
        self.reports_oldest_version = True
        """Whether the 410 of a watch names the oldest available version."""
        self.lists = asyncio.Event()
        """Clear it to hold back the responses to lists, of either form."""
        self.lists.set()
        self.break_watch_after: int | None = None
        """Break the connection of a watch after this number of further bytes, within a line."""
        self.received: list[ReceivedRequest] = []
        self.version = 100
        self.stores: dict[str, dict[str, Object]] = {}
        self.history: list[tuple[int, str, str, Object, Object | None]] = []
        """(version, collection, change, object now, object before)."""
        self.states: list[tuple[str, str, Object]] = []
        """Every (collection, change, object) there ever was; not forgotten with the history."""
        self._oldest_version = 0
        self._injected_faults: list[InjectedFault] = []
        self._watchers: list[_Watcher] = []
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

    # The world, as the test changes and reads it.

    def objects(self, resource: Resource) -> dict[str, Object]:
        return self.stores.setdefault(resource.path(), {})

    def put(self, resource: Resource, name: str, *, namespace: str = "d", **fields: Any) -> Object:
        """Create or update an object; *fields* are merged into it."""
        prefix = resource.path()
        key = f"{namespace}/{name}" if resource.namespaced else name
        space = {"namespace": namespace} if resource.namespaced else {}
        base = self.objects(resource).get(key) or {"metadata": {"name": name, **space}}
        return self._store(prefix, key, _merged(base, fields))

    def remove(self, resource: Resource, name: str, *, namespace: str = "d") -> None:
        self._delete(resource.path(), f"{namespace}/{name}" if resource.namespaced else name)

    def delete_if_present(self, resource: Resource, name: str) -> bool:
        """Remove an object of namespace d if it is there; whether it was."""
        there = f"d/{name}" in self.objects(resource)
        if there:
            self.remove(resource, name)
        return there

    def inject_fault(
        self,
        action: int | str,
        *,
        times: int = 1,
        watch: bool | None = None,
        writes: bool = False,
        method: str = "",
        path: str = "",
        **headers: str,
    ) -> None:
        """Plan a fault for the next requests.

        *watch* narrows it to watches or to the rest, *writes* to what is not a GET, *method* to one
        of these, *path* to paths with this in it.
        """

        def match(request: web.Request) -> bool:
            if writes and request.method == "GET":
                return False
            fits = watch is None or watch == ("watch" in request.query)
            return fits and method in ("", request.method) and path in request.path

        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._injected_faults.append(InjectedFault(match, action, times, named))

    def drop_watches(self) -> None:
        """Break all connections of watches, as a dying network does."""
        for watcher in self._watchers:
            _abort(watcher.response)
            watcher.lines.put_nowait(None)

    def end_watches(self) -> None:
        """End all watches cleanly, as a server does at their time limit."""
        for watcher in self._watchers:
            watcher.lines.put_nowait(None)

    def forget_history(self) -> None:
        """Expire every version before now."""
        self._oldest_version = self.version
        self.history.clear()

    def send_bookmarks(self) -> None:
        for watcher in self._watchers:
            watcher.lines.put_nowait(_bookmark_line(self.version))

    def send_line(self, line: bytes) -> None:
        """Send any text to all watches."""
        for watcher in self._watchers:
            watcher.lines.put_nowait(line)

    @property
    def watches(self) -> int:
        return len(self._watchers)

    def count(self, method: str, *, watch: bool = False) -> int:
        return sum(
            seen.method == method and ("watch" in seen.query) == watch for seen in self.received
        )

    # Storage.

    def _store(self, prefix: str, key: str, obj: Object) -> Object:
        old = self.stores.setdefault(prefix, {}).get(key)
        self.version += 1
        meta = {**obj["metadata"], "resourceVersion": str(self.version)}
        meta.setdefault("uid", str(uuid.uuid4()))
        new = {**obj, "metadata": meta}
        self.stores[prefix][key] = new
        self._broadcast(prefix, "MODIFIED" if old else "ADDED", new, old)
        return new

    def _delete(self, prefix: str, key: str) -> Object:
        old = self.stores[prefix].pop(key)
        self.version += 1
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._broadcast(prefix, "DELETED", last, old)
        return last

    def _broadcast(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        entry = (self.version, prefix, change, new, old)
        self.history.append(entry)
        self.states.append((prefix, change, new))
        for watcher in self._watchers:
            if line := _event_for(watcher, entry):
                watcher.lines.put_nowait(line)

    # HTTP.

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.received.append(
            ReceivedRequest(
                request.method,
                request.path,
                dict(request.query),
                json.loads(raw) if raw else None,
                dict(request.headers),
            )
        )
        error = next(
            (one for one in self._injected_faults if one.times and one.match(request)), None
        )
        if error is not None:
            error.times -= 1
            return await self._fail(request, error)
        target = _parse(request.path)
        if request.method == "GET" and not target.name:
            if "watch" in request.query:
                return await self._watch(request, target)
            response = self._list(request, target)
            if request.query.get("limit") != "1":
                await self.lists.wait()
            return response
        return self._handle_object(request, target, self.received[-1].body)

    async def _fail(self, request: web.Request, fault: InjectedFault) -> web.Response:
        if fault.action == "hang":
            await self._hanging_requests.wait()
            return web.Response(status=500)
        if isinstance(fault.action, int):
            return _status(fault.action, "Injected", "as planned", fault.headers)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _list(self, request: web.Request, target: _Target) -> web.Response:
        chosen = [
            obj
            for key, obj in sorted(self.stores.get(target.prefix, {}).items())
            if _selected(obj, target.namespace, request.query.get("labelSelector", ""))
        ]
        start = int(request.query.get("continue") or 0)
        limit = int(request.query.get("limit") or 0) or len(chosen)
        meta: Object = {"resourceVersion": str(self.version)}
        if start + limit < len(chosen):
            meta["continue"] = str(start + limit)
        return web.json_response(
            {"kind": "List", "metadata": meta, "items": chosen[start : start + limit]}
        )

    def _handle_object(self, request: web.Request, target: _Target, body: Any) -> web.Response:
        store = self.stores.setdefault(target.prefix, {})
        if request.method == "POST":
            return self._create(target, body)
        old = store.get(target.key)
        if old is None:
            if "apply-patch" in request.headers.get("Content-Type", ""):
                return web.json_response(self._store(target.prefix, target.key, body), status=201)
            return _status(404, "NotFound", f"{target.key} not found")
        if request.method == "GET":
            return web.json_response(old)
        if problem := _precondition(old, request.method, body):
            return problem
        if request.method == "DELETE":
            return web.json_response(self._delete(target.prefix, target.key))
        if request.method == "PATCH" and isinstance(body, list):
            try:
                new = json_patch(old, body)
            except PatchError as error:
                return _status(error.status, error.reason, error.message)
        else:
            new = _merged(old, body) if request.method == "PATCH" else body
        return web.json_response(self._store(target.prefix, target.key, new))

    def _create(self, target: _Target, body: Any) -> web.Response:
        if target.subresource:
            return web.json_response({"kind": "Status", "status": "Success"}, status=201)
        name = body["metadata"]["name"]
        key = f"{target.namespace}/{name}" if target.namespace else name
        if key in self.stores[target.prefix]:
            return _status(409, "AlreadyExists", f"{key} already exists")
        if target.namespace:
            body["metadata"]["namespace"] = target.namespace
        return web.json_response(self._store(target.prefix, key, body), status=201)

    async def _watch(self, request: web.Request, target: _Target) -> web.StreamResponse:
        query = request.query
        initial = query.get("sendInitialEvents") == "true"
        if initial and not self.supports_watch_list and not self.hang_lists:
            return _status(422, "Invalid", "sendInitialEvents is forbidden")
        since = int(query.get("resourceVersion") or 0)
        watcher = _Watcher(
            target.prefix, target.namespace, query.get("labelSelector", ""), asyncio.Queue()
        )
        for line in self._backlog(watcher, since):
            watcher.lines.put_nowait(line)
        if initial and not self.hang_lists:
            watcher.lines.put_nowait(_bookmark_line(self.version, ends_list=True))
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

    async def _stream(self, watcher: _Watcher, response: web.StreamResponse) -> None:
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

    def _backlog(self, watcher: _Watcher, since: int) -> Iterator[bytes]:
        if not since:
            for _, obj in sorted(self.stores.get(watcher.prefix, {}).items()):
                if _selected(obj, watcher.namespace, watcher.selector):
                    yield _event_line("ADDED", obj)
            return
        if since < self._oldest_version:
            text = "too old resource version"
            if self.reports_oldest_version:
                text += f": {since} ({self._oldest_version})"
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": text}
            yield _event_line("ERROR", status)
            watcher.lines.put_nowait(None)  # the server ends such a stream after the event
            return
        for entry in self.history:
            if entry[0] > since and (line := _event_for(watcher, entry)):
                yield line


def _abort(response: web.StreamResponse | None) -> None:
    request = getattr(response, "_req", None)
    if request is not None and request.transport is not None:
        with suppress(OSError):
            request.transport.abort()


def _parse(path: str) -> _Target:
    pieces = path.strip("/").split("/")
    root, rest = (pieces[:2], pieces[2:]) if pieces[0] == "api" else (pieces[:3], pieces[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    return _Target("/" + "/".join([*root, plural]), namespace, name, subresource)


def _event_line(change: str, obj: Object) -> bytes:
    return json.dumps({"type": change, "object": obj}, separators=(",", ":")).encode() + b"\n"


def _bookmark_line(version: int, *, ends_list: bool = False) -> bytes:
    meta: Object = {"resourceVersion": str(version), "creationTimestamp": None}
    if ends_list:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return _event_line("BOOKMARK", {"kind": "Any", "apiVersion": "v1", "metadata": meta})


def _event_for(watcher: _Watcher, entry: tuple[int, str, str, Object, Object | None]) -> bytes:
    """The event as this watcher sees it: leaving its selection is a deletion."""
    _, prefix, change, new, old = entry
    if prefix != watcher.prefix:
        return b""
    now = change != "DELETED" and _selected(new, watcher.namespace, watcher.selector)
    before = old is not None and _selected(old, watcher.namespace, watcher.selector)
    if now:
        return _event_line("MODIFIED" if before else "ADDED", new)
    return _event_line("DELETED", new) if before else b""


def _selected(obj: Object, namespace: str, selector: str) -> bool:
    meta = obj["metadata"]
    if namespace and meta.get("namespace") != namespace:
        return False
    labels: dict[str, str] = meta.get("labels", {})
    pieces = [piece for piece in selector.split(",") if piece]
    absent = {piece[1:] for piece in pieces if piece.startswith("!")}
    present = {piece for piece in pieces if not piece.startswith("!") and "=" not in piece}
    expected = dict(piece.split("=", 1) for piece in pieces if "=" in piece)
    matches = expected.items() <= labels.items() and present <= labels.keys()
    return matches and not absent & labels.keys()


def _precondition(old: Object, method: str, body: Any) -> web.Response | None:
    if not isinstance(body, dict):
        return None
    expected = body.get("preconditions", {}) if method == "DELETE" else body.get("metadata", {})
    for name in ("uid", "resourceVersion"):
        if expected.get(name) not in (None, "", old["metadata"][name]):
            return _status(409, "Conflict", f"{name} is {old['metadata'][name]}")
    return None


def _merged(old: Any, patch: Any) -> Any:
    if isinstance(patch, list):
        return [_merged(None, each) for each in patch]  # decoding drops a null as a merge does
    if not isinstance(patch, dict):
        return patch
    base = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = _merged(base.get(name), value)
    return base


def _status(
    code: int, reason: str, message: str, headers: dict[str, str] | None = None
) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": {}}
    return web.json_response(body, status=code, headers=headers)
