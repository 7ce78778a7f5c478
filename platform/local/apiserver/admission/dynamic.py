"""Admission by the webhooks and policies that users configure, kept up to date with them."""

from collections.abc import Callable, Iterable, Iterator

from ....model.names import NAMESPACES, Resource
from ..authorization.authorizer import Authorizer
from ..discovery.catalog import Catalog
from ..http.auth import APISERVER_USER
from ..http.requests import Json
from ..kinds.groups import ADMISSION
from ..storage.object_store import ObjectStore
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from .attributes import AdmissionAttributes
from .policies import BINDING, POLICY, Policies, Readers
from .responses import WebhookNeededError, WebhookResponses
from .services import ServiceResolver
from .webhook_client import WebhookClient
from .webhooks import MUTATING, VALIDATING, Webhooks

RESOURCES = tuple(
    Resource(ADMISSION, "v1", plural, kind, namespaced=False)
    for plural, kind in (
        ("mutatingwebhookconfigurations", MUTATING),
        ("validatingwebhookconfigurations", VALIDATING),
        ("validatingadmissionpolicies", POLICY),
        ("validatingadmissionpolicybindings", BINDING),
    )
)
"""What configures admission."""


class DynamicAdmission:
    """What users configure: without any configuration, each write checks three empty tuples."""

    def __init__(
        self,
        store: ObjectStore,
        catalog: Catalog,
        authorizer: Authorizer,
        *,
        get: Callable[[Resource, str, str], Json | None],
        list_all: Callable[[Resource], Iterable[Json]],
    ) -> None:
        """*get* and *list_all* return objects as the write under review finds them."""
        self._store = store
        self._catalog = catalog

        def namespace(name: str) -> Json | None:
            return get(NAMESPACES, "", name)

        self._webhooks = Webhooks(
            namespace=namespace, equivalents=catalog.equivalents, authorizer=authorizer
        )
        readers = Readers(namespace, catalog.kind_named, get, list_all, catalog.equivalents)
        self._policies = Policies(readers, authorizer)
        self.services = ServiceResolver(self._committed, self._committed_in)
        """Finds the endpoints of Services in the committed state."""

        self._client = WebhookClient(self.services)
        self._stores: dict[ResourceStore, str] = {}

    def rebuild(self) -> None:
        """Read all configurations."""
        for resource in RESOURCES:
            resource_store = self._store.resource_store(self._catalog.require(resource))
            self._stores[resource_store] = resource.kind
            self._configure(resource_store)

    def observe(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Apply a committed change."""
        if resource_store in self._stores:
            self._configure(resource_store)

    def _configure(self, resource_store: ResourceStore) -> None:
        kind = self._stores[resource_store]
        objects = [entry.shared() for entry in resource_store.entries()]
        if kind in (MUTATING, VALIDATING):
            self._webhooks.configure(kind, objects)
        else:
            self._policies.configure(kind, objects)

    def new_responses(self) -> WebhookResponses | None:
        """Return where a write collects the responses of webhooks; ``None`` if there are none."""
        if self._webhooks.mutating or self._webhooks.validating:
            return WebhookResponses()
        return None

    @property
    def is_configured(self) -> bool:
        """Whether there is any webhook or policy."""
        return bool(self._webhooks.mutating or self._webhooks.validating or self._policies.active)

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
        """Let policies and validating webhooks check a write.

        Raises:
            WebhookNeededError: webhooks must be called first.
            StatusError: one denies the write, or a webhook cannot be called.
        """
        if self._policies.active and attributes.user is not APISERVER_USER:
            self._policies.validate(attributes, obj)
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
