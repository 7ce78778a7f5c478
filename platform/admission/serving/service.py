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
from .ca_injector import Trust
from .cert_files import CertificateFiles, FileCertificates
from .cert_secret import SecretCertificates, SecretSettings
from .handler import Desk
from .leader_tasks import Certificates, Office
from .object_reader import CONSULTED, Shelves
from .registration import Registration, Target
from .server import ReviewServer, serving

log = logging.getLogger(__name__)


class UnknownPathsError(ValueError):
    """A path at which no rule can be served; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and how reviews are taken."""

    address: str = "127.0.0.1"
    """Empty: all addresses."""
    port: int = 8443
    """0: a free one."""
    linger: float = 0.0
    """Seconds at the end in which reviews still are taken: others hear late that we are leaving."""
    grace: float = 30.0
    """Seconds that reviews in hand have after that."""
    limits: Limits = field(default_factory=Limits)
    """What clients may take of the listener."""
    figures: ListenerMetrics = field(default_factory=ListenerMetrics)
    """Counts what is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an administrator decides."""

    paths: Sequence[str]
    """What is served, e.g. ``/jobs/validate``."""
    target: Target
    """How API servers find us."""
    certificates: CertificateFiles | SecretSettings
    settings: AdmissionSettings = field(default_factory=AdmissionSettings)
    place: Place = field(default_factory=Place)
    resource_groups: Path | None = None
    """What pods are given at ``/pods/mutate``; read again when it changes."""
    exempt: Sequence[str] = ("kube-system",)
    """Namespaces that configurations of our own making leave alone."""
    prefix: str = "batholith"
    """What the names of our webhook configurations begin with."""
    register: bool = False
    """Whether webhook configurations that are missing are made."""
    elector: Callable[[], LeaderElector] | None = None
    """Makes a candidate for the office; without it the office is ours."""

    def chosen(self, settings: AdmissionSettings) -> tuple[Webhook, ...]:
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
        options: Options,
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
        chosen, changed = options.chosen(options.settings), asyncio.Event()
        consulted = {each for path in options.paths for each in CONSULTED.get(path, ())}
        self._options = options
        self._clock = clock
        self._presenter = ServingCertificate()
        self._shelves = Shelves(client, consulted)
        self._desk = Desk(chosen, self._shelves, registry=registry)
        self._certificates = _certificates(
            client, options.certificates, self._presenter, clock=clock, changed=changed.set
        )
        registration = Registration(
            webhooks=chosen,
            target=options.target,
            prefix=options.prefix,
            exempt=options.exempt,
            create=options.register,
        )
        self._office = Office(
            Trust(client, registration, clock=clock, changed=changed.set),
            self._certificates,
            clock=clock,
            elector=options.elector,
            changed=changed,
        )

    @property
    def caches(self) -> Sequence[Informer[Any]]:
        """What must be synced before reviews are taken."""
        return (*self._shelves.caches, *self._certificates.caches)

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Run until cancelled; *ready* is set when reviews are taken.

        Raises:
            OSError: the address cannot be listened on, or a certificate file not be read.
            ValueError: files hold no certificate that can be served.
        """
        with _alone():
            async with running_sources(self.caches):
                await self._certificates.start()
                await self._serve(ready or asyncio.Event())

    async def _serve(self, ready: asyncio.Event) -> None:
        place = self._options.place
        beside = [
            # A certificate in a Secret is followed by its cache, and this returns at once.
            supervise("serving certificate", self._certificates.follow, may_end=lambda: True),
            supervise("webhook registration", self._office.run),
        ]
        if self._options.resource_groups is not None:
            follow = partial(self._follow_groups, self._options.resource_groups)
            beside.append(supervise("resource groups", follow))
        server = ReviewServer(
            self._presenter,
            address=place.address,
            port=place.port,
            limits=place.limits,
            figures=place.figures,
        )
        async with serving(server, self._desk, grace=place.grace) as self.url:
            log.info("listening", extra={"serves": "webhooks", "address": self.url})
            ready.set()
            try:
                async with asyncio.TaskGroup() as tasks:
                    for work in beside:
                        tasks.create_task(work)
            finally:
                self.url, server.leaving = "", True
                await self._clock.sleep(place.linger)

    async def _follow_groups(self, path: Path) -> None:
        def take(contents: list[bytes]) -> None:
            groups = resource_groups.read(contents[0])
            settings = replace(self._options.settings, resource_groups=groups)
            self._desk.replace(self._options.chosen(settings))

        await FileWatcher([path], take).watch(self._clock)


def _certificates(
    client: Client,
    options: CertificateFiles | SecretSettings,
    presenter: ServingCertificate,
    *,
    clock: Clock,
    changed: Callable[[], None],
) -> Certificates:
    if isinstance(options, CertificateFiles):
        return FileCertificates(options, presenter, clock=clock, changed=changed)
    return SecretCertificates(client, options, presenter, clock=clock, changed=changed)


@contextmanager
def _alone() -> Iterator[None]:
    """An error that came alone is raised alone, so that a command can tell it in a line."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None
