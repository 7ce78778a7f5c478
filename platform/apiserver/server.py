"""The server as a whole: put together, started, stopped."""

import asyncio
import errno
import gc
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..httpserver.limits import Limits
from ..kube.private_files import ensure_private_dir
from ..kube.supervision import supervise
from ..local import kubeconfig, pki, tokens
from ..local.kubeconfig import ClusterAccess
from ..local.pki import Pki
from ..local.tokens import USERS, Tokens
from ..model import names
from ..model.admission import Webhook
from . import bootstrap
from .app import App
from .controllers.base import Controller, ControllerContext
from .controllers.crds import CrdController
from .controllers.disruptions import DisruptionController
from .controllers.event_ttl import EventTtlController
from .controllers.garbage_collector import GarbageCollector
from .controllers.kubernetes_service import KubernetesServiceController
from .controllers.namespaces import NamespaceController
from .controllers.volumes import PersistentVolumeController
from .discovery.catalog import Catalog
from .errors.status import StatusError
from .http.auth import Authenticator, User
from .http.connections import Connections, RequestHandler
from .http.requests import Json
from .metrics import ServerMetrics
from .storage.object_store import ObjectStore
from .storage.sqlite import SqliteStore
from .verbs.admission import Admission, LatestReader
from .verbs.deletes import Deleter
from .verbs.handlers import Handlers
from .verbs.log_proxy import LogProxy
from .verbs.pod_subresources import PodKinds, PodSubresources
from .verbs.reads import Reader
from .verbs.writes import Writer

log = logging.getLogger(__name__)

DRAIN_TIMEOUT = 5.0
"""How long a stop waits for answers that are under way."""

START_TIMEOUT = 30.0
"""How long a start waits for the next thing that it needs."""

BOOTSTRAP_RETRY_INTERVAL = 2.0
"""Seconds after which a start that a full disk cut short is tried again."""

GC_THRESHOLD = 50_000
"""New objects between two looks for cycles: our own data have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the embedded API server runs."""

    data_dir: Path
    """Folder of all that lasts: ``cluster.db``, ``pki/``, ``tokens.json``, ``kubeconfig``."""

    host: str = "127.0.0.1"
    port: int = 7443
    """0 takes a free one."""

    listener: socket.socket | None = None
    """A socket that listens already, in the place of *host* and *port*."""

    webhooks: Sequence[Webhook] = ()
    """Admission rules, called in this process."""

    crds: Sequence[Json] = ()
    """Custom resource definitions that are installed at start."""

    extra_cert_names: Sequence[str] = ()
    """More host names and addresses for the certificates."""

    limits: Limits = field(default_factory=Limits)
    """What clients may take of the listener."""

    collect_garbage: bool = True
    """Whether objects whose owners are gone are deleted."""

    wrap_handler: Callable[[RequestHandler], RequestHandler] | None = None
    """Wraps the handler of all requests: fault injection of :mod:`batholith.testing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that answers."""

    url: str
    """``https://host:port``."""

    port: int
    pki: Pki
    tokens: Tokens
    kubeconfig: Path
    """Of the user ``admin``."""

    app: App


async def serve(settings: Settings, *, ready: asyncio.Event | None = None) -> None:
    """Run the API server until cancelled; *ready* is set when it answers.

    Raises:
        OSError: the port is taken, or the data folder cannot be used.
    """
    async with running(settings):
        # What was loaded stays: the collector of cycles need not look at it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 50)
        if ready is not None:
            ready.set()
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[RunningServer]:
    """The API server, for the length of the block."""
    ensure_private_dir(settings.data_dir)
    made = pki.ensure(settings.data_dir / "pki", names=(settings.host, *settings.extra_cert_names))
    owned = tokens.ensure(settings.data_dir / "tokens.json")
    listener = settings.listener or socket.create_server(
        (settings.host, settings.port), backlog=2048
    )
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"https://{host}:{port}"
    path = settings.data_dir / "kubeconfig"
    access = ClusterAccess(server=url, ca=made.ca_data, user="admin", token=owned["admin"])
    _write_kubeconfig(path, access)
    engine = _ServerCore(settings, made, owned, f"{host}:{port}")
    try:
        async with engine.running(), _listening(listener, engine.app, made, settings):
            yield RunningServer(
                url=url, port=port, pki=made, tokens=owned, kubeconfig=path, app=engine.app
            )
    finally:
        listener.close()


def _write_kubeconfig(path: Path, access: ClusterAccess) -> None:
    try:
        kubeconfig.write(path, access)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        log.exception("cannot write the kubeconfig", extra={"path": str(path)})


class _ServerCore:
    """Everything behind the HTTP side."""

    def __init__(self, settings: Settings, certs: Pki, token_set: Tokens, address: str) -> None:
        self._settings = settings
        self._store = ObjectStore(SqliteStore(settings.data_dir / "cluster.db"))
        self._catalog = Catalog()
        lookup = LatestReader(self._store, self._catalog)
        admission = Admission(lookup, settings.webhooks)
        self._writer = Writer(self._store, self._catalog, admission)
        deleter = Deleter(self._writer)
        self._log_proxy = LogProxy(_client_context(certs))
        tools = ControllerContext(writer=self._writer, deleter=deleter, catalog=self._catalog)
        self._kubernetes_service = KubernetesServiceController(
            tools, address=address, namespaces=bootstrap.SYSTEM_NAMESPACES
        )
        self._controllers: list[Controller] = [
            CrdController(tools),
            NamespaceController(tools, ca=certs.ca_data),
            self._kubernetes_service,
            EventTtlController(tools),
            PersistentVolumeController(tools),
            DisruptionController(tools),
        ]
        if settings.collect_garbage:
            self._controllers.append(GarbageCollector(tools))
        known = Authenticator(
            {
                token_set[user]: User(name=user, uid=user, groups=groups)
                for user, groups in USERS.items()
            }
        )
        handlers = Handlers(
            reader=Reader(self._store),
            writer=self._writer,
            deleter=deleter,
            pods=PodSubresources(self._writer, deleter, _pod_kinds(self._catalog), self._log_proxy),
            authenticator=known,
        )
        self.app = App(
            catalog=self._catalog,
            handlers=handlers,
            authenticator=known,
            metrics=ServerMetrics(self._store.resource_stores, self._store.failures),
            address=address,
            writable=lambda: self._store.writable,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        registry = self._store
        for keeper in self._controllers:
            # The definer comes first: what it serves has its objects loaded for the others.
            for kind in self._catalog.stored_kinds():
                registry.resource_store(kind)
            keeper.enqueue_all()
            registry.listeners.append(keeper.handle_event)
        registry.replay()
        committing = asyncio.create_task(
            supervise("store", registry.run, may_end=lambda: registry.stopping)
        )
        keeping = [asyncio.create_task(keeper.run()) for keeper in self._controllers]
        try:
            try:
                await self._bootstrap()
            except StatusError:
                if registry.writable:
                    raise
                # What is there can be read, and deleted to make space.
                log.exception("cannot make what every cluster has")
                filling = supervise("fill", self._retry_bootstrap, may_end=lambda: self.app.ready)
                keeping.append(asyncio.create_task(filling))
            yield
        finally:
            self.app.ready = False
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            registry.stop()
            await committing
            await registry.close()
            await self._log_proxy.close()

    async def _bootstrap(self) -> None:
        await bootstrap.ensure_defaults(self._writer, self._catalog, self._settings.crds)
        await self._wait_bootstrapped()
        self.app.ready = True

    async def _retry_bootstrap(self) -> None:
        """Try again until there is space."""
        while not self.app.ready:
            await asyncio.sleep(BOOTSTRAP_RETRY_INTERVAL)
            try:
                await self._bootstrap()
            except StatusError:
                log.warning("still cannot make what every cluster has", exc_info=True)

    async def _wait_bootstrapped(self) -> None:
        """Wait until the definitions are served, and what every cluster has is there."""
        for definition in self._settings.crds:
            while not self._catalog.crd_kinds(definition["metadata"]["name"]):
                await self._next_version()
        while not self._kubernetes_service.is_synced:
            await self._next_version()

    async def _next_version(self) -> None:
        await self._store.wait_until_fresh(self._store.committed_rv + 1, timeout=START_TIMEOUT)


def _pod_kinds(catalog: Catalog) -> PodKinds:
    return PodKinds(
        pods=catalog.require(names.PODS),
        nodes=catalog.require(names.NODES),
        budgets=catalog.require(names.POD_DISRUPTION_BUDGETS),
    )


def _client_context(certs: Pki) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certs.ca))
    context.load_cert_chain(certs.client.certificate, certs.client.key)
    # Agents are reached by addresses that their certificates may not name; the authority decides.
    context.check_hostname = False
    return context


@asynccontextmanager
async def _listening(
    listener: socket.socket, app: App, certs: Pki, settings: Settings
) -> AsyncIterator[None]:
    """Serve *app* on *listener*."""
    handler: RequestHandler = app
    if settings.wrap_handler is not None:
        handler = settings.wrap_handler(app)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.server.certificate, certs.server.key)
    connections = Connections(
        handler,
        is_authenticated=app.is_authenticated,
        limits=settings.limits,
        metrics=app.metrics.listeners,
    )
    connections.listen(listener, tls=context)
    try:
        yield
    finally:
        connections.stop()
        app.handlers.writer.store.close_watches()
        await connections.close(DRAIN_TIMEOUT)
