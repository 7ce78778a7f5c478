"""Self-signed serving certificate in a Secret common to all replicas.

The first replica creates the Secret; all serve its contents and watch it. The leader performs the
steps of :mod:`.cert_rotation`. A Secret created by others is served as it is, and never written.
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
"""Seconds after a write until the Secret is checked again, unless an event arrives earlier."""

MANAGED_BY = "app.kubernetes.io/managed-by"
_MANAGER_NAME = "batholith"


class Secret(ApiStruct, frozen=True):
    """A Secret; values are decoded to bytes."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSettings:
    """Name of the Secret, and hosts and lifetimes of its certificates."""

    namespace: str
    hosts: Sequence[str]
    name: str = "batholith-admission-secret"
    rotation_policy: RotationPolicy = field(default_factory=RotationPolicy)


class SecretCertProvider:
    """Serves and rotates the certificate in the Secret."""

    def __init__(
        self,
        client: Client,
        settings: SecretSettings,
        serving_certificate: ServingCertificate,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """Call *changed* on every event of the Secret."""
        self._client = client
        self._settings = settings
        self._serving_certificate = serving_certificate
        self._clock = clock
        self._changed = changed
        self._last_valid: CertBundle | None = None
        """Last valid bundle observed."""
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
        """Informers that must be synced before :meth:`start`."""
        return (self._informer,)

    @property
    def ca_bundle(self) -> bytes:
        """CA bundle for webhook configurations; empty while unknown."""
        found = self._informer.get(self._key)
        if found is not None:
            bundle = CertBundle.from_secret_data(found.data)
            if bundle.is_valid or not _is_managed(found):
                return bundle.ca_bundle
        return b"" if self._last_valid is None else self._last_valid.ca_bundle

    async def start(self) -> None:
        """Create the Secret if it does not exist, and wait until a certificate is served."""
        backoff = Backoff(cap=5.0)
        while not self._serving_certificate.current:
            self._secret_observed.clear()
            delay = _RECHECK_DELAY
            if self._informer.get(self._key) is None:
                try:
                    await self._create(
                        initial_bundle(self._facts(-1), self._settings.rotation_policy)
                    )
                except (ApiError, ConnectionLostError) as error:
                    log.warning(
                        "cannot create Secret", extra={"secret": self._key, "error": str(error)}
                    )
                    delay = backoff.next_delay()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._secret_observed.wait(), delay)

    async def watch(self) -> None:
        """Do nothing: the informer watches the Secret."""

    async def renew(self, *, propagated_for: float) -> float:
        """Perform the next rotation step if one is due; called repeatedly by the leader.

        Args:
            propagated_for: seconds for which all configurations have had :attr:`ca_bundle`;
                negative if not yet.

        Returns:
            Maximum number of seconds until the next call.

        Raises:
            ApiError, ConnectionLostError: a write failed; retry.
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
            log.warning("Secret invalid, regenerating certificates", extra={"secret": self._key})
            await self._write(found, self._repaired(facts))
            return _RECHECK_DELAY
        next_bundle, delay = next_step(bundle, facts, self._settings.rotation_policy)
        if next_bundle is None:
            return delay
        await self._write(found, next_bundle)
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
        """Return a replacement based on the last valid bundle, so that the served one stays valid.

        Deleting the Secret thus forces a rotation.
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
            is_new = self._serving_certificate.load(bundle.certificate, bundle.key)
        except CertificateError as error:
            log.error("cannot serve certificate", extra={"secret": self._key, "error": str(error)})
            return
        if is_new:
            self._served = (bundle.certificate, self._clock.monotonic())
            log.info("serving certificate replaced", extra={"secret": self._key})
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
            log.info("Secret created by another replica", extra={"secret": self._key})
        else:
            log.info("created Secret", extra={"secret": self._key})

    async def _write(self, found: Secret, bundle: CertBundle) -> None:
        meta = found.metadata
        body = {
            "metadata": {"resourceVersion": meta.resource_version},
            "data": bundle.to_secret_data(),
        }
        try:
            await self._client.patch(SECRETS, meta.name, body, namespace=meta.namespace)
        except (ConflictError, NotFoundError):
            return  # The informer's event triggers the next sync.
        log_fields = {"secret": self._key, "prepared": bool(bundle.next_certificate)}
        log.info("updated Secret", extra=log_fields)


def _is_managed(found: Secret) -> bool:
    return found.metadata.labels.get(MANAGED_BY) == _MANAGER_NAME
