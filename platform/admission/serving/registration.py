"""Webhook configurations: how API servers learn of our webhooks, and whose certificate to trust.

One configuration an admission path, as in Volcano, but with names of our own: two installations
need not fight over them.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass

from ...model.names import MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS, Resource
from ...model.review import Json, Webhook

PREFIX = "batholith"
"""What the names of our configurations begin with."""

TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
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


def resource_of(webhook: Webhook) -> Resource:
    """The kind of configuration that *webhook* belongs into."""
    return MUTATING_CONFIGURATIONS if webhook.mutate is not None else VALIDATING_CONFIGURATIONS


def name_of(webhook: Webhook, *, prefix: str = PREFIX) -> str:
    """The name of the configuration of *webhook*: ``batholith-jobs-mutate``."""
    return f"{prefix}{webhook.path.replace('/', '-')}"


def configuration(
    webhook: Webhook,
    target: Target,
    *,
    bundle: bytes = b"",
    exempt: Iterable[str] = ("kube-system",),
    prefix: str = PREFIX,
) -> Json:
    """The configuration of one webhook.

    Args:
        webhook: what is to be called.
        target: where.
        bundle: certificates to trust, PEM; without one they are filled in later.
        exempt: namespaces whose objects are not asked about.
        prefix: what its name begins with.
    """
    client = target.client_config(webhook.path)
    if bundle:
        client["caBundle"] = base64.b64encode(bundle).decode()
    outside = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [*exempt]}
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
    name = name_of(webhook, prefix=prefix)
    return {"metadata": {"name": name, "labels": labels}, "webhooks": [entry]}
