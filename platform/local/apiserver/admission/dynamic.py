"""Admission by the webhooks and policies that users configure, kept up to date with them."""

import copy
from collections.abc import Callable, Iterable, Iterator

from ....model.names import NAMESPACES, Resource
from ..authorization.authorizer import Authorizer
from ..discovery.catalog import Catalog
from ..http.auth import APISERVER_USER
from ..http.requests import Json
from ..kinds.groups import ADMISSION
from ..kinds.info import KindInfo
from ..storage.object_store import ObjectStore
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from .attributes import AdmissionAttributes
from .matching import is_exempt
from .mutating_policies import MutatingPolicies, Run
from .policies import (
    BINDING,
    MUTATING_BINDING,
    MUTATING_POLICY,
    POLICY,
    Readers,
    ValidatingPolicies,
)
from .responses import WebhookNeededError, WebhookResponses
from .services import ServiceResolver
from .webhook_client import WebhookClient
from .webhooks import MUTATING, VALIDATING, Reinvocation, Webhooks

RESOURCES = tuple(
    Resource(ADMISSION, "v1", plural, kind, namespaced=False)
    for plural, kind in (
        ("mutatingwebhookconfigurations", MUTATING),
        ("validatingwebhookconfigurations", VALIDATING),
        ("mutatingadmissionpolicies", MUTATING_POLICY),
        ("mutatingadmissionpolicybindings", MUTATING_BINDING),
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
        self._policies = ValidatingPolicies(readers, authorizer)
        self._mutating_policies = MutatingPolicies(readers, authorizer)
        self.services = ServiceResolver(self._committed, self._committed_in)
        """Finds the endpoints of Services in the committed state."""

        self.client = WebhookClient(self.services)
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
            mutating = kind in (MUTATING_POLICY, MUTATING_BINDING)
            policies = self._mutating_policies if mutating else self._policies
            policies.configure(objects, bindings=kind in (BINDING, MUTATING_BINDING))

    def new_responses(self, kind: KindInfo) -> WebhookResponses | None:
        """Return where a write collects the responses of webhooks; ``None`` if there are none."""
        webhooks = self._webhooks.mutating or self._webhooks.validating
        if webhooks or kind.conversion_webhook is not None:
            return WebhookResponses()
        return None

    @property
    def is_configured(self) -> bool:
        """Whether there is any webhook or policy."""
        return bool(
            self._webhooks.mutating
            or self._webhooks.validating
            or self._policies.active
            or self._mutating_policies.active
        )

    async def ask(self, responses: WebhookResponses, needed: WebhookNeededError) -> None:
        """Ask the webhooks that a plan needs.

        Raises:
            StatusError: 429, the object changes faster than it can be reviewed.
        """
        await responses.ask(needed, self.client.call)

    def mutate(
        self, attributes: AdmissionAttributes, obj: Json, rerun: Callable[[Json], Json]
    ) -> Json:
        """Return *obj* as policies and webhooks change it; *rerun* repeats the built-in plugins.

        As in kube-apiserver, everything runs once again after a change, policies and webhooks
        only those that allow it.

        Raises:
            WebhookNeededError: a webhook must be called first.
            StatusError: a policy or webhook denies the write, or a webhook cannot be called.
        """
        policies, webhooks = self._mutating_policies, self._webhooks
        by_policies = bool(policies.active) and attributes.user is not APISERVER_USER
        by_webhooks = bool(webhooks.mutating) and attributes.responses is not None
        if not (by_policies or by_webhooks) or is_exempt(attributes.kind.resource):
            return obj
        original = obj
        run = policies.mutate(attributes, obj) if by_policies else Run(obj, False, ())
        obj, again = run.obj, Reinvocation((), ())
        if by_webhooks:
            obj, again = webhooks.mutate(attributes, obj)
        if obj == original and not run.is_mutated:
            return obj
        by_all = copy.deepcopy(obj)  # plugins change it in place
        obj = rerun(obj)
        if run.reinvocable and (run.is_mutated or obj != run.obj):
            obj = policies.mutate_again(attributes, obj, run.reinvocable)
        hooks = again.after_webhooks if obj == by_all else again.after_others
        return webhooks.mutate_again(attributes, obj, hooks)

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
        await self.client.close()

    def _committed(self, resource: Resource, namespace: str, name: str) -> Json | None:
        resource_store = self._store.resource_store(self._catalog.require(resource))
        entry = resource_store.get(namespace, name)
        return entry.shared() if entry else None

    def _committed_in(self, resource: Resource, namespace: str) -> Iterator[Json]:
        resource_store = self._store.resource_store(self._catalog.require(resource))
        for entry in resource_store.ordered(namespace):
            yield entry.shared()
