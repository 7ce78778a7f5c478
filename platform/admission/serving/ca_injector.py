"""Keeps the certificates that webhook configurations trust as they should be."""

import logging
from collections.abc import Callable, Iterable, Sequence

from ...kube.client.client import Client, PatchType
from ...kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from ...kube.informer.informer import Informer
from ...machinery.clock import Clock
from ...model.admission import Webhook
from ...model.base import ApiStruct
from ...model.meta import ObjectMeta
from ...model.names import Resource
from .registration import Registration, WebhookEndpoint

log = logging.getLogger(__name__)


class _Service(ApiStruct, frozen=True):
    namespace: str = ""
    name: str = ""


class _ClientConfig(ApiStruct, frozen=True):
    ca_bundle: bytes = b""
    url: str = ""
    service: _Service | None = None


class _WebhookEntry(ApiStruct, frozen=True):
    name: str = ""
    client_config: _ClientConfig = _ClientConfig()


class WebhookConfiguration(ApiStruct, frozen=True):
    """A webhook configuration, as far as trust goes."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_WebhookEntry, ...] = ()


class CaInjector:
    """The webhook configurations of ours, each followed by its name."""

    def __init__(
        self,
        client: Client,
        registration: Registration,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """*changed* is called when a configuration has."""
        self._client = client
        self._registration = registration
        self._clock = clock
        self._propagated: tuple[bytes, float] | None = None
        self._foreign: set[str] = set()
        self._informers: dict[str, tuple[Webhook, Resource, Informer[WebhookConfiguration]]] = {}
        for webhook in registration.webhooks:
            name, resource = (
                registration.configuration_name(webhook),
                registration.configuration_resource(webhook),
            )
            cache = Informer(
                client, resource, WebhookConfiguration, field_selector=f"metadata.name={name}"
            )
            cache.add_event_handler(lambda old, new: changed())
            self._informers[name] = (webhook, resource, cache)

    @property
    def informers(self) -> Sequence[Informer[WebhookConfiguration]]:
        """What must run and be synced before :meth:`commit`."""
        return tuple(cache for _, _, cache in self._informers.values())

    def propagated_for(self, bundle: bytes) -> float:
        """Seconds for which all configurations have named *bundle*; below 0: they do not yet."""
        if self._propagated is None or self._propagated[0] != bundle:
            return -1.0
        return self._clock.monotonic() - self._propagated[1]

    async def inject(self, bundle: bytes) -> None:
        """Make all configurations trust *bundle* (PEM), and make those that are to be made.

        Raises:
            ApiError, ConnectionLostError: it cannot be written; try again.
        """
        complete = True
        for name, (webhook, resource, cache) in self._informers.items():
            found = cache.get(name)
            if found is None:
                complete &= not await self._create(webhook, bundle)
            elif late := self._outdated(found, bundle):
                complete = False
                await self._write(resource, found, late, bundle)
        if not complete:
            self._propagated = None
        elif self._propagated is None or self._propagated[0] != bundle:
            self._propagated = (bundle, self._clock.monotonic())

    async def _create(self, webhook: Webhook, bundle: bytes) -> bool:
        """Create a configuration if that is asked for; whether it is."""
        if not self._registration.create:
            return False
        name = self._registration.configuration_name(webhook)
        try:
            wanted = self._registration.configuration(webhook, bundle=bundle)
            await self._client.create(self._registration.configuration_resource(webhook), wanted)
        except AlreadyExistsError:
            return True
        log.info("registered", extra={"configuration": name})
        return True

    def _outdated(self, found: WebhookConfiguration, bundle: bytes) -> list[str]:
        """The webhooks in *found* that are ours and trust something else."""
        name, target = found.metadata.name, self._registration.endpoint
        ours = [each for each in found.webhooks if _targets(each.client_config, target)]
        if not ours and name not in self._foreign:
            self._foreign.add(name)
            log.warning("left alone: it leads to other webhooks", extra={"configuration": name})
        return [each.name for each in ours if each.client_config.ca_bundle != bundle]

    async def _write(
        self,
        resource: Resource,
        found: WebhookConfiguration,
        outdated: Iterable[str],
        bundle: bytes,
    ) -> None:
        entries = [{"name": each, "clientConfig": {"caBundle": bundle}} for each in outdated]
        meta = found.metadata
        body = {"metadata": {"resourceVersion": meta.resource_version}, "webhooks": entries}
        try:
            await self._client.patch(resource, meta.name, body, kind=PatchType.STRATEGIC)
        except (ConflictError, NotFoundError):
            return  # it has changed, which we will hear of
        log.info("trust written", extra={"configuration": meta.name})


def _targets(config: _ClientConfig, endpoint: WebhookEndpoint) -> bool:
    if config.service is not None:
        return (config.service.namespace, config.service.name) == (
            endpoint.namespace,
            endpoint.service,
        )
    return bool(endpoint.url) and config.url.startswith(endpoint.url.rstrip("/") + "/")
