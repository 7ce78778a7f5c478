"""The REST API server: the application on uvicorn, and the task that watches Commands."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
from prometheus_client import CollectorRegistry

from ...httpserver.asgi_server import serve_application
from ...httpserver.limits import Limits
from ...httpserver.metrics import ListenerMetrics
from ...kube.client.client import Client
from ...kube.supervision import supervise
from ...machinery.clock import Clock
from ...machinery.file_watcher import FileWatcher
from ...machinery.serving_certificate import KeyPairFiles, ServingCertificate, key_pair_watcher
from ...model.names import SYSTEM_NAMESPACE
from ...model.notification_destinations import NotificationRules
from ...store.commands import CommandStore
from ...store.database import TRANSACTION_TIMEOUT, Database, SchemaTooNewError, StoreError
from ...store.history import HistoryStore
from ...store.idempotency import IdempotencyStore
from ...store.migrations import MIGRATIONS
from ...store.usage import UsageStore
from ...wire.commands import QUEUES_KIND
from ..caches import EVERYTHING, Caches, CacheScope
from ..commands.outcomes import Outcomes
from ..commands.service import CommandService
from ..commands.waits import CommandWaits
from ..history.tasks import HistorySettings, run_history
from ..http.idempotency import IdempotencyService
from ..http.metrics import ApiMetrics
from ..identity.authentication import Callers, SecuritySettings
from ..identity.client_certificates import accept_client_certificates
from ..identity.own_rights import OwnCaller, OwnRightsReviewer
from ..identity.reviewer import AccessReviewer, UserInfo
from ..pages.app import Pages, PagesSettings
from ..past_usage import PastUsages
from ..routes.dependencies import AppState
from ..schemas.queues import queue_of
from ..simulation import SchedulerSimulations
from ..streams.feeds import Streams, StreamSettings
from .app import create_app
from .listener import ApiListener

log = logging.getLogger(__name__)

DRAIN_TIMEOUT = 4.0
"""Shutdown timeout for requests in flight, in seconds."""

STORE_RETRY_INTERVAL = 1.0
"""Seconds between attempts to migrate the schema."""


class CertificateFilesError(ValueError):
    """The certificate files cannot be served; the text names them and the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Settings of the REST API server."""

    store_url: str
    """SQLAlchemy URL; the same for all replicas of an installation."""

    store_timeout: float = TRANSACTION_TIMEOUT
    """Timeout of a transaction in seconds."""

    listener: socket.socket
    """A bound socket."""

    certificate: KeyPairFiles | None = None
    """Serving certificate, reloaded when it changes; without it the API serves plain HTTP."""

    security: SecuritySettings = field(default_factory=SecuritySettings)
    """Who may call, how often, and with which identity."""

    limits: Limits = field(default_factory=Limits)
    """Limits of the listener."""

    streams: StreamSettings = field(default_factory=StreamSettings)
    """Limits of server-sent events."""

    access_log: bool = False
    """Whether each request is logged."""

    registry: CollectorRegistry | None = None
    """Where the metrics are exported."""

    listener_metrics: ListenerMetrics = field(default_factory=ListenerMetrics)
    """Counters of rejected connections and requests."""

    scheduler_namespace: str = SYSTEM_NAMESPACE
    """Namespace in which the scheduler publishes where it simulates jobs."""

    pages: PagesSettings | None = None
    """How the pages are served; ``None``: they are not."""

    history: HistorySettings = field(default_factory=HistorySettings)
    """Whether the history of jobs is recorded, and how much of it is kept."""


async def serve(
    client: Client,
    settings: ApiSettings,
    *,
    clock: Clock,
    ready: asyncio.Event | None = None,
) -> None:
    """Serve until cancelled; set *ready* once the store is migrated and the informers are synced.

    Raises:
        CertificateFilesError: the certificate cannot be served.
        ClientCaError: the authorities of client certificates cannot be loaded.
        StoreError: the store's URL cannot be used, or its schema version is too new.
    """
    serving_certificate = ServingCertificate()
    if settings.registry is not None:
        settings.registry.register(serving_certificate)
    files = _load_certificates(settings, serving_certificate)
    database = Database(settings.store_url, timeout=settings.store_timeout)
    try:
        state = new_state(client, database, settings, clock)
        tls = None if files is None else serving_certificate.context
        synced = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervise("rest caches", state.caches.run))
            work = partial(state.outcomes.run, ready=synced)
            tasks.create_task(supervise("rest commands", work))
            tasks.create_task(supervise("rest streams", state.streams.run))
            tasks.create_task(state.idempotency.run())

            async def wait_synced() -> None:
                await synced.wait()
                await state.caches.wait_synced()

            prepare = partial(_migrate_store, database, clock, wait_synced=wait_synced, ready=ready)
            tasks.create_task(
                supervise("store schema", prepare, may_end=lambda: True, fatal=(SchemaTooNewError,))
            )
            work = partial(
                run_history,
                *(client, database, settings.history),
                clock=clock,
                queues=state.caches.queues,
            )
            tasks.create_task(supervise("history", work))
            if files is not None:
                tasks.create_task(supervise("certificate files", partial(files.watch, clock)))
            await _serve_http(state, settings, tls)
    except ExceptionGroup as group:
        too_new = group.subgroup(SchemaTooNewError)
        if too_new is None:
            raise
        raise too_new.exceptions[0] from None
    finally:
        await database.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """How the routes work in the process of a command line, with the rights of its user."""

    user: UserInfo
    namespace: str
    """The only one that is read; empty for all."""


def new_state(
    client: Client,
    database: Database,
    settings: ApiSettings,
    clock: Clock,
    in_process: InProcess | None = None,
) -> AppState:
    """Create what the routes depend on."""
    store = CommandStore(database)
    scope, rules = EVERYTHING, NotificationRules()
    reviewer = AccessReviewer(client, clock=clock, audiences=settings.security.audiences)
    if settings.history.notifications is not None:
        rules = NotificationRules(destinations=settings.history.notifications.destinations)
    callers: Callers
    if in_process is None:
        callers = Callers(client, reviewer, settings.security, clock=clock)
    else:
        scope = CacheScope(namespace=in_process.namespace, may_be_refused=True)
        rules = NotificationRules(is_known=False)
        reviewer = OwnRightsReviewer(client, clock=clock)
        callers = OwnCaller(client, reviewer, in_process.user, clock)
    caches = Caches(client, scope=scope)
    outcomes = Outcomes(client, store, caches, clock=clock)
    idempotency = IdempotencyService(IdempotencyStore(database), clock=clock)
    waits = CommandWaits(caches, outcomes)
    return AppState(
        client=client,
        caches=caches,
        reviewer=reviewer,
        callers=callers,
        security=settings.security,
        commands=CommandService(client, store, outcomes),
        outcomes=outcomes,
        waits=waits,
        idempotency=idempotency,
        store=store,
        streams=_new_streams(caches, settings, clock),
        metrics=ApiMetrics(settings.registry),
        history=HistoryStore(database),
        usage=UsageStore(database),
        simulations=SchedulerSimulations(client, settings.scheduler_namespace, clock=clock),
        past_usages=PastUsages(client, settings.scheduler_namespace, clock=clock),
        notifications=rules,
        clock=clock,
    )


async def _serve_http(state: AppState, settings: ApiSettings, tls: ssl.SSLContext | None) -> None:
    """Serve until cancelled, then end streams and waits, and drain requests in flight."""
    _log_address(settings)
    app = create_app(state, access_log=settings.access_log)
    pages = None
    if settings.pages is not None:
        pages = Pages(app, settings.pages, callers=state.callers, clock=state.clock)
    listener = ApiListener(
        settings.limits,
        settings.listener_metrics,
        credential_check=state.callers.find_rejection,
        pages=pages,
    )
    async with serve_application(
        pages or app, listener, [settings.listener], tls=tls, drain_timeout=DRAIN_TIMEOUT
    ):
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            state.streams.stop()
            state.waits.stop()


async def _migrate_store(
    database: Database,
    clock: Clock,
    *,
    wait_synced: Callable[[], Awaitable[None]],
    ready: asyncio.Event | None,
) -> None:
    """Migrate the schema, retrying until the database is available; set *ready* once all is synced.

    Raises:
        SchemaTooNewError: the schema is of a newer version.
    """
    last_error = ""
    while True:
        try:
            await database.migrate(MIGRATIONS)
            break
        except SchemaTooNewError:
            raise
        except StoreError as error:
            if str(error) != last_error:
                log.warning("cannot migrate the store, will retry", extra={"error": str(error)})
            last_error = str(error)
        await clock.sleep(STORE_RETRY_INTERVAL)
    await wait_synced()
    if ready is not None:
        ready.set()


def _load_certificates(
    settings: ApiSettings, serving_certificate: ServingCertificate
) -> FileWatcher | None:
    """Load the files for HTTPS; return the watcher of the serving certificate, if there is one.

    Raises:
        CertificateFilesError: the files cannot be served.
        ClientCaError: the authorities of client certificates cannot be loaded.
    """
    if settings.security.client_ca_file is not None:
        accept_client_certificates(serving_certificate.context, settings.security.client_ca_file)
    pair = settings.certificate
    if pair is None:
        return None
    files = key_pair_watcher(serving_certificate, certificate=pair.certificate, key=pair.key)
    try:
        files.poll()
    except (OSError, ValueError) as error:
        text = f"cannot serve --tls-cert-file={pair.certificate} with"
        text += f" --tls-private-key-file={pair.key}: {error}"
        raise CertificateFilesError(text) from error
    return files


def _log_address(settings: ApiSettings) -> None:
    host, port = settings.listener.getsockname()[:2]
    scheme = "http" if settings.certificate is None else "https"
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    log.info("listening", extra={"serves": "rest", "address": address, "scheme": scheme})


def _new_streams(caches: Caches, settings: ApiSettings, clock: Clock) -> Streams:
    """Create the streams of all kinds of jobs, and of queues."""
    streams = Streams(clock=clock, settings=settings.streams)
    if settings.registry is not None:
        settings.registry.register(streams.metrics)
    encode = msgspec.json.encode
    for name, cache in caches.kinds.items():
        streams.add_feed(name, cache.informer, cache.kind.summarize, encode=encode)
    streams.add_feed(QUEUES_KIND, caches.queues, queue_of, encode=encode)
    return streams
