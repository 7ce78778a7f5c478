"""The process ``batholith api``: the application on uvicorn, and the task that follows Commands."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvicorn

from ..httpserver.limits import Limits
from ..httpserver.metrics import ListenerMetrics
from ..kube.client.client import Client
from ..kube.supervision import supervise
from ..machinery.clock import Clock
from ..machinery.file_watcher import FileWatcher
from ..machinery.serving_certificate import ServingCertificate, key_pair_watcher
from ..store.commands import CommandStore
from ..store.database import Database, SchemaTooNewError, StoreError
from ..store.migrations import MIGRATIONS
from .app import AppState, create_app
from .auth import AccessReviewer
from .commands import CommandService
from .limited_server import LimitedServer

log = logging.getLogger(__name__)

DRAIN_TIMEOUT = 5
"""How long a stop waits for answers that are under way."""

STORE_RETRY_INTERVAL = 1.0
"""Seconds between two attempts to bring the schema up to date."""


class CertificateFilesError(ValueError):
    """The files of the certificate cannot be served; the text names them and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPairFiles:
    """Paths of PEM files: a certificate, or a chain of them, and the key of the first."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Where the REST API listens and keeps its history."""

    store_url: str
    """An SQLAlchemy URL; each replica of one installation takes the same."""

    listener: socket.socket
    """A bound socket; its owner chose the address (loopback unless asked)."""

    certificate: KeyPairFiles | None = None
    """Served by HTTPS and read again when it changes; without it the API is plain HTTP."""

    limits: Limits = field(default_factory=Limits)
    """What clients may take of the listener."""

    listener_metrics: ListenerMetrics = field(default_factory=ListenerMetrics)
    """Counts what is refused."""


class _Server(LimitedServer):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The process stops by cancelling its tasks; a server that takes the signals hides them.
        yield


async def serve(
    client: Client,
    settings: ApiSettings,
    *,
    clock: Clock,
    ready: asyncio.Event | None = None,
) -> None:
    """Serve until cancelled; *ready* is set when requests are answered and Commands followed.

    Raises:
        CertificateFilesError: the certificate cannot be served.
        StoreError: the store's URL cannot be used, or its schema is that of a newer version.
    """
    presenter, files = ServingCertificate(), None
    if settings.certificate is not None:
        files = _load_certificate(settings.certificate, presenter)
    database = Database(settings.store_url)
    try:
        store = CommandStore(database)
        commands = CommandService(client, store, clock=clock)
        parts = AppState(
            client=client,
            reviewer=AccessReviewer(client, clock=clock),
            commands=commands,
            store=store,
        )
        server = _new_server(parts, settings, None if files is None else presenter.context)
        following = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            work = partial(commands.run, ready=following)
            tasks.create_task(supervise("rest commands", work))
            prepare = partial(_migrate_store, database, clock, following=following, ready=ready)
            tasks.create_task(
                supervise("store schema", prepare, may_end=lambda: True, fatal=(SchemaTooNewError,))
            )
            if files is not None:
                tasks.create_task(supervise("certificate files", partial(files.watch, clock)))
            _log_address(settings)
            serving = asyncio.create_task(server.serve(sockets=[settings.listener]))
            try:
                await asyncio.shield(serving)
                raise RuntimeError("the HTTP server ended by itself")
            finally:
                # Answers under way are finished before the listener goes.
                server.should_exit = True
                await serving
    except ExceptionGroup as group:
        newer = group.subgroup(SchemaTooNewError)
        if newer is None:
            raise
        raise newer.exceptions[0] from None
    finally:
        await database.close()


async def _migrate_store(
    database: Database, clock: Clock, *, following: asyncio.Event, ready: asyncio.Event | None
) -> None:
    """Bring the schema up to date, however long the database takes to answer; then tell *ready*.

    Raises:
        SchemaTooNewError: the database was written by a newer version.
    """
    complaint = ""
    while True:
        try:
            await database.migrate(MIGRATIONS)
            break
        except SchemaTooNewError:
            raise
        except StoreError as error:
            if str(error) != complaint:
                log.warning("not ready yet", extra={"error": str(error)})
            complaint = str(error)
        await clock.sleep(STORE_RETRY_INTERVAL)
    await following.wait()
    if ready is not None:
        ready.set()


def _load_certificate(pair: KeyPairFiles, serving_certificate: ServingCertificate) -> FileWatcher:
    """Have *presenter* serve *pair*; the files to follow.

    Raises:
        CertificateFilesError: it cannot.
    """
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
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    log.info("listening", extra={"serves": "rest", "address": where, "scheme": scheme})


def _new_server(state: AppState, settings: ApiSettings, tls: ssl.SSLContext | None) -> _Server:
    """The HTTP server over *parts*."""
    config = uvicorn.Config(
        create_app(state),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_TIMEOUT,
    )
    config.load()
    config.ssl = tls
    return _Server(config, limits=settings.limits, metrics=settings.listener_metrics)
