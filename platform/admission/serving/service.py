"""The admission service: informers, serving certificate, review server and leader tasks."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from ...httpserver.limits import Limits
from ...httpserver.metrics import ListenerMetrics
from ...kube.client.client import Client
from ...kube.informer.informer import Informer
from ...kube.supervision import supervise
from ...machinery.clock import Clock
from ...machinery.file_watcher import FileWatcher
from ...machinery.leader_election import LeaderElector
from ...machinery.lifecycle import running_sources
from ...machinery.serving_certificate import ServingCertificate
from ...model.admission import Webhook
from .. import resource_groups
from ..settings import AdmissionSettings
from ..webhooks import webhooks
from .ca_injector import CaInjector
from .cert_files import CertificateFiles, FileCertProvider
from .cert_secret import SecretCertProvider, SecretSettings
from .handler import AdmissionHandler
from .leader_tasks import CertificateProvider, LeaderTasks
from .object_reader import LOOKED_UP_RESOURCES, InformerReader
from .registration import Registration, WebhookEndpoint
from .server import ReviewServer, serve_until_exit

log = logging.getLogger(__name__)


class UnknownPathsError(ValueError):
    """An enabled path has no webhook; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Options of the review server."""

    address: str = "127.0.0.1"
    """Empty for all addresses."""
    port: int = 8443
    """0 for any free port."""
    shutdown_delay: float = 0.0
    """Seconds for which to accept reviews after SIGTERM, while Service endpoints are updated."""
    shutdown_timeout: float = 30.0
    """Seconds to drain in-flight reviews after that."""
    limits: Limits = field(default_factory=Limits)
    """Limits of the listener."""
    metrics: ListenerMetrics = field(default_factory=ListenerMetrics)
    """Counters of rejected connections and requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """Options of the admission service."""

    paths: Sequence[str]
    """Admission paths to serve, e.g. ``/jobs/validate``."""
    endpoint: WebhookEndpoint
    """Address of the webhooks for API servers."""
    certificates: CertificateFiles | SecretSettings
    settings: AdmissionSettings = field(default_factory=AdmissionSettings)
    listen: ListenOptions = field(default_factory=ListenOptions)
    resource_groups: Path | None = None
    """Resource group file for ``/pods/mutate``; reloaded when it changes."""
    exempt_namespaces: Sequence[str] = ("kube-system",)
    """Namespaces excluded in created webhook configurations."""
    prefix: str = "batholith"
    """Name prefix of the webhook configurations."""
    register: bool = False
    """Whether to create missing webhook configurations."""
    new_elector: Callable[[], LeaderElector] | None = None
    """Creates a leader elector; without it this replica always leads."""

    def enabled_webhooks(self, settings: AdmissionSettings) -> tuple[Webhook, ...]:
        """Return the webhooks at :attr:`paths`.

        Raises:
            UnknownPathsError: a path has no webhook.
        """
        known = {webhook.path: webhook for webhook in webhooks(settings)}
        unknown = [path for path in self.paths if path not in known]
        if unknown:
            raise UnknownPathsError(
                f"unknown admission paths: {', '.join(unknown)}; known: {', '.join(known)}"
            )
        return tuple(known[path] for path in self.paths)


class AdmissionService:
    """Serves admission reviews until cancelled."""

    def __init__(
        self,
        client: Client,
        options: AdmissionOptions,
        *,
        clock: Clock,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Assemble the service.

        Raises:
            UnknownPathsError: a path has no webhook.
        """
        self.url = ""
        """URL of the review server; empty while it is not listening."""
        enabled, changed = options.enabled_webhooks(options.settings), asyncio.Event()
        looked_up = {each for path in options.paths for each in LOOKED_UP_RESOURCES.get(path, ())}
        self._options = options
        self._clock = clock
        self._serving_certificate = ServingCertificate()
        if registry is not None:
            registry.register(self._serving_certificate)
        self._reader = InformerReader(client, looked_up)
        self._handler = AdmissionHandler(enabled, self._reader, registry=registry)
        self._certificates = _new_certificate_provider(
            client,
            options.certificates,
            self._serving_certificate,
            clock=clock,
            changed=changed.set,
        )
        registration = Registration(
            webhooks=enabled,
            endpoint=options.endpoint,
            prefix=options.prefix,
            exempt_namespaces=options.exempt_namespaces,
            create=options.register,
        )
        self._leader_tasks = LeaderTasks(
            CaInjector(client, registration, clock=clock, changed=changed.set),
            self._certificates,
            clock=clock,
            new_elector=options.new_elector,
            changed=changed,
        )

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """Informers that must be synced before reviews are served."""
        return (*self._reader.informers, *self._certificates.informers)

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Run until cancelled; set *ready* once reviews are served.

        Raises:
            OSError: cannot listen on the address, or read a certificate file.
            ValueError: the certificate files cannot be served.
        """
        with _unwrap_single_error():
            async with running_sources(self.informers):
                await self._certificates.start()
                await self._serve(ready or asyncio.Event())

    async def _serve(self, ready: asyncio.Event) -> None:
        listen = self._options.listen
        background = [
            # With a Secret, watch returns immediately: its informer runs already.
            supervise("serving certificate", self._certificates.watch, may_end=lambda: True),
            supervise("webhook registration", self._leader_tasks.run),
        ]
        if self._options.resource_groups is not None:
            watch = partial(self._watch_resource_groups, self._options.resource_groups)
            background.append(supervise("resource groups", watch))
        server = ReviewServer(
            self._serving_certificate,
            address=listen.address,
            port=listen.port,
            limits=listen.limits,
            metrics=listen.metrics,
        )
        async with serve_until_exit(
            server, self._handler, shutdown_timeout=listen.shutdown_timeout
        ) as self.url:
            log.info("listening", extra={"serves": "webhooks", "address": self.url})
            ready.set()
            try:
                async with asyncio.TaskGroup() as tasks:
                    for work in background:
                        tasks.create_task(work)
            finally:
                self.url, server.draining = "", True
                await self._clock.sleep(listen.shutdown_delay)

    async def _watch_resource_groups(self, path: Path) -> None:
        def on_change(contents: list[bytes]) -> None:
            groups = resource_groups.parse(contents[0])
            settings = replace(self._options.settings, resource_groups=groups)
            self._handler.set_webhooks(self._options.enabled_webhooks(settings))

        await FileWatcher([path], on_change).watch(self._clock)


def _new_certificate_provider(
    client: Client,
    options: CertificateFiles | SecretSettings,
    serving_certificate: ServingCertificate,
    *,
    clock: Clock,
    changed: Callable[[], None],
) -> CertificateProvider:
    if isinstance(options, CertificateFiles):
        return FileCertProvider(options, serving_certificate, clock=clock, changed=changed)
    return SecretCertProvider(client, options, serving_certificate, clock=clock, changed=changed)


@contextmanager
def _unwrap_single_error() -> Iterator[None]:
    """Unwrap an exception group of a single error, so that the CLI can print it in one line."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None
