"""Objects in the memory of a test, and requests to them by the rules of the Kubernetes API.

It has resource versions, a history, selectors, conditional writes and watches, and neither sockets
nor defaults: what is stored is what was sent.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from batholith.local.apiserver.kinds.patches import json_patch
from batholith.local.apiserver.kinds.strategic_merge import PatchError
from batholith.model.names import Resource

Object = dict[str, Any]


@dataclass
class ReceivedRequest:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass
class InjectedFault:
    """A fault of the next *times* requests that *match*: a status or a keyword."""

    match: Callable[[web.Request], bool]
    action: int | str
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Watcher:
    """An open watch."""

    prefix: str
    namespace: str
    selector: str
    lines: asyncio.Queue[bytes | None]


@dataclass(frozen=True)
class Target:
    """A parsed path: the collection, and the object or subresource in it."""

    prefix: str
    namespace: str
    name: str
    subresource: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class InMemoryObjects:
    """Objects with their history, and the requests received."""

    def __init__(self) -> None:
        self.received: list[ReceivedRequest] = []
        self.version = 100
        self.stores: dict[str, dict[str, Object]] = {}
        self.history: list[tuple[int, str, str, Object, Object | None]] = []
        """(version, collection, change, new object, old object)."""
        self.states: list[tuple[str, str, Object]] = []
        """Every (collection, change, object) so far; :meth:`forget_history` keeps it."""
        self._oldest_version = 0
        self._injected_faults: list[InjectedFault] = []
        self._watchers: list[Watcher] = []

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

    def end_watches(self) -> None:
        """End all watches cleanly, as a server does at their time limit."""
        for watcher in self._watchers:
            watcher.lines.put_nowait(None)

    def forget_history(self) -> None:
        """Expire every version before now."""
        self._oldest_version = self.version
        self.history.clear()

    @property
    def watches(self) -> int:
        return len(self._watchers)

    def count(self, method: str, *, watch: bool = False) -> int:
        return sum(
            seen.method == method and ("watch" in seen.query) == watch for seen in self.received
        )

    # Requests.

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
        faults = self._injected_faults
        fault = next((each for each in faults if each.times and each.match(request)), None)
        if fault is not None:
            fault.times -= 1
            return await self._fail(request, fault)
        return await self._respond(request, parse_path(request.path))

    async def _respond(self, request: web.Request, target: Target) -> web.StreamResponse:
        if request.method == "GET" and not target.name:
            return self._list(request, target)
        return self._handle_object(request, target, self.received[-1].body)

    async def _fail(self, request: web.Request, fault: InjectedFault) -> web.Response:
        assert isinstance(fault.action, int)
        return status_response(fault.action, "Injected", "as planned", fault.headers)

    def _list(self, request: web.Request, target: Target) -> web.Response:
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

    def _handle_object(self, request: web.Request, target: Target, body: Any) -> web.Response:
        store = self.stores.setdefault(target.prefix, {})
        if request.method == "POST":
            return self._create(target, body)
        old = store.get(target.key)
        if old is None:
            if "apply-patch" in request.headers.get("Content-Type", ""):
                return web.json_response(self._store(target.prefix, target.key, body), status=201)
            return status_response(404, "NotFound", f"{target.key} not found")
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
                return status_response(error.status, error.reason, error.message)
        else:
            new = _merged(old, body) if request.method == "PATCH" else body
        return web.json_response(self._store(target.prefix, target.key, new))

    def _create(self, target: Target, body: Any) -> web.Response:
        if target.subresource:
            return web.json_response({"kind": "Status", "status": "Success"}, status=201)
        name = body["metadata"]["name"]
        key = f"{target.namespace}/{name}" if target.namespace else name
        if key in self.stores[target.prefix]:
            return status_response(409, "AlreadyExists", f"{key} already exists")
        if target.namespace:
            body["metadata"]["namespace"] = target.namespace
        return web.json_response(self._store(target.prefix, key, body), status=201)

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

    def _backlog(self, watcher: Watcher, since: int) -> Iterator[bytes]:
        if not since:
            for _, obj in sorted(self.stores.get(watcher.prefix, {}).items()):
                if _selected(obj, watcher.namespace, watcher.selector):
                    yield _event_line("ADDED", obj)
            return
        if since < self._oldest_version:
            text = f"too old resource version: {since} ({self._oldest_version})"
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": text}
            yield _event_line("ERROR", status)
            watcher.lines.put_nowait(None)  # the server ends such a stream after the event
            return
        for entry in self.history:
            if entry[0] > since and (line := _event_for(watcher, entry)):
                yield line


def parse_path(path: str) -> Target:
    segments = path.strip("/").split("/")
    root, rest = (
        (segments[:2], segments[2:]) if segments[0] == "api" else (segments[:3], segments[3:])
    )
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    return Target("/" + "/".join([*root, plural]), namespace, name, subresource)


def _event_line(change: str, obj: Object) -> bytes:
    return json.dumps({"type": change, "object": obj}, separators=(",", ":")).encode() + b"\n"


def bookmark_line(version: int, *, ends_list: bool = False) -> bytes:
    meta: Object = {"resourceVersion": str(version), "creationTimestamp": None}
    if ends_list:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return _event_line("BOOKMARK", {"kind": "Any", "apiVersion": "v1", "metadata": meta})


def _event_for(watcher: Watcher, entry: tuple[int, str, str, Object, Object | None]) -> bytes:
    """Return the event for *watcher*: an object that leaves its selection is DELETED."""
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
    requirements = [each for each in selector.split(",") if each]
    absent = {each[1:] for each in requirements if each.startswith("!")}
    present = {each for each in requirements if not each.startswith("!") and "=" not in each}
    expected = dict(each.split("=", 1) for each in requirements if "=" in each)
    matches = expected.items() <= labels.items() and present <= labels.keys()
    return matches and not absent & labels.keys()


def _precondition(old: Object, method: str, body: Any) -> web.Response | None:
    if not isinstance(body, dict):
        return None
    expected = body.get("preconditions", {}) if method == "DELETE" else body.get("metadata", {})
    for name in ("uid", "resourceVersion"):
        if expected.get(name) not in (None, "", old["metadata"][name]):
            return status_response(409, "Conflict", f"{name} is {old['metadata'][name]}")
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


def status_response(
    code: int, reason: str, message: str, headers: dict[str, str] | None = None
) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": {}}
    return web.json_response(body, status=code, headers=headers)
