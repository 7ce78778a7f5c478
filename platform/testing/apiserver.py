"""The embedded API server in the process of a test."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ..apiserver.controllers.node_health import NodeLifecycleSettings
from ..apiserver.http.connections import HttpRequest, HttpResponse, RequestHandler
from ..apiserver.kinds.info import KindInfo
from ..apiserver.storage.object_store import ObjectStore, PendingWrite
from ..apiserver.storage.resource_store import ResourceStore
from ..apiserver.storage.stored_objects import StoredObject, WatchEvent, new_uid
from ..apiserver.verbs.patches import merge_patch
from ..apiserver.verbs.writes import now
from ..kube.client.client import Client
from ..kube.client.config import Credentials
from ..kube.errors import from_response
from ..kube.gc_tuning import gc_paused
from ..local.apiserver import RunningServer, Settings, running
from ..model.admission import Webhook
from ..model.names import PODS, Resource
from . import templates
from .changes import WAIT_SECONDS, Json, ObjectChange, Signal
from .faults import FaultInjector
from .requests import RequestMatcher
from .watches import WatchStream

DEFAULT_NODE_LIFECYCLE = NodeLifecycleSettings()
"""Settings of kube-controller-manager."""

_MERGE = "application/merge-patch+json"
_FINAL_POD_PHASES = frozenset(("Succeeded", "Failed"))


class ApiServer:
    """An API server on a free port of loopback; an async context manager.

    Helpers such as :meth:`create` do not use the network: they are neither recorded nor subject
    to faults.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int = 0,
        crds: Sequence[Json] = (),
        webhooks: Sequence[Webhook] = (),
        collect_garbage: bool = True,
        node_lifecycle: NodeLifecycleSettings | None = DEFAULT_NODE_LIFECYCLE,
    ) -> None:
        """Prepare a server; entering the context starts it.

        Args:
            data_dir: directory of the cluster's state, which outlives the server; by default a
                temporary one.
            port: port of loopback, such as that of a server that was stopped; by default a free
                one.
            crds: custom resource definitions, established when the server is ready.
            webhooks: admission rules, called in this process.
            collect_garbage: whether the garbage collector runs.
            node_lifecycle: when nodes count as lost and their pods are deleted; by default as in
                kube-controller-manager, after 50 seconds. ``None``: never.
        """
        self._signal = Signal()
        self.faults = FaultInjector(self._signal)
        self.changes: list[ObjectChange] = []
        """Every committed change since the server was ready."""

        self._data_dir = data_dir
        self._port = port
        self._crds = crds
        self._webhooks = webhooks
        self._collect_garbage = collect_garbage
        self._node_lifecycle = node_lifecycle
        self._stack = AsyncExitStack()
        self._server: RunningServer | None = None
        self._last_write: PendingWrite | None = None
        """By :meth:`put` or :meth:`remove`."""

    async def __aenter__(self) -> Self:
        """Start the server."""
        async with AsyncExitStack() as stack:
            data_dir = self._data_dir
            if data_dir is None:
                data_dir = templates.make_temporary_dir()
                stack.callback(shutil.rmtree, data_dir, ignore_errors=True)
            # A collection would walk the whole heap of the test session.
            with gc_paused():
                filled = await templates.fill(data_dir, self._crds)
                settings = self._settings(data_dir, () if filled else self._crds)
                self._server = await stack.enter_async_context(running(settings))
            stack.callback(self.faults.clear)  # what is held would delay the stop
            self._object_store.listeners.append(self._on_change)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server."""
        await self._stack.aclose()

    # Access.

    @property
    def url(self) -> str:
        """``https://127.0.0.1:port``."""
        return self._running.url

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the administrator, for any client of Kubernetes."""
        return self._running.kubeconfig

    @property
    def credentials(self) -> Credentials:
        """Those of the administrator."""
        return self.credentials_of("admin")

    def credentials_of(self, user: str) -> Credentials:
        """Those of ``admin``, ``controllers``, ``scheduler``, ``agent`` or ``api``."""
        server = self._running
        return Credentials(server=server.url, ca_data=server.pki.ca_data, token=server.tokens[user])

    def client(self, user_agent: str = "batholith-testing") -> Client:
        """Return a client of the administrator; open it with ``async with``."""
        return Client(self.credentials, user_agent=user_agent)

    # Objects, by the rules of the server.

    async def create(self, resource: Resource, obj: Json, *, namespace: str = "default") -> Json:
        """Create an object.

        Raises:
            ApiError: the server refused it.
        """
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        return await self._send("POST", resource.path(namespace), body)

    async def get(self, resource: Resource, name: str, *, namespace: str = "default") -> Json:
        """Read an object.

        Raises:
            NotFoundError: it does not exist.
        """
        return await self._send("GET", resource.path(namespace, name))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Json,
        *,
        namespace: str = "default",
        subresource: str = "",
    ) -> Json:
        """Change an object by a merge patch.

        Raises:
            ApiError: the server refused it.
        """
        path = resource.path(namespace, name, subresource)
        return await self._send("PATCH", path, patch, content_type=_MERGE)

    async def delete(self, resource: Resource, name: str, *, namespace: str = "default") -> None:
        """Delete an object.

        Raises:
            ApiError: the server refused it.
        """
        await self._send("DELETE", resource.path(namespace, name))

    async def set_pod_phase(
        self, name: str, phase: str, *, namespace: str = "default", exit_code: int | None = None
    ) -> Json:
        """Report the phase of a pod, as its kubelet does.

        Args:
            name: the pod's name.
            phase: ``Pending``, ``Running``, ``Succeeded`` or ``Failed``.
            namespace: the pod's namespace.
            exit_code: of all containers, for a final phase; by default 0 or 1.

        Raises:
            ApiError: the server refused it.
        """
        pod = await self.get(PODS, name, namespace=namespace)
        code = (0 if phase == "Succeeded" else 1) if exit_code is None else exit_code
        statuses = [
            _container_status(container, phase, code) for container in pod["spec"]["containers"]
        ]
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        status = {"phase": phase, "containerStatuses": statuses, "conditions": [ready]}
        return await self.patch(
            PODS, name, {"status": status}, namespace=namespace, subresource="status"
        )

    # Waiting.

    async def wait_for(
        self,
        resource: Resource,
        name: str,
        condition: Callable[[Json], object],
        *,
        namespace: str = "default",
        timeout: float = WAIT_SECONDS,
    ) -> Json:
        """Wait until *condition* holds for an object, and return it.

        A condition that raises LookupError does not hold: the field may be set later.

        Raises:
            WaitTimeoutError: it did not hold within *timeout* seconds.
        """
        key = (namespace if resource.namespaced else "", name)
        found: list[Json] = []

        def holds() -> bool:
            entry = self._resource_store(resource).get(*key)
            found[:] = [] if entry is None else [entry.parse()]
            return entry is not None and bool(condition(found[0]))

        def describe() -> str:
            return f"{resource.kind} {name}: {found[0] if found else 'not found'}"

        await self.wait_until(holds, timeout=timeout, describe=describe)
        return found[0]

    async def wait_for_phase(
        self,
        resource: Resource,
        name: str,
        *phases: str,
        namespace: str = "default",
        timeout: float = WAIT_SECONDS,
    ) -> Json:
        """Wait until an object is in one of *phases*, and return it; see :func:`phase_of`.

        Raises:
            WaitTimeoutError: it was in none of them within *timeout* seconds.
        """
        return await self.wait_for(
            resource,
            name,
            lambda obj: phase_of(obj) in phases,
            namespace=namespace,
            timeout=timeout,
        )

    async def wait_deleted(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "default",
        timeout: float = WAIT_SECONDS,
    ) -> None:
        """Wait until an object does not exist.

        Raises:
            WaitTimeoutError: it existed after *timeout* seconds.
        """
        key = (namespace if resource.namespaced else "", name)

        def describe() -> str:
            return f"{resource.kind} {name} exists"

        await self.wait_until(
            lambda: self._resource_store(resource).get(*key) is None,
            timeout=timeout,
            describe=describe,
        )

    async def wait_until(
        self,
        condition: Callable[[], object],
        *,
        timeout: float = WAIT_SECONDS,
        describe: Callable[[], str] = str,
    ) -> None:
        """Wait until *condition* holds; it is checked at each change, request and watch.

        Raises:
            WaitTimeoutError: it did not hold within *timeout* seconds.
        """
        await self._signal.wait_until(condition, timeout=timeout, describe=describe)

    def count(self, verb: str = "", resource: Resource | str = "", **more: Any) -> int:
        """Count requests so far; the arguments are those of :class:`RequestMatcher`."""
        matcher = RequestMatcher(verb, resource, **more)
        return sum(map(matcher.matches, self.faults.requests))

    def watches(self, resource: Resource | str = "") -> list[WatchStream]:
        """Return the open watches of *resource*."""
        matcher = RequestMatcher("watch", resource)
        return [stream for stream in self.faults.watches if matcher.matches(stream.request)]

    # Objects, past the rules of the server.

    def objects(self, resource: Resource) -> dict[str, Json]:
        """Return all objects of a resource by ``namespace/name``, or by name without namespace."""
        found = {
            _key_of(entry): entry.parse()
            for entry in self._resource_store(resource).latest_entries()
        }
        return dict(sorted(found.items()))

    def put(
        self, resource: Resource, name: str, *, namespace: str = "default", **fields: Any
    ) -> Json:
        """Store an object without defaults, validation and admission, or change it so.

        *fields* are merged into the object, as a merge patch is. It is not awaited: later requests
        see the change, and watches deliver it when it is committed.
        """
        store = self._resource_store(resource)
        metadata: Json = {"name": name}
        if resource.namespaced:
            metadata["namespace"] = namespace
        old = store.latest(metadata.get("namespace", ""), name)
        obj = _new(resource, metadata) if old is None else old.parse()
        self._last_write = self._object_store.put(store, merge_patch(obj, fields), old)
        return self._last_write.entry.parse()

    def remove(self, resource: Resource, name: str, *, namespace: str = "default") -> bool:
        """Remove an object at once, finalizers or not; returns whether it existed."""
        store = self._resource_store(resource)
        old = store.latest(namespace if resource.namespaced else "", name)
        if old is not None:
            self._last_write = self._object_store.remove(store, old.parse(), old)
        return old is not None

    @property
    def newest_version(self) -> int:
        """Resource version of the newest change, also by :meth:`put` or :meth:`remove`."""
        written = 0 if self._last_write is None else self._last_write.entry.rv
        return max(self._object_store.committed_rv, written)

    def compact(self) -> None:
        """Forget all past versions, as a compaction of etcd does: watches from them get 410."""
        objects, newest = self._object_store, self.newest_version
        for store in objects.resource_stores():
            store.history.clear()
            store.oldest_version = newest
        objects.oldest_rv = newest

    # Internals.

    @property
    def _running(self) -> RunningServer:
        if self._server is None:
            raise RuntimeError("the API server is not started: use it with `async with`")
        return self._server

    @property
    def _object_store(self) -> ObjectStore:
        return self._running.app.handlers.writer.store

    def _kind(self, resource: Resource) -> KindInfo:
        found = self._running.app.catalog.get(resource.group, resource.version, resource.plural)
        if found is None:
            raise LookupError(f"{resource.plural} of {resource.api_version} are not served")
        return found

    def _resource_store(self, resource: Resource) -> ResourceStore:
        return self._object_store.resource_store(self._kind(resource))

    def _settings(self, data_dir: Path, crds: Sequence[Json]) -> Settings:
        return Settings(
            data_dir=data_dir,
            port=self._port,
            crds=crds,
            webhooks=self._webhooks,
            collect_garbage=self._collect_garbage,
            node_lifecycle=self._node_lifecycle,
            wrap_handler=self._wrap,
        )

    def _wrap(self, handler: RequestHandler) -> RequestHandler:
        async def handle(received: HttpRequest) -> HttpResponse:
            await self._committed()
            return await handler(received)

        return self.faults.wrap(handle)

    async def _committed(self) -> None:
        """Wait until what :meth:`put` and :meth:`remove` wrote can be read."""
        if self._last_write is not None:
            await asyncio.wait([self._last_write.done])

    async def _send(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> Json:
        authorization = f"Bearer {self._running.tokens['admin']}"
        request = HttpRequest(
            method=method,
            path=path,
            headers={"authorization": authorization, "content-type": content_type},
            body=b"" if body is None else msgspec.json.encode(body),
        )
        await self._committed()
        reply = await self._running.app(request)
        if reply.status >= 300:
            raise from_response(reply.status, reply.body)
        decoded: Json = msgspec.json.decode(reply.body)
        return decoded

    def _on_change(self, store: ResourceStore, event: WatchEvent) -> None:
        self.changes.append(ObjectChange(store.resource, event.type, event.entry.data))
        self._signal.notify()


def phase_of(obj: Json) -> str:
    """Return the phase of an object: ``status.phase``, or ``status.state.phase`` of a Job.

    A Queue's is ``status.state``.
    """
    status = obj.get("status") or {}
    state = status.get("state") or ""
    phase = state.get("phase", "") if isinstance(state, dict) else state
    return str(status.get("phase") or phase)


def _container_status(container: Json, phase: str, code: int) -> Json:
    state: Json = {"waiting": {"reason": "ContainerCreating"}}
    if phase == "Running":
        state = {"running": {}}
    elif phase in _FINAL_POD_PHASES:
        reason = "Completed" if code == 0 else "Error"
        state = {"terminated": {"exitCode": code, "reason": reason}}
    running = phase == "Running"
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": running,
        "started": running,
        "restartCount": 0,
        "state": state,
    }


def _new(resource: Resource, metadata: Json) -> Json:
    created = {"uid": new_uid(), "creationTimestamp": now(), "generation": 1}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata | created,
    }


def _key_of(entry: StoredObject) -> str:
    return f"{entry.namespace}/{entry.name}" if entry.namespace else entry.name
