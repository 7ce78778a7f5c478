"""Webhook configurations: how API servers learn of our webhooks, and whose certificate to trust.

One configuration an admission path, as in Volcano, but with names of our own: two installations
need not fight over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.admission import Json, Webhook
from ...model.names import MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS, Resource

TIMEOUT_SECONDS = 10
"""How long an API server waits for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEndpoint:
    """Where API servers find the webhooks: at *url*, or behind a Service."""

    url: str = ""
    service: str = ""
    namespace: str = ""

    def client_config(self, path: str) -> Json:
        """``clientConfig`` of the webhook at *path*, yet without a ``caBundle``."""
        if self.url:
            return {"url": self.url.rstrip("/") + path}
        service = {"namespace": self.namespace, "name": self.service, "path": path, "port": 443}
        return {"service": service}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The configurations of *webhooks* at *target*."""

    webhooks: Sequence[Webhook]
    endpoint: WebhookEndpoint
    prefix: str = "batholith"
    """What their names begin with."""
    exempt_namespaces: Sequence[str] = ("kube-system",)
    """Namespaces whose objects are not asked about."""
    create: bool = False
    """Whether configurations that are missing are made."""

    def configuration_name(self, webhook: Webhook) -> str:
        """The name of a configuration, e.g. ``batholith-jobs-mutate``."""
        return f"{self.prefix}{webhook.path.replace('/', '-')}"

    def configuration_resource(self, webhook: Webhook) -> Resource:
        """The kind of configuration that *webhook* belongs into."""
        return VALIDATING_CONFIGURATIONS if webhook.mutate is None else MUTATING_CONFIGURATIONS

    def configuration(self, webhook: Webhook, *, bundle: bytes = b"") -> Json:
        """The configuration of one webhook that trusts *bundle* (PEM)."""
        client = self.endpoint.client_config(webhook.path)
        if bundle:
            client["caBundle"] = bundle
        space = "kubernetes.io/metadata.name"
        outside = {"key": space, "operator": "NotIn", "values": [*self.exempt_namespaces]}
        entry: Json = {
            "name": webhook.name,
            "clientConfig": client,
            "rules": [
                {
                    "apiGroups": [webhook.resource.group],
                    "apiVersions": [webhook.resource.version],
                    "resources": [webhook.resource.plural],
                    "operations": sorted(webhook.operations),
                }
            ],
            "namespaceSelector": {"matchExpressions": [outside]},
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
        }
        if webhook.mutate is not None:
            entry["reinvocationPolicy"] = "Never"
        labels = {"app.kubernetes.io/name": "batholith", "app.kubernetes.io/component": "admission"}
        return {
            "metadata": {"name": self.configuration_name(webhook), "labels": labels},
            "webhooks": [entry],
        }
