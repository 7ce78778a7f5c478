"""The server as a whole: put together, started, stopped."""

import asyncio
import errno
import gc
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
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
from .controllers.base import Keeper, Tools
from .controllers.crds import Definer
from .controllers.disruptions import DisruptionController
from .controllers.event_ttl import Sweeper
from .controllers.garbage_collector import Collector
from .controllers.kubernetes_service import Standing
from .controllers.namespaces import Landlord
from .controllers.volumes import VolumeController
from .discovery.catalog import Catalog
from .errors.status import StatusError
from .http.auth import Authenticator, User
from .http.connections import Connections
from .http.requests import Json
from .metrics import Figures
from .storage.object_store import Registry
from .storage.sqlite import Store
from .verbs.admission import Admission, HeadLookup
from .verbs.deletes import Deleter
from .verbs.handlers import Handlers
from .verbs.log_proxy import LogRelay
from .verbs.pod_subresources import PodKinds, PodParts
from .verbs.reads import Reader
from .verbs.writes import Writer

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""How long a stop waits for answers that are under way."""

START_SECONDS = 30.0
"""How long a start waits for the next thing that it needs."""

FILL_AGAIN_AFTER = 2.0
"""Seconds after which a start that a full disk cut short is tried again."""

GC_THRESHOLD = 50_000
"""New objects between two looks for cycles: our own data have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the embedded API server runs."""

    data: Path
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

    names: Sequence[str] = ()
    """More host names and addresses for the certificates."""

    limits: Limits = field(default_factory=Limits)
    """What clients may take of the listener."""

    collect_garbage: bool = True
    """Whether objects whose owners are gone are deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
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
async def running(settings: Settings) -> AsyncIterator[Running]:
    """The API server, for the length of the block."""
    ensure_private_dir(settings.data)
    made = pki.ensure(settings.data / "pki", names=(settings.host, *settings.names))
    owned = tokens.ensure(settings.data / "tokens.json")
    listener = settings.listener or socket.create_server(
        (settings.host, settings.port), backlog=2048
    )
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"https://{host}:{port}"
    path = settings.data / "kubeconfig"
    access = ClusterAccess(server=url, ca=made.ca_data, user="admin", token=owned["admin"])
    _write_kubeconfig(path, access)
    engine = _Engine(settings, made, owned, f"{host}:{port}")
    try:
        async with engine.running(), _listening(listener, engine.app, made, limits=settings.limits):
            yield Running(
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


class _Engine:
    """Everything behind the HTTP side."""

    def __init__(self, settings: Settings, made: Pki, owned: Tokens, address: str) -> None:
        self._settings = settings
        self._registry = Registry(Store(settings.data / "cluster.db"))
        self._catalog = Catalog()
        lookup = HeadLookup(self._registry, self._catalog)
        admission = Admission(lookup, settings.webhooks)
        self._writer = Writer(self._registry, self._catalog, admission)
        deleter = Deleter(self._writer)
        self._relay = LogRelay(_client_context(made))
        tools = Tools(writer=self._writer, deleter=deleter, catalog=self._catalog)
        self._standing = Standing(tools, address=address, namespaces=bootstrap.SYSTEM_NAMESPACES)
        self._keepers: list[Keeper] = [
            Definer(tools),
            Landlord(tools, ca=made.ca_data),
            self._standing,
            Sweeper(tools),
            VolumeController(tools),
            DisruptionController(tools),
        ]
        if settings.collect_garbage:
            self._keepers.append(Collector(tools))
        known = Authenticator(
            {
                owned[user]: User(name=user, uid=user, groups=groups)
                for user, groups in USERS.items()
            }
        )
        handlers = Handlers(
            reader=Reader(self._registry),
            writer=self._writer,
            deleter=deleter,
            pods=PodParts(self._writer, deleter, _pod_kinds(self._catalog), self._relay),
            known=known,
        )
        self.app = App(
            catalog=self._catalog,
            handlers=handlers,
            known=known,
            figures=Figures(self._registry.shelves, self._registry.failures),
            address=address,
            writable=lambda: self._registry.writable,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        registry = self._registry
        for keeper in self._keepers:
            # The definer comes first: what it serves has its objects loaded for the others.
            for kind in self._catalog.stored():
                registry.shelf(kind)
            keeper.start()
            registry.listeners.append(keeper.notice)
        registry.replay()
        committing = asyncio.create_task(
            supervise("store", registry.run, may_end=lambda: registry.stopping)
        )
        keeping = [asyncio.create_task(keeper.run()) for keeper in self._keepers]
        try:
            try:
                await self._fill()
            except StatusError:
                if registry.writable:
                    raise
                # What is there can be read, and deleted to make space.
                log.exception("cannot make what every cluster has")
                filling = supervise("fill", self._fill_later, may_end=lambda: self.app.ready)
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
            await self._relay.close()

    async def _fill(self) -> None:
        await bootstrap.fill(self._writer, self._catalog, self._settings.crds)
        await self._established()
        self.app.ready = True

    async def _fill_later(self) -> None:
        """Try again until there is space."""
        while not self.app.ready:
            await asyncio.sleep(FILL_AGAIN_AFTER)
            try:
                await self._fill()
            except StatusError:
                log.warning("still cannot make what every cluster has", exc_info=True)

    async def _established(self) -> None:
        """Wait until the definitions are served, and what every cluster has is there."""
        for definition in self._settings.crds:
            while not self._catalog.defined(definition["metadata"]["name"]):
                await self._next_version()
        while not self._standing.complete:
            await self._next_version()

    async def _next_version(self) -> None:
        await self._registry.reach(self._registry.committed_rv + 1, within=START_SECONDS)


def _pod_kinds(catalog: Catalog) -> PodKinds:
    return PodKinds(
        pods=catalog.known(names.PODS),
        nodes=catalog.known(names.NODES),
        budgets=catalog.known(names.POD_DISRUPTION_BUDGETS),
    )


def _client_context(made: Pki) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.ca))
    context.load_cert_chain(made.client.certificate, made.client.key)
    # Agents are reached by addresses that their certificates may not name; the authority decides.
    context.check_hostname = False
    return context


@asynccontextmanager
async def _listening(
    listener: socket.socket, app: App, made: Pki, *, limits: Limits
) -> AsyncIterator[None]:
    """Serve *app* on *listener*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server.certificate, made.server.key)
    connections = Connections(app, knows=app.knows, limits=limits, metrics=app.figures.listeners)
    connections.listen(listener, tls=context)
    try:
        yield
    finally:
        connections.stop()
        app.handlers.writer.registry.end_streams()
        await connections.close(DRAIN_SECONDS)
