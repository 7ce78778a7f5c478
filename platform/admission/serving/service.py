"""The part as a whole: caches and certificate first, then reviews, and the office beside them."""

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
    """A path at which no rule can be served; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Where and how reviews are taken."""

    address: str = "127.0.0.1"
    """Empty: all addresses."""
    port: int = 8443
    """0: a free one."""
    shutdown_delay: float = 0.0
    """Seconds at the end in which reviews still are taken: others hear late that we are leaving."""
    shutdown_timeout: float = 30.0
    """Seconds that reviews in hand have after that."""
    limits: Limits = field(default_factory=Limits)
    """What clients may take of the listener."""
    metrics: ListenerMetrics = field(default_factory=ListenerMetrics)
    """Counts what is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """What an administrator decides."""

    paths: Sequence[str]
    """What is served, e.g. ``/jobs/validate``."""
    endpoint: WebhookEndpoint
    """How API servers find us."""
    certificates: CertificateFiles | SecretSettings
    settings: AdmissionSettings = field(default_factory=AdmissionSettings)
    listen: ListenOptions = field(default_factory=ListenOptions)
    resource_groups: Path | None = None
    """What pods are given at ``/pods/mutate``; read again when it changes."""
    exempt_namespaces: Sequence[str] = ("kube-system",)
    """Namespaces that configurations of our own making leave alone."""
    prefix: str = "batholith"
    """What the names of our webhook configurations begin with."""
    register: bool = False
    """Whether webhook configurations that are missing are made."""
    new_elector: Callable[[], LeaderElector] | None = None
    """Makes a candidate for the office; without it the office is ours."""

    def enabled_webhooks(self, settings: AdmissionSettings) -> tuple[Webhook, ...]:
        """The webhooks at :attr:`paths`.

        Raises:
            UnknownPathsError: there is none at one of them.
        """
        known = {webhook.path: webhook for webhook in webhooks(settings)}
        unknown = [path for path in self.paths if path not in known]
        if unknown:
            raise UnknownPathsError(
                f"there is no admission at {', '.join(unknown)}; it is at {', '.join(known)}"
            )
        return tuple(known[path] for path in self.paths)


class AdmissionService:
    """Answers reviews until cancelled."""

    def __init__(
        self,
        client: Client,
        options: AdmissionOptions,
        *,
        clock: Clock,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Put it together.

        Raises:
            UnknownPathsError: something is to be served that there is not.
        """
        self.url = ""
        """Where reviews are taken; empty until they are."""
        chosen, changed = options.enabled_webhooks(options.settings), asyncio.Event()
        consulted = {each for path in options.paths for each in LOOKED_UP_RESOURCES.get(path, ())}
        self._options = options
        self._clock = clock
        self._serving_certificate = ServingCertificate()
        self._reader = InformerReader(client, consulted)
        self._handler = AdmissionHandler(chosen, self._reader, registry=registry)
        self._certificates = _new_certificate_provider(
            client,
            options.certificates,
            self._serving_certificate,
            clock=clock,
            changed=changed.set,
        )
        registration = Registration(
            webhooks=chosen,
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
        """What must be synced before reviews are taken."""
        return (*self._reader.informers, *self._certificates.informers)

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Run until cancelled; *ready* is set when reviews are taken.

        Raises:
            OSError: the address cannot be listened on, or a certificate file not be read.
            ValueError: files hold no certificate that can be served.
        """
        with _unwrap_single_error():
            async with running_sources(self.informers):
                await self._certificates.start()
                await self._serve(ready or asyncio.Event())

    async def _serve(self, ready: asyncio.Event) -> None:
        place = self._options.listen
        beside = [
            # A certificate in a Secret is followed by its cache, and this returns at once.
            supervise("serving certificate", self._certificates.watch, may_end=lambda: True),
            supervise("webhook registration", self._leader_tasks.run),
        ]
        if self._options.resource_groups is not None:
            follow = partial(self._watch_resource_groups, self._options.resource_groups)
            beside.append(supervise("resource groups", follow))
        server = ReviewServer(
            self._serving_certificate,
            address=place.address,
            port=place.port,
            limits=place.limits,
            metrics=place.metrics,
        )
        async with serve_until_exit(
            server, self._handler, shutdown_timeout=place.shutdown_timeout
        ) as self.url:
            log.info("listening", extra={"serves": "webhooks", "address": self.url})
            ready.set()
            try:
                async with asyncio.TaskGroup() as tasks:
                    for work in beside:
                        tasks.create_task(work)
            finally:
                self.url, server.draining = "", True
                await self._clock.sleep(place.shutdown_delay)

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
    """An error that came alone is raised alone, so that a command can tell it in a line."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None
