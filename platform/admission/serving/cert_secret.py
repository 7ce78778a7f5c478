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
from ...model.base import ApiStruct
from ...model.meta import ObjectMeta
from ...model.names import SECRETS
from .cert_rotation import (
    CertBundle,
    RotationFacts,
    RotationPolicy,
    initial_bundle,
    next_step,
    prepare_next,
)

log = logging.getLogger(__name__)

_RECHECK_DELAY = 1.0
"""Seconds after which to look at what was written, should we not hear of it before."""

MANAGED_BY = "app.kubernetes.io/managed-by"
_MANAGER_NAME = "batholith"


class Secret(ApiStruct, frozen=True):
    """A Secret; its values are bytes here."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSettings:
    """Which Secret, and whom its certificates are for."""

    namespace: str
    hosts: Sequence[str]
    name: str = "batholith-admission-secret"
    rotation_policy: RotationPolicy = field(default_factory=RotationPolicy)


class SecretCertProvider:
    """Has *presenter* show what the Secret holds, and keeps that good."""

    def __init__(
        self,
        client: Client,
        settings: SecretSettings,
        serving_certificate: ServingCertificate,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """*changed* is called when the Secret has."""
        self._client = client
        self._settings = settings
        self._serving_certificate = serving_certificate
        self._clock = clock
        self._changed = changed
        self._last_valid: CertBundle | None = None
        """The last sound bundle that was seen."""
        self._secret_observed = asyncio.Event()
        self._served: tuple[bytes, float] = (b"", 0.0)
        self._informer = Informer(
            client,
            SECRETS,
            Secret,
            namespace=settings.namespace,
            field_selector=f"metadata.name={settings.name}",
        )
        self._informer.add_event_handler(self._on_secret)

    @property
    def informers(self) -> Sequence[Informer[Secret]]:
        """What must run and be synced first."""
        return (self._informer,)

    @property
    def ca_bundle(self) -> bytes:
        """The authorities that configurations are to name; empty while they are not known."""
        found = self._informer.get(self._key)
        if found is not None:
            bundle = CertBundle.from_secret_data(found.data)
            if bundle.is_valid or not _is_managed(found):
                return bundle.ca_bundle
        return b"" if self._last_valid is None else self._last_valid.ca_bundle

    async def start(self) -> None:
        """Create the Secret if nobody has, and wait until there is something to serve."""
        backoff = Backoff(cap=5.0)
        while not self._serving_certificate.current:
            self._secret_observed.clear()
            pause = _RECHECK_DELAY
            if self._informer.get(self._key) is None:
                try:
                    await self._create(
                        initial_bundle(self._facts(-1), self._settings.rotation_policy)
                    )
                except (ApiError, ConnectionLostError) as error:
                    log.warning("not created", extra={"secret": self._key, "error": str(error)})
                    pause = backoff.next_delay()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._secret_observed.wait(), pause)

    async def watch(self) -> None:
        """The watch is enough."""

    async def renew(self, *, propagated_for: float) -> float:
        """Take the next step, if one is due; the leader calls this again and again.

        Args:
            spread_for: seconds for which all configurations have named :attr:`ca_bundle`; below 0:
                they do not yet.

        Returns:
            Seconds after which to call again at the latest.

        Raises:
            ApiError, ConnectionLostError: it cannot be written; try again.
        """
        found = self._informer.get(self._key)
        if found is not None and not _is_managed(found):
            return self._settings.rotation_policy.old_ca_retention
        facts = self._facts(propagated_for)
        if found is None:
            await self._create(self._repaired(facts))
            return _RECHECK_DELAY
        bundle = CertBundle.from_secret_data(found.data)
        if not bundle.is_valid:
            log.warning("the Secret is damaged, and is mended", extra={"secret": self._key})
            await self._write(found, self._repaired(facts))
            return _RECHECK_DELAY
        wanted, pause = next_step(bundle, facts, self._settings.rotation_policy)
        if wanted is None:
            return pause
        await self._write(found, wanted)
        return _RECHECK_DELAY

    @property
    def _key(self) -> str:
        return f"{self._settings.namespace}/{self._settings.name}"

    def _facts(self, propagated_for: float) -> RotationFacts:
        certificate, since = self._served
        served_for = self._clock.monotonic() - since if certificate else 0.0
        return RotationFacts(
            now=self._clock.now(),
            hosts=self._settings.hosts,
            propagated_for=propagated_for,
            served_for=served_for,
        )

    def _repaired(self, facts: RotationFacts) -> CertBundle:
        """In the place of what was lost: what we know of it, so that what is served stays good.

        Taking the Secret away is thus the way to ask for a new certificate.
        """
        last = self._last_valid
        if last is None:
            return initial_bundle(facts, self._settings.rotation_policy)
        return (
            last
            if last.next_certificate
            else prepare_next(last, facts, self._settings.rotation_policy)
        )

    def _on_secret(self, old: Secret | None, new: Secret | None) -> None:
        self._secret_observed.set()
        self._changed()
        if new is None:
            return
        bundle = CertBundle.from_secret_data(new.data)
        try:
            shown = self._serving_certificate.load(bundle.certificate, bundle.key)
        except CertificateError as error:
            log.error("not served", extra={"secret": self._key, "error": str(error)})
            return
        if shown:
            self._served = (bundle.certificate, self._clock.monotonic())
            log.info("serving another certificate", extra={"secret": self._key})
        if bundle.is_valid:
            self._last_valid = bundle

    async def _create(self, bundle: CertBundle) -> None:
        body = {
            "metadata": {"name": self._settings.name, "labels": {MANAGED_BY: _MANAGER_NAME}},
            "type": "Opaque",
            "data": {
                name: value for name, value in bundle.to_secret_data().items() if value is not None
            },
        }
        try:
            await self._client.create(SECRETS, body, namespace=self._settings.namespace)
        except AlreadyExistsError:
            log.info("somebody else was first", extra={"secret": self._key})
        else:
            log.info("created", extra={"secret": self._key})

    async def _write(self, found: Secret, bundle: CertBundle) -> None:
        meta = found.metadata
        body = {
            "metadata": {"resourceVersion": meta.resource_version},
            "data": bundle.to_secret_data(),
        }
        try:
            await self._client.patch(SECRETS, meta.name, body, namespace=meta.namespace)
        except (ConflictError, NotFoundError):
            return  # it has changed, which we will hear of
        log.info("written", extra={"secret": self._key, "prepared": bool(bundle.next_certificate)})


def _is_managed(found: Secret) -> bool:
    return found.metadata.labels.get(MANAGED_BY) == _MANAGER_NAME
