"""The admission component in the test's event loop, against a real API server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from support.embedded_apiserver import Server
from support.realkube import free_ports
from support.running_controller import running

from batholith.admission.serving.cert_rotation import RotationPolicy
from batholith.admission.serving.cert_secret import SecretSettings
from batholith.admission.serving.registration import WebhookEndpoint
from batholith.admission.serving.service import AdmissionOptions, AdmissionService, ListenOptions
from batholith.machinery.clock import Clock, SystemClock
from batholith.machinery.leader_election import LeaderElectionConfig, LeaderElector, new_identity

NAMESPACE = "volcano-system"
QUEUE_PATHS = ("/queues/mutate", "/queues/validate")


def options(*paths: str, lifetimes: RotationPolicy | None = None) -> AdmissionOptions:
    """Options of a component that issues its certificate and registers webhooks by URL."""
    port = free_ports(1)[0]
    return AdmissionOptions(
        paths=paths or QUEUE_PATHS,
        endpoint=WebhookEndpoint(url=f"https://127.0.0.1:{port}"),
        certificates=SecretSettings(
            namespace=NAMESPACE, hosts=("127.0.0.1",), rotation_policy=lifetimes or RotationPolicy()
        ),
        listen=ListenOptions(port=port),
        register=True,
    )


LEASE = "batholith-admission"
SLOW_ELECTION = LeaderElectionConfig(name=LEASE, namespace=NAMESPACE)
FAST_ELECTION = LeaderElectionConfig(
    name=LEASE, namespace=NAMESPACE, lease_duration=3, renew_deadline=2, retry_period=0.4
)


@asynccontextmanager
async def admission(
    server: Server,
    webhooks: AdmissionOptions,
    *,
    election: LeaderElectionConfig = SLOW_ELECTION,
    clock: Clock | None = None,
) -> AsyncIterator[AdmissionService]:
    """Run the component for the length of the block, which starts when it is ready."""
    clock = clock or SystemClock()
    candidate = replace(election, identity=new_identity())
    async with server.client("admin") as client, server.client("admin") as electing:

        def run_service() -> LeaderElector:
            return LeaderElector(electing, candidate, clock=clock)

        service = AdmissionService(client, replace(webhooks, new_elector=run_service), clock=clock)
        async with running(service):
            yield service
