"""``batholith admission``: the admission webhook server."""

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from ..model.job_size import MAX_PODS
from . import featuregate
from .flag_groups import (
    KLOG_FLAGS,
    LOOPBACK,
    ClusterFlags,
    EndpointFlags,
    FlagError,
    HealthzFlags,
    HttpLimits,
    LogFlags,
    MaxPodsPerJob,
    Notifications,
    NotifyAllow,
    notification_rules,
)
from .go_flags import command_from_groups
from .leader_election import ElectionFlags, election_client
from .manager import Telemetry, exit_on_error, new_client, parse_http_limits
from .process import run

if TYPE_CHECKING:
    from ..admission.serving.service import AdmissionOptions, AdmissionService
    from ..admission.settings import AdmissionSettings
    from ..machinery.leader_election import LeaderElectionConfig, LeaderElector
    from .health import Health

log = logging.getLogger(__name__)

COMPONENT = "admission"
METRICS_PORT = 8081

ENABLED = (
    "/hypernodes/validate,/jobflows/validate,/jobs/mutate,/jobs/validate,/podgroups/mutate,"
    "/podgroups/validate,/queues/mutate,/queues/validate,/cronjobs/validate"
)
"""Without the paths of pods, so that creating pods does not depend on the webhooks."""

SHUTDOWN_DELAY = 3.0
"""Seconds after SIGTERM until all nodes have removed the pod from the Service's endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookFlags:
    """Listen address, serving certificate and webhook configurations."""

    listen_address: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; empty means all addresses.",
            show_default=f"all addresses in a pod, {LOOPBACK} elsewhere",
        ),
    ] = None
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 means any free port.")
    ] = 8443
    webhook_url: Annotated[
        str, typer.Option(help="URL of the webhooks for API servers, if not by a Service.")
    ] = ""
    webhook_namespace: Annotated[
        str, typer.Option(help="Namespace of the Service, the Secret and the Lease.")
    ] = ""
    webhook_service_name: Annotated[str, typer.Option(help="Service of the webhooks.")] = ""
    enabled_admission: Annotated[str, typer.Option(help="Comma-separated paths to serve.")] = (
        ENABLED
    )
    webhook_configuration_prefix: Annotated[
        str, typer.Option(help="Name prefix of the webhook configurations.")
    ] = "batholith"
    register: Annotated[
        bool,
        typer.Option("--register", help="Create missing webhook configurations."),
    ] = False
    graceful_shutdown_time: Annotated[
        str,
        typer.Option(help="Shutdown timeout for in-flight reviews; the process exits after 9s."),
    ] = "30s"
    tls_cert_file: Annotated[
        str,
        typer.Option(
            help="Serving certificate; reloaded when it changes.",
            show_default="generated, in Secret batholith-admission-secret",
        ),
    ] = ""
    tls_private_key_file: Annotated[str, typer.Option(help="Private key of that certificate.")] = ""
    ca_cert_file: Annotated[str, typer.Option(help="CA bundle for the webhook configurations.")] = (
        ""
    )

    @property
    def host(self) -> str:
        """Return the address to listen on; empty for all addresses."""
        if self.listen_address is not None:
            return self.listen_address
        return "" if "KUBERNETES_SERVICE_HOST" in os.environ else LOOPBACK

    @property
    def namespace(self) -> str:
        """Return the namespace of Service, Secret and Lease."""
        return self.webhook_namespace or "volcano-system"

    @property
    def service(self) -> str:
        """Return the name of the Service."""
        return self.webhook_service_name or "batholith-admission"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the DNS names of the certificate."""
        if self.webhook_url:
            return (urlsplit(self.webhook_url).hostname or "",)
        service = f"{self.service}.{self.namespace}"
        return (self.service, service, f"{service}.svc")

    def validate(self) -> None:
        """Check combinations of flags.

        Raises:
            FlagError: a flag is missing or invalid.
        """
        if not (self.webhook_url or self.webhook_namespace or self.webhook_service_name):
            raise FlagError(
                "one of --webhook-url, --webhook-namespace and --webhook-service-name is required:"
                " it is the address of the webhooks for API servers"
            )
        if self.webhook_url and not self.webhook_url.startswith("https://"):
            raise FlagError("--webhook-url must start with https://")
        if bool(self.tls_cert_file) != bool(self.tls_private_key_file):
            raise FlagError("--tls-cert-file and --tls-private-key-file require each other")
        if self.ca_cert_file and not self.tls_cert_file:
            raise FlagError("--ca-cert-file requires --tls-cert-file and --tls-private-key-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionElectionFlags(ElectionFlags):
    """Election of the replica that rotates certificates and updates webhook configurations."""

    leader_elect_resource_name: Annotated[str, typer.Option(help="Name of the Lease.")] = (
        "batholith-admission"
    )
    leader_elect_resource_namespace: Annotated[
        str, typer.Option(help="Namespace of the Lease.", show_default="--webhook-namespace")
    ] = ""

    def settings_in(self, namespace: str) -> "LeaderElectionConfig | None":
        """Return the configuration; *namespace* is the default namespace of the Lease.

        Raises:
            ValueError: a flag is invalid; the text names it.
        """
        lease_namespace = self.leader_elect_resource_namespace or namespace
        return replace(self, leader_elect_resource_namespace=lease_namespace).settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionFlags:
    """Settings of the admission rules."""

    scheduler_name: Annotated[
        list[str],
        typer.Option(help="Batholith's schedulers; the first is the default; may be repeated."),
    ] = ("volcano",)  # type: ignore[assignment]  # typer converts it to a list
    max_pods_per_job: MaxPodsPerJob = MAX_PODS
    max_queue_depth: Annotated[
        int, typer.Option(min=1, help="Maximum depth of leaf queues below the root queue.")
    ] = 5
    enable_root_queue_protection: Annotated[
        bool, typer.Option(help="Deny changes of the root queue's resources.")
    ] = True
    enable_queue_allocated_pods_check: Annotated[
        bool, typer.Option(help="Deny the deletion of queues with allocated pods.")
    ] = False
    admission_conf: Annotated[
        Path | None,
        typer.Option(help="File with resourceGroups for /pods/mutate; reloaded when it changes."),
    ] = None
    notifications: Notifications = None
    notify_allow: NotifyAllow = None
    feature_gates: Annotated[
        str, typer.Option(help=f"Name=true,…; only {featuregate.QUEUE_GATES} has an effect.")
    ] = ""

    def settings(self) -> "AdmissionSettings":
        """Return the settings of the rules.

        Raises:
            FlagError: flags of notifications contradict each other.
        """
        from ..admission.settings import JOB_PLUGINS, AdmissionSettings
        from ..job_ctrl.plugins import entry_points
        from ..training_ctrl.frameworks import FRAMEWORKS

        return AdmissionSettings(
            scheduler_names=tuple(self.scheduler_name),
            max_pods_per_job=self.max_pods_per_job,
            frameworks=FRAMEWORKS,
            max_queue_depth=self.max_queue_depth,
            root_queue_protection=self.enable_root_queue_protection,
            queue_allocated_pods_check=self.enable_queue_allocated_pods_check,
            job_plugins=JOB_PLUGINS | entry_points.names(),
            notifications=notification_rules(self.notifications, self.notify_allow),
            queue_gates=featuregate.is_enabled(self.feature_gates, featuregate.QUEUE_GATES),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFlags(HealthzFlags):
    """Endpoints of health and metrics; setting an address enables them."""

    enable_metrics: Annotated[
        bool | None, typer.Option(help="Serve /metrics.", show_default="if an address is set")
    ] = None
    metrics_address: Annotated[str | None, typer.Option(help="[HOST]:PORT of /metrics.")] = None
    http_limits: HttpLimits = ""

    def endpoint_flags(self) -> EndpointFlags:
        """Convert to the group of other commands, whose --listen-address is that of metrics."""
        return EndpointFlags(
            enable_healthz=self.enable_healthz,
            healthz_address=self.healthz_address,
            enable_metrics=self.enable_metrics,
            listen_address=self.metrics_address,
            http_limits=self.http_limits,
        )


def _admission(
    cluster: ClusterFlags,
    web: WebhookFlags,
    rules: AdmissionFlags,
    election_flags: AdmissionElectionFlags,
    health_flags: HealthFlags,
    logging_: LogFlags,
) -> None:
    """Serve the admission rules as webhooks over HTTPS."""
    from ..admission.serving.service import AdmissionService
    from ..kube.errors import ConfigError
    from ..machinery.clock import SystemClock
    from .health import serve_endpoints

    logging_.configure()
    telemetry, clock = Telemetry(), SystemClock()
    with exit_on_error(OSError, ValueError):
        options = build_options(web, rules)
        election = election_flags.settings_in(web.namespace)
        _warn_ineffective_gates(rules.feature_gates, options)
        endpoints = telemetry.endpoints(health_flags.endpoint_flags(), metrics_port=METRICS_PORT)
        limits = parse_http_limits(health_flags.http_limits)

    async def main(ready: asyncio.Event) -> None:
        registry = telemetry.registry
        async with (
            serve_endpoints(endpoints),
            new_client(cluster, COMPONENT, metrics=telemetry.client_metrics) as client,
            _elector_factory(election, cluster, telemetry) as elector,
        ):
            listen = replace(options.listen, limits=limits, metrics=telemetry.listener_metrics)
            service_options = replace(options, new_elector=elector, listen=listen)
            service = AdmissionService(client, service_options, clock=clock, registry=registry)
            _add_health_checks(service, telemetry.health)
            await service.run(ready=ready)

    with exit_on_error(OSError, ValueError, ConfigError):
        run(main)


def build_options(web: WebhookFlags, rules: AdmissionFlags) -> "AdmissionOptions":
    """Return the options of the service.

    Raises:
        FlagError, DurationError, UnknownPathsError: a flag is invalid.
    """
    from ..admission.serving.cert_files import CertificateFiles
    from ..admission.serving.cert_secret import SecretSettings
    from ..admission.serving.registration import WebhookEndpoint
    from ..admission.serving.service import AdmissionOptions, ListenOptions
    from ..model import durations

    web.validate()
    certificates: CertificateFiles | SecretSettings
    if web.tls_cert_file:
        certificates = CertificateFiles(
            certificate=Path(web.tls_cert_file),
            key=Path(web.tls_private_key_file),
            ca=Path(web.ca_cert_file) if web.ca_cert_file else None,
        )
    else:
        certificates = SecretSettings(namespace=web.namespace, hosts=web.hosts)
    timeout = durations.parse(web.graceful_shutdown_time).total_seconds()
    options = AdmissionOptions(
        paths=_parse_paths(web.enabled_admission),
        endpoint=WebhookEndpoint(url=web.webhook_url, service=web.service, namespace=web.namespace),
        certificates=certificates,
        settings=rules.settings(),
        listen=ListenOptions(
            address=web.host,
            port=web.port,
            shutdown_delay=0 if web.webhook_url else min(SHUTDOWN_DELAY, timeout),
            shutdown_timeout=timeout,
        ),
        resource_groups=rules.admission_conf,
        exempt_namespaces=("kube-system", web.namespace),
        prefix=web.webhook_configuration_prefix,
        register=web.register,
    )
    options.enabled_webhooks(options.settings)
    return options


def _warn_ineffective_gates(text: str, options: "AdmissionOptions") -> None:
    for gate in featuregate.ineffective_gates(text, supported=[featuregate.QUEUE_GATES]):
        log.warning("feature gate without effect", extra={"gate": gate})
    if options.settings.queue_gates and "/pods/mutate" not in options.paths:
        log_fields = {
            "gate": featuregate.QUEUE_GATES,
            "reason": "--enabled-admission does not include /pods/mutate",
        }
        log.warning("feature gate without effect", extra=log_fields)


def _parse_paths(text: str) -> tuple[str, ...]:
    """Return the distinct paths to serve."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


@asynccontextmanager
async def _elector_factory(
    settings: "LeaderElectionConfig | None", cluster: ClusterFlags, telemetry: Telemetry
) -> "AsyncIterator[Callable[[], LeaderElector] | None]":
    """Yield a factory of leader electors."""
    from ..machinery.clock import BoottimeClock
    from ..machinery.leader_election import LeaderElectionMetrics, LeaderElector

    if settings is None:
        yield None
        return
    metrics = LeaderElectionMetrics(telemetry.registry)
    async with election_client(settings, cluster, COMPONENT, telemetry=telemetry) as client:
        yield lambda: LeaderElector(client, settings, clock=BoottimeClock(), metrics=metrics)


def _add_health_checks(service: "AdmissionService", health: "Health") -> None:
    # Serve reviews from stale informers: without reviews, API servers reject all writes.
    health.add_informer_check(lambda: service.informers, max_staleness=math.inf)
    health.readyz["webhooks"] = lambda: None if service.url else "not serving reviews yet"


_admission.__name__ = "admission"
admission = command_from_groups(_admission, *KLOG_FLAGS)
