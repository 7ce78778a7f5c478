"""Certificates of our own making, in a Secret that all replicas share.

Whoever comes first creates it; all serve what it holds, and follow it by watch. One of them, the
leader, takes the steps of :mod:`.bundles`. A Secret that somebody else has put there is served and
trusted as it is, and never written.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ...kube.client.client import Client
from ...kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ConnectionLostError,
    NotFoundError,
)
from ...kube.informer.informer import Informer
from ...kube.timing import Backoff
from ...machinery.clock import Clock
from ...machinery.serving_certificate import CertificateError, ServingCertificate
from ...model.base import Part
from ...model.meta import ObjectMeta
from ...model.names import SECRETS
from .cert_rotation import Bundle, Facts, Lifetimes, begin, next_step, prepare

log = logging.getLogger(__name__)

_SOON = 1.0
"""Seconds after which to look at what was written, should we not hear of it before."""

MANAGED_BY = "app.kubernetes.io/managed-by"
_US = "batholith"


class SecretView(Part, frozen=True):
    """A Secret; its values are bytes here."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSettings:
    """Which Secret, and whom its certificates are for."""

    namespace: str
    hosts: Sequence[str]
    name: str = "batholith-admission-secret"
    lifetimes: Lifetimes = field(default_factory=Lifetimes)


class SecretCertificates:
    """Has *presenter* show what the Secret holds, and keeps that good."""

    def __init__(
        self,
        client: Client,
        settings: SecretSettings,
        presenter: ServingCertificate,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """*changed* is called when the Secret has."""
        self._client = client
        self._settings = settings
        self._presenter = presenter
        self._clock = clock
        self._changed = changed
        self._last: Bundle | None = None
        """The last sound bundle that was seen."""
        self._arrived = asyncio.Event()
        self._served: tuple[bytes, float] = (b"", 0.0)
        self._cache = Informer(
            client,
            SECRETS,
            SecretView,
            namespace=settings.namespace,
            field_selector=f"metadata.name={settings.name}",
        )
        self._cache.add_event_handler(self._take)

    @property
    def caches(self) -> Sequence[Informer[SecretView]]:
        """What must run and be synced first."""
        return (self._cache,)

    @property
    def trusted(self) -> bytes:
        """The authorities that configurations are to name; empty while they are not known."""
        found = self._cache.get(self._key)
        if found is not None:
            bundle = Bundle.read(found.data)
            if bundle.sound or not _is_ours(found):
                return bundle.trusted
        return b"" if self._last is None else self._last.trusted

    async def start(self) -> None:
        """Create the Secret if nobody has, and wait until there is something to serve."""
        backoff = Backoff(cap=5.0)
        while not self._presenter.current:
            self._arrived.clear()
            pause = _SOON
            if self._cache.get(self._key) is None:
                try:
                    await self._create(begin(self._facts(-1), self._settings.lifetimes))
                except (ApiError, ConnectionLostError) as error:
                    log.warning("not created", extra={"secret": self._key, "error": str(error)})
                    pause = backoff.next_delay()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), pause)

    async def follow(self) -> None:
        """The watch is enough."""

    async def renew(self, *, spread_for: float) -> float:
        """Take the next step, if one is due; the leader calls this again and again.

        Args:
            spread_for: seconds for which all configurations have named :attr:`trusted`; below 0:
                they do not yet.

        Returns:
            Seconds after which to call again at the latest.

        Raises:
            ApiError, ConnectionLostError: it cannot be written; try again.
        """
        found = self._cache.get(self._key)
        if found is not None and not _is_ours(found):
            return self._settings.lifetimes.retire
        facts = self._facts(spread_for)
        if found is None:
            await self._create(self._mended(facts))
            return _SOON
        bundle = Bundle.read(found.data)
        if not bundle.sound:
            log.warning("the Secret is damaged, and is mended", extra={"secret": self._key})
            await self._write(found, self._mended(facts))
            return _SOON
        wanted, pause = next_step(bundle, facts, self._settings.lifetimes)
        if wanted is None:
            return pause
        await self._write(found, wanted)
        return _SOON

    @property
    def _key(self) -> str:
        return f"{self._settings.namespace}/{self._settings.name}"

    def _facts(self, spread_for: float) -> Facts:
        certificate, since = self._served
        served_for = self._clock.monotonic() - since if certificate else 0.0
        return Facts(
            now=self._clock.now(),
            hosts=self._settings.hosts,
            spread_for=spread_for,
            served_for=served_for,
        )

    def _mended(self, facts: Facts) -> Bundle:
        """In the place of what was lost: what we know of it, so that what is served stays good.

        Taking the Secret away is thus the way to ask for a new certificate.
        """
        last = self._last
        if last is None:
            return begin(facts, self._settings.lifetimes)
        return last if last.next_certificate else prepare(last, facts, self._settings.lifetimes)

    def _take(self, old: SecretView | None, new: SecretView | None) -> None:
        self._arrived.set()
        self._changed()
        if new is None:
            return
        bundle = Bundle.read(new.data)
        try:
            shown = self._presenter.load(bundle.certificate, bundle.key)
        except CertificateError as error:
            log.error("not served", extra={"secret": self._key, "error": str(error)})
            return
        if shown:
            self._served = (bundle.certificate, self._clock.monotonic())
            log.info("serving another certificate", extra={"secret": self._key})
        if bundle.sound:
            self._last = bundle

    async def _create(self, bundle: Bundle) -> None:
        body = {
            "metadata": {"name": self._settings.name, "labels": {MANAGED_BY: _US}},
            "type": "Opaque",
            "data": {name: value for name, value in bundle.data().items() if value is not None},
        }
        try:
            await self._client.create(SECRETS, body, namespace=self._settings.namespace)
        except AlreadyExistsError:
            log.info("somebody else was first", extra={"secret": self._key})
        else:
            log.info("created", extra={"secret": self._key})

    async def _write(self, found: SecretView, bundle: Bundle) -> None:
        meta = found.metadata
        body = {"metadata": {"resourceVersion": meta.resource_version}, "data": bundle.data()}
        try:
            await self._client.patch(SECRETS, meta.name, body, namespace=meta.namespace)
        except (ConflictError, NotFoundError):
            return  # it has changed, which we will hear of
        log.info("written", extra={"secret": self._key, "prepared": bool(bundle.next_certificate)})


def _is_ours(found: SecretView) -> bool:
    return found.metadata.labels.get(MANAGED_BY) == _US
