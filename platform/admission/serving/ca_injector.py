"""Inject the ``caBundle`` into webhook configurations."""

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
    """Fields of a webhook configuration that the injector reads."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_WebhookEntry, ...] = ()


class CaInjector:
    """Creates this installation's webhook configurations and keeps their ``caBundle`` current."""

    def __init__(
        self,
        client: Client,
        registration: Registration,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """Call *changed* on every event of a configuration."""
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
            informer = Informer(
                client, resource, WebhookConfiguration, field_selector=f"metadata.name={name}"
            )
            informer.add_event_handler(lambda old, new: changed())
            self._informers[name] = (webhook, resource, informer)

    @property
    def informers(self) -> Sequence[Informer[WebhookConfiguration]]:
        """Informers that must be synced before :meth:`inject`."""
        return tuple(informer for _, _, informer in self._informers.values())

    def propagated_for(self, bundle: bytes) -> float:
        """Return for how many seconds all configurations have had *bundle*; negative if not yet."""
        if self._propagated is None or self._propagated[0] != bundle:
            return -1.0
        return self._clock.monotonic() - self._propagated[1]

    async def inject(self, bundle: bytes) -> None:
        """Write *bundle* (PEM) to all configurations; create missing ones if enabled.

        Raises:
            ApiError, ConnectionLostError: a write failed; retry.
        """
        complete = True
        for name, (webhook, resource, informer) in self._informers.items():
            found = informer.get(name)
            if found is None:
                complete &= not await self._create(webhook, bundle)
            elif outdated := self._outdated(found, bundle):
                complete = False
                await self._write(resource, found, outdated, bundle)
        if not complete:
            self._propagated = None
        elif self._propagated is None or self._propagated[0] != bundle:
            self._propagated = (bundle, self._clock.monotonic())

    async def _create(self, webhook: Webhook, bundle: bytes) -> bool:
        """Create a configuration if enabled; return whether it is enabled."""
        if not self._registration.create:
            return False
        name = self._registration.configuration_name(webhook)
        try:
            body = self._registration.configuration(webhook, bundle=bundle)
            await self._client.create(self._registration.configuration_resource(webhook), body)
        except AlreadyExistsError:
            return True
        log.info("created webhook configuration", extra={"configuration": name})
        return True

    def _outdated(self, found: WebhookConfiguration, bundle: bytes) -> list[str]:
        """Return the webhooks in *found* that target this service and lack *bundle*."""
        name, endpoint = found.metadata.name, self._registration.endpoint
        own = [each for each in found.webhooks if _targets(each.client_config, endpoint)]
        if not own and name not in self._foreign:
            self._foreign.add(name)
            log.warning(
                "skipping webhook configuration owned by another service",
                extra={"configuration": name},
            )
        return [each.name for each in own if each.client_config.ca_bundle != bundle]

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
            return  # The informer's event triggers the next sync.
        log.info("caBundle updated", extra={"configuration": meta.name})


def _targets(config: _ClientConfig, endpoint: WebhookEndpoint) -> bool:
    if config.service is not None:
        return (config.service.namespace, config.service.name) == (
            endpoint.namespace,
            endpoint.service,
        )
    return bool(endpoint.url) and config.url.startswith(endpoint.url.rstrip("/") + "/")
