"""Webhook configurations that register the webhooks with API servers.

One configuration per admission path, as in Volcano, but with a configurable name prefix, so that
several installations do not conflict.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.admission import Json, Webhook
from ...model.names import MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS, Resource

TIMEOUT_SECONDS = 10
"""Seconds that an API server waits for a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEndpoint:
    """Address of the webhooks: *url*, or a Service."""

    url: str = ""
    service: str = ""
    namespace: str = ""

    def client_config(self, path: str) -> Json:
        """Return the ``clientConfig`` of the webhook at *path*, without ``caBundle``."""
        if self.url:
            return {"url": self.url.rstrip("/") + path}
        service = {"namespace": self.namespace, "name": self.service, "path": path, "port": 443}
        return {"service": service}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Builds the configurations of *webhooks* at *endpoint*."""

    webhooks: Sequence[Webhook]
    endpoint: WebhookEndpoint
    prefix: str = "batholith"
    """Prefix of the configurations' names."""
    exempt_namespaces: Sequence[str] = ("kube-system",)
    """Namespaces excluded by the ``namespaceSelector``."""
    create: bool = False
    """Whether to create missing configurations."""

    def configuration_name(self, webhook: Webhook) -> str:
        """Return the name of a configuration, e.g. ``batholith-jobs-mutate``."""
        return f"{self.prefix}{webhook.path.replace('/', '-')}"

    def configuration_resource(self, webhook: Webhook) -> Resource:
        """Return the resource of *webhook*'s configuration."""
        return VALIDATING_CONFIGURATIONS if webhook.mutate is None else MUTATING_CONFIGURATIONS

    def configuration(self, webhook: Webhook, *, bundle: bytes = b"") -> Json:
        """Return the configuration of one webhook with ``caBundle`` *bundle* (PEM)."""
        client = self.endpoint.client_config(webhook.path)
        if bundle:
            client["caBundle"] = bundle
        expression = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": [*self.exempt_namespaces],
        }
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
            "namespaceSelector": {"matchExpressions": [expression]},
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
