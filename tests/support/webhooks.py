"""Admission webhooks for a real API server: served over HTTPS in the test's event loop.

The embedded server calls the rules as functions; a real one sends requests. Inside the block of
`serve_webhooks` a real server calls *webhooks* for each write, too.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from prometheus_client import CollectorRegistry
from support.admission import job, queue
from support.embedded_apiserver import Json, Server, pod
from support.polling import wait_until_true

from batholith.admission.serving.handler import AdmissionHandler
from batholith.admission.serving.object_reader import LOOKED_UP_RESOURCES, InformerReader
from batholith.admission.serving.registration import Registration, WebhookEndpoint
from batholith.admission.serving.server import ReviewServer
from batholith.machinery.serving_certificate import ServingCertificate
from batholith.machinery.x509 import CertificateRequest, create_ca, issue_certificate
from batholith.model.admission import Webhook
from batholith.model.names import (
    CRONJOBS,
    HYPERNODES,
    JOBFLOWS,
    JOBS,
    PODGROUPS,
    PODS,
    QUEUES,
    Resource,
)
from batholith.training_ctrl.frameworks import FRAMEWORKS


@dataclass(frozen=True, slots=True)
class ServedWebhooks:
    """Webhooks that are being served."""

    url: str
    ca_bundle: bytes
    """What to trust, PEM."""
    counts: "ReviewCounter"


class ReviewCounter:
    """How many reviews there have been."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def count(self, path: str) -> float:
        """The reviews at *path*."""
        name = "batholith_admission_review_seconds_count"
        samples = (
            self.registry.get_sample_value(name, {"path": path, "allowed": allowed})
            for allowed in ("true", "false")
        )
        return sum(sample or 0 for sample in samples)


@asynccontextmanager
async def serve_webhooks(
    server: Server, webhooks: Sequence[Webhook]
) -> AsyncIterator[ServedWebhooks]:
    """Let *server*, a real one that has our kinds, ask *webhooks* for the length of the block."""
    consulted = {each for hook in webhooks for each in LOOKED_UP_RESOURCES.get(hook.path, ())}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(server.client("admin"))
        reader = InformerReader(client, consulted)
        await stack.enter_async_context(_running_informers(reader))
        counts = ReviewCounter()
        handler = AdmissionHandler(webhooks, reader, registry=counts.registry)
        presenter, bundle = _serving_certificate()
        listening = ReviewServer(handler, presenter, address="127.0.0.1", port=0).running()
        url = await stack.enter_async_context(listening)
        stack.push_async_callback(_unregister, server, webhooks, counts)
        registration = Registration(webhooks=webhooks, endpoint=WebhookEndpoint(url=url))
        for hook in webhooks:
            expected = registration.configuration(hook, bundle=bundle)
            await server.create(registration.configuration_resource(hook).path(), expected)
        await _wait_called(server, webhooks, counts)
        yield ServedWebhooks(url, bundle, counts)


def _serving_certificate() -> tuple[ServingCertificate, bytes]:
    now, lasts = datetime.now(UTC), timedelta(days=1)
    authority = create_ca("tests", now=now, validity=lasts)
    request = CertificateRequest(subject="webhooks", validity=lasts, hosts=("127.0.0.1",))
    leaf = issue_certificate(authority, request, now=now)
    presenter = ServingCertificate()
    presenter.load(leaf.certificate_pem, leaf.key_pem)
    return presenter, authority.certificate_pem


@asynccontextmanager
async def _running_informers(reader: InformerReader) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(cache.run()) for cache in reader.informers]
        for cache in reader.informers:
            await cache.wait_synced()
        yield
        for task in running:
            task.cancel()


async def _unregister(server: Server, webhooks: Sequence[Webhook], counts: ReviewCounter) -> None:
    """Delete the configurations, and wait until the server sends no more reviews."""
    ours = Registration(webhooks=webhooks, endpoint=WebhookEndpoint())
    for hook in webhooks:
        path = ours.configuration_resource(hook).path(name=ours.configuration_name(hook))
        await server.request("DELETE", path)
    for hook in webhooks:
        await wait_until_true(partial(_is_not_called, server, hook, counts))


_PROBES: dict[Resource, Json] = {
    CRONJOBS: {"spec": {"schedule": "@daily", "jobTemplate": {}}},
    HYPERNODES: {
        "spec": {
            "tier": 1,
            "members": [{"type": "Node", "selector": {"exactMatch": {"name": "node"}}}],
        }
    },
    JOBFLOWS: {"spec": {"flows": []}},
    JOBS: job(name="probe"),
    QUEUES: queue("probe"),
    PODGROUPS: {"metadata": {"name": "probe"}, "spec": {"minMember": 1}},
    PODS: pod("probe"),
    **{
        framework.kind.resource: {"spec": {framework.kind.replica_field: {}}}
        for framework in FRAMEWORKS
    },
}


async def _wait_called(server: Server, webhooks: Sequence[Webhook], counts: ReviewCounter) -> None:
    """Wait until the configurations are in effect."""
    for hook in webhooks:
        await wait_until_true(partial(_is_called, server, hook, counts))


async def _is_called(server: Server, hook: Webhook, counts: ReviewCounter) -> bool:
    """Whether the server calls *hook* for a dry-run write."""
    resource, before = hook.resource, counts.count(hook.path)
    body = {**_PROBES[resource], "apiVersion": resource.api_version, "kind": resource.kind}
    body["metadata"] = {"name": "probe"}
    path = resource.path("default" if resource.namespaced else "")
    await server.request("POST", f"{path}?dryRun=All", body)
    return counts.count(hook.path) > before


async def _is_not_called(server: Server, hook: Webhook, counts: ReviewCounter) -> bool:
    return not await _is_called(server, hook, counts)
