"""The embedded API server in the process of a test."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ..kube.client.client import Client
from ..kube.client.config import Credentials
from ..kube.errors import from_response
from ..kube.gc_tuning import gc_paused
from ..local.apiserver.app import App
from ..local.apiserver.controllers.node_health import NodeLifecycleSettings
from ..local.apiserver.http.connections import HttpRequest, HttpResponse, RequestHandler
from ..local.apiserver.kinds.info import KindInfo
from ..local.apiserver.kinds.patches import merge_patch
from ..local.apiserver.storage.object_store import ObjectStore, PendingWrite
from ..local.apiserver.storage.resource_store import ResourceStore
from ..local.apiserver.storage.stored_objects import WatchEvent
from ..local.supervisor.apiserver import RunningServer, Settings, running
from ..model.admission import Webhook
from ..model.names import PODS, Resource
from . import templates
from .blocking import Blocking, calling, waiting
from .changes import WAIT_SECONDS, Json, ObjectChange, Signal
from .clock import AdvanceableClock, wait_quiet
from .discovery import find_resource
from .faults import FaultInjector
from .namespaces import BlockingNamespace, ClusterNamespace
from .objects import container_status, key_of, new_object, phase_of
from .requests import RequestMatcher
from .watches import WatchStream

DEFAULT_NODE_LIFECYCLE = NodeLifecycleSettings()
"""Settings of kube-controller-manager."""

_MERGE = "application/merge-patch+json"


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

        self.clock = AdvanceableClock()
        """Time of the server and of all components; see :meth:`advance`."""

        self._data_dir = data_dir
        self._port = port
        self._crds = crds
        self._webhooks = webhooks
        self._collect_garbage = collect_garbage
        self._node_lifecycle = node_lifecycle
        self._stack = AsyncExitStack()
        self._server_stack = AsyncExitStack()
        self._server: RunningServer | None = None
        self._requests_in_flight = 0
        self._requests_handled = 0
        self._last_write: PendingWrite | None = None
        """By :meth:`put` or :meth:`remove`."""

    async def __aenter__(self) -> Self:
        """Start the server."""
        async with AsyncExitStack() as stack:
            data_dir = self._data_dir
            if data_dir is None:
                data_dir = templates.create_temporary_dir()
                stack.callback(shutil.rmtree, data_dir, ignore_errors=True)
            # A collection would walk the whole heap of the test session.
            with gc_paused():
                filled = await templates.fill(data_dir, self._crds)
                await self._start_server(data_dir, () if filled else self._crds)
            stack.push_async_callback(self._stop_server)
            stack.callback(self.faults.clear)  # what is held would delay the stop
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

    def __enter__(self) -> "BlockingApiServer":
        """Start the server in its own thread, for a test that blocks."""
        self._blocking = BlockingApiServer(self)
        return self._blocking.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server and its thread."""
        self._blocking.__exit__(kind, error, trace)

    # Restarts and time.

    async def restart(self) -> None:
        """Stop the server and start it again on the same port; all connections are closed."""
        running = self._running
        self._port = running.port
        await self._stop_server()
        await self._start_server(running.kubeconfig.parent, self._crds)

    async def advance(self, seconds: float) -> None:
        """Advance the time of the cluster, and run all timers on the way in their order.

        After each of them the components complete what they do because of it, as far as it takes
        no time: a CronJob starts each of its jobs, a pod that sleeps ends. What other processes do
        is not waited for.

        Raises:
            ValueError: *seconds* is negative.
        """
        await self.clock.advance(seconds, partial(wait_quiet, self._activity))

    def _activity(self) -> int | None:
        """Return a number that grows with each request and write; ``None`` during one."""
        if self._requests_in_flight or self._object_store.has_queued_writes:
            return None
        return self._requests_handled + self.newest_version

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
        """Those of ``admin``, or of a component, such as ``controllers`` or ``agent``."""
        server = self._running
        return Credentials(server=server.url, ca_data=server.pki.ca_data, token=server.tokens[user])

    def client(self, user_agent: str = "batholith-testing") -> Client:
        """Return a client of the administrator; open it with ``async with``."""
        return Client(self.credentials, user_agent=user_agent)

    def resource(self, kind: Resource | str) -> Resource:
        """Return a resource by its kind or plural, as ``kubectl`` names it.

        ``Pod`` and ``pods``; where several groups have the kind, ``Job.batch.volcano.sh`` or
        ``jobs.batch``.

        Raises:
            ValueError: there is no such resource, or several.
        """
        if isinstance(kind, Resource):
            return kind
        return find_resource(kind, {each.resource for each in self.app.catalog.stored_kinds()})

    def new_namespace(self, prefix: str = "test") -> ClusterNamespace:
        """Return a namespace that exists within ``async with``, and serves webhooks in it."""
        return ClusterNamespace(self.credentials, prefix=prefix, kubeconfig=self.kubeconfig)

    # Objects, by the rules of the server.

    async def create(
        self, resource: Resource | str, obj: Json, *, namespace: str = "default"
    ) -> Json:
        """Create an object.

        Raises:
            ApiError: the server refused it.
        """
        found = self.resource(resource)
        body = {"apiVersion": found.api_version, "kind": found.kind, **obj}
        return await self._send("POST", found.path(namespace), body)

    async def get(self, resource: Resource | str, name: str, *, namespace: str = "default") -> Json:
        """Read an object.

        Raises:
            NotFoundError: it does not exist.
        """
        return await self._send("GET", self.resource(resource).path(namespace, name))

    async def patch(
        self,
        resource: Resource | str,
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
        path = self.resource(resource).path(namespace, name, subresource)
        return await self._send("PATCH", path, patch, content_type=_MERGE)

    async def delete(
        self, resource: Resource | str, name: str, *, namespace: str = "default"
    ) -> None:
        """Delete an object.

        Raises:
            ApiError: the server refused it.
        """
        await self._send("DELETE", self.resource(resource).path(namespace, name))

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
            container_status(container, phase, code) for container in pod["spec"]["containers"]
        ]
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        status = {"phase": phase, "containerStatuses": statuses, "conditions": [ready]}
        return await self.patch(
            PODS, name, {"status": status}, namespace=namespace, subresource="status"
        )

    # Waiting.

    async def wait_for(
        self,
        resource: Resource | str,
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
        resource = self.resource(resource)
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
        resource: Resource | str,
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
        resource: Resource | str,
        name: str,
        *,
        namespace: str = "default",
        timeout: float = WAIT_SECONDS,
    ) -> None:
        """Wait until an object does not exist.

        Raises:
            WaitTimeoutError: it existed after *timeout* seconds.
        """
        resource = self.resource(resource)
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
        matcher = RequestMatcher(verb, self._plural(resource), **more)
        return sum(map(matcher.matches, self.faults.requests))

    def watches(self, resource: Resource | str = "") -> list[WatchStream]:
        """Return the open watches of *resource*."""
        matcher = RequestMatcher("watch", self._plural(resource))
        return [stream for stream in self.faults.watches if matcher.matches(stream.request)]

    # Objects, past the rules of the server.

    def objects(self, resource: Resource | str) -> dict[str, Json]:
        """Return all objects of a resource by ``namespace/name``, or by name without namespace."""
        store = self._resource_store(self.resource(resource))
        found = {key_of(entry): entry.parse() for entry in store.latest_entries()}
        return dict(sorted(found.items()))

    def put(
        self, resource: Resource | str, name: str, *, namespace: str = "default", **fields: Any
    ) -> Json:
        """Store an object without defaults, validation and admission, or change it so.

        *fields* are merged into the object, as a merge patch is. It is not awaited: later requests
        see the change, and watches deliver it when it is committed.
        """
        resource = self.resource(resource)
        store = self._resource_store(resource)
        metadata: Json = {"name": name}
        if resource.namespaced:
            metadata["namespace"] = namespace
        old = store.latest(metadata.get("namespace", ""), name)
        obj = new_object(resource, metadata) if old is None else old.parse()
        self._last_write = self._object_store.put(store, merge_patch(obj, fields), old)
        return self._last_write.entry.parse()

    def remove(self, resource: Resource | str, name: str, *, namespace: str = "default") -> bool:
        """Remove an object at once, finalizers or not; returns whether it existed."""
        resource = self.resource(resource)
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

    @property
    def app(self) -> App:
        """The server's request handlers, with its catalog and store; for tests of the server."""
        return self._running.app

    # Internals.

    @property
    def _running(self) -> RunningServer:
        if self._server is None:
            raise RuntimeError("the API server is not started: use it with `async with` or `with`")
        return self._server

    @property
    def _object_store(self) -> ObjectStore:
        return self.app.handlers.writer.store

    def _plural(self, resource: Resource | str) -> Resource | str:
        """Return what a matcher takes: subresources and plurals of several groups, too."""
        if isinstance(resource, Resource) or not resource:
            return resource
        name, slash, subresource = resource.partition("/")
        plurals = {each.resource.plural for each in self.app.catalog.stored_kinds()}
        if name.partition(".")[0] in plurals:
            return resource
        found = self.resource(name)
        return f"{found.plural}.{found.group}".rstrip(".") + slash + subresource

    def _kind(self, resource: Resource) -> KindInfo:
        found = self.app.catalog.get(resource.group, resource.version, resource.plural)
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
            clock=self.clock,
        )

    async def _start_server(self, data_dir: Path, crds: Sequence[Json]) -> None:
        settings = self._settings(data_dir, crds)
        self._server = await self._server_stack.enter_async_context(running(settings))
        self._object_store.listeners.append(self._on_change)

    async def _stop_server(self) -> None:
        self._last_write = None
        await self._server_stack.aclose()

    def _wrap(self, handler: RequestHandler) -> RequestHandler:
        async def handle(received: HttpRequest) -> HttpResponse:
            self._requests_in_flight += 1
            try:
                await self._committed()
                return await handler(received)
            finally:
                self._requests_in_flight -= 1
                self._requests_handled += 1

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
        reply = await self.app(request)
        if reply.status >= 300:
            raise from_response(reply.status, reply.body)
        decoded: Json = msgspec.json.decode(reply.body)
        return decoded

    def _on_change(self, store: ResourceStore, event: WatchEvent) -> None:
        self.changes.append(ObjectChange(store.resource, event.type, event.entry.data))
        self._signal.notify()


class BlockingApiServer(Blocking[ApiServer]):
    """An API server in its own thread: methods wait, and conditions are called in that thread.

    Clients that block reach it from the thread of the test, which may run an event loop.
    """

    @property
    def url(self) -> str:
        """``https://127.0.0.1:port``."""
        return self._target.url

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the administrator, for any client of Kubernetes."""
        return self._target.kubeconfig

    @property
    def credentials(self) -> Credentials:
        """Those of the administrator."""
        return self._target.credentials

    @property
    def changes(self) -> list[ObjectChange]:
        """Every committed change since the server was ready."""
        return list(self._target.changes)

    @property
    def faults(self) -> FaultInjector:
        """Plans faults; what wakes or waits, such as ``held.release``, is called by :meth:`call`
        and :meth:`run`."""
        return self._target.faults

    @property
    def newest_version(self) -> int:
        """Resource version of the newest change."""
        return self.call(lambda: self._target.newest_version)

    def new_namespace(self, prefix: str = "test") -> BlockingNamespace:
        """Return a namespace that exists within ``with``, and serves webhooks in it."""
        return BlockingNamespace(self.call(self._target.new_namespace, prefix))

    resource = calling(ApiServer.resource)
    create = waiting(ApiServer.create)
    get = waiting(ApiServer.get)
    patch = waiting(ApiServer.patch)
    delete = waiting(ApiServer.delete)
    set_pod_phase = waiting(ApiServer.set_pod_phase)
    wait_for = waiting(ApiServer.wait_for)
    wait_for_phase = waiting(ApiServer.wait_for_phase)
    wait_deleted = waiting(ApiServer.wait_deleted)
    restart = waiting(ApiServer.restart)
    advance = waiting(ApiServer.advance)
    objects = calling(ApiServer.objects)
    watches = calling(ApiServer.watches)
    remove = calling(ApiServer.remove)
    compact = calling(ApiServer.compact)

    def count(self, verb: str = "", resource: Resource | str = "", **more: Any) -> int:
        """Count requests so far, as :meth:`ApiServer.count` does."""
        return self.call(lambda: self._target.count(verb, resource, **more))

    def put(
        self, resource: Resource | str, name: str, *, namespace: str = "default", **fields: Any
    ) -> Json:
        """Store an object without defaults, validation and admission, or change it so."""
        return self.call(lambda: self._target.put(resource, name, namespace=namespace, **fields))

    def wait_until(self, condition: Callable[[], object], **options: Any) -> None:
        """Wait until *condition* holds, as :meth:`ApiServer.wait_until` does."""
        self.run(self._target.wait_until(condition, **options))
