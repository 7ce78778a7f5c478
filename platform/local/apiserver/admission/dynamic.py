"""Admission by the webhooks that users configure, kept up to date with their configurations."""

from collections.abc import Callable, Iterator

from ....model.names import NAMESPACES, Resource
from ..discovery.catalog import Catalog
from ..http.requests import Json
from ..kinds.groups import ADMISSION
from ..storage.object_store import ObjectStore
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from .attributes import AdmissionAttributes
from .responses import WebhookNeededError, WebhookResponses
from .services import ServiceResolver
from .webhook_client import WebhookClient
from .webhooks import MUTATING, VALIDATING, Webhooks

MUTATING_CONFIGURATIONS = Resource(
    ADMISSION, "v1", "mutatingwebhookconfigurations", MUTATING, namespaced=False
)
VALIDATING_CONFIGURATIONS = Resource(
    ADMISSION, "v1", "validatingwebhookconfigurations", VALIDATING, namespaced=False
)


class DynamicAdmission:
    """What users configure: without any configuration, each write checks two empty tuples."""

    def __init__(
        self,
        store: ObjectStore,
        catalog: Catalog,
        get: Callable[[Resource, str, str], Json | None],
    ) -> None:
        """*get* returns an object as the write under review finds it."""
        self._store = store
        self._catalog = catalog
        self._webhooks = Webhooks(
            namespace=lambda name: get(NAMESPACES, "", name), equivalents=catalog.equivalents
        )
        self._client = WebhookClient(ServiceResolver(self._committed, self._committed_in))
        self._stores: dict[ResourceStore, str] = {}

    def rebuild(self) -> None:
        """Read all configurations."""
        for resource in (MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS):
            resource_store = self._store.resource_store(self._catalog.require(resource))
            self._stores[resource_store] = resource.kind
            self._configure(resource_store)

    def observe(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Apply a committed change."""
        if resource_store in self._stores:
            self._configure(resource_store)

    def _configure(self, resource_store: ResourceStore) -> None:
        entries = resource_store.entries()
        self._webhooks.configure(
            self._stores[resource_store], [entry.shared() for entry in entries]
        )

    def new_responses(self) -> WebhookResponses | None:
        """Return where a write collects the responses of webhooks; ``None`` if there are none."""
        if self._webhooks.mutating or self._webhooks.validating:
            return WebhookResponses()
        return None

    async def ask(self, responses: WebhookResponses, needed: WebhookNeededError) -> None:
        """Ask the webhooks that a plan needs.

        Raises:
            StatusError: 429, the object changes faster than it can be reviewed.
        """
        await responses.ask(needed, self._client.call)

    def mutate(
        self, attributes: AdmissionAttributes, obj: Json, rerun: Callable[[Json], Json]
    ) -> Json:
        """Return *obj* as mutating webhooks change it; *rerun* repeats the built-in plugins.

        Raises:
            WebhookNeededError: a webhook must be called first.
            StatusError: a webhook denies the write, or cannot be called.
        """
        if not self._webhooks.mutating or attributes.responses is None:
            return obj
        return self._webhooks.mutate(attributes, obj, rerun)

    def validate(self, attributes: AdmissionAttributes, obj: Json | None) -> None:
        """Let validating webhooks check a write.

        Raises:
            WebhookNeededError: webhooks must be called first.
            StatusError: a webhook denies the write, or cannot be called.
        """
        if self._webhooks.validating and attributes.responses is not None:
            self._webhooks.validate(attributes, obj)

    async def close(self) -> None:
        """Close the connections to webhooks."""
        await self._client.close()

    def _committed(self, resource: Resource, namespace: str, name: str) -> Json | None:
        resource_store = self._store.resource_store(self._catalog.require(resource))
        entry = resource_store.get(namespace, name)
        return entry.shared() if entry else None

    def _committed_in(self, resource: Resource, namespace: str) -> Iterator[Json]:
        resource_store = self._store.resource_store(self._catalog.require(resource))
        for entry in resource_store.ordered(namespace):
            yield entry.shared()
