"""``batholith admission``: the admission rules as webhooks, for real API servers."""

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

from . import featuregate
from .flag_groups import (
    KLOG_FLAGS,
    LOOPBACK,
    ClusterFlags,
    EndpointFlags,
    FlagError,
    HttpLimits,
    LogFlags,
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
    "/jobs/mutate,/jobs/validate,/podgroups/mutate,/podgroups/validate,"
    "/queues/mutate,/queues/validate"
)
"""Without those of pods: no pod should have to wait for us."""

UNSUPPORTED_PATHS = frozenset(("/jobflows/validate", "/cronjobs/validate", "/hypernodes/validate"))
"""Paths that Volcano's chart enables, for kinds that nobody looks after here."""


SHUTDOWN_DELAY = 3.0
"""Seconds after SIGTERM until the last node knows that a Service does not lead here any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookFlags:
    """Where reviews are taken, and how API servers find us."""

    listen_address: Annotated[
        str | None,
        typer.Option(
            help="Address to take reviews at; empty: all.",
            show_default=f"all of a pod, {LOOPBACK} elsewhere",
        ),
    ] = None
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 means a free one.")] = 8443
    webhook_url: Annotated[
        str, typer.Option(help="Where API servers reach us, if not by a Service.")
    ] = ""
    webhook_namespace: Annotated[
        str, typer.Option(help="Namespace of the Service, the Secret and the Lease.")
    ] = ""
    webhook_service_name: Annotated[str, typer.Option(help="The Service.")] = ""
    enabled_admission: Annotated[str, typer.Option(help="Comma-separated paths to serve.")] = (
        ENABLED
    )
    webhook_configuration_prefix: Annotated[
        str, typer.Option(help="What the names of our webhook configurations begin with.")
    ] = "batholith"
    register: Annotated[
        bool,
        typer.Option("--register", help="Create webhook configurations that are missing."),
    ] = False
    graceful_shutdown_time: Annotated[
        str,
        typer.Option(help="What reviews in hand have at the end, of ten seconds in all."),
    ] = "30s"
    tls_cert_file: Annotated[
        str,
        typer.Option(
            help="Certificate to serve; read again when it changes.",
            show_default="made, and kept in the Secret batholith-admission-secret",
        ),
    ] = ""
    tls_private_key_file: Annotated[str, typer.Option(help="Its key.")] = ""
    ca_cert_file: Annotated[
        str, typer.Option(help="Its authority, for the webhook configurations.")
    ] = ""

    @property
    def host(self) -> str:
        """The address to listen at; empty for all."""
        if self.listen_address is not None:
            return self.listen_address
        return "" if "KUBERNETES_SERVICE_HOST" in os.environ else LOOPBACK

    @property
    def namespace(self) -> str:
        """Where Secret and Lease are."""
        return self.webhook_namespace or "volcano-system"

    @property
    def service(self) -> str:
        """The Service that API servers call."""
        return self.webhook_service_name or "batholith-admission"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that the certificate is for."""
        if self.webhook_url:
            return (urlsplit(self.webhook_url).hostname or "",)
        service = f"{self.service}.{self.namespace}"
        return (self.service, service, f"{service}.svc")

    def validate(self) -> None:
        """Check what typer cannot.

        Raises:
            FlagError: something is missing or contradicts something else.
        """
        if not (self.webhook_url or self.webhook_namespace or self.webhook_service_name):
            raise FlagError(
                "one of --webhook-url, --webhook-namespace and --webhook-service-name must say"
                " how API servers reach the webhooks"
            )
        if self.webhook_url and not self.webhook_url.startswith("https://"):
            raise FlagError("--webhook-url must begin with https://")
        if bool(self.tls_cert_file) != bool(self.tls_private_key_file):
            raise FlagError("--tls-cert-file and --tls-private-key-file need each other")
        if self.ca_cert_file and not self.tls_cert_file:
            raise FlagError("--ca-cert-file needs --tls-cert-file and --tls-private-key-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionElectionFlags(ElectionFlags):
    """Which replica renews the certificate and keeps the webhook configurations."""

    leader_elect_resource_name: Annotated[str, typer.Option(help="Name of the Lease.")] = (
        "batholith-admission"
    )
    leader_elect_resource_namespace: Annotated[
        str, typer.Option(help="Namespace of the Lease.", show_default="that of the webhooks")
    ] = ""

    def settings_in(self, namespace: str) -> "LeaderElectionConfig | None":
        """What to contend for, in *namespace* unless flags say otherwise.

        Raises:
            ValueError: that cannot work; the text names the flag.
        """
        own = self.leader_elect_resource_namespace or namespace
        return replace(self, leader_elect_resource_namespace=own).settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionFlags:
    """What the rules depend on."""

    scheduler_name: Annotated[
        list[str], typer.Option(help="Schedulers that are ours, the first by default; repeatable.")
    ] = ("volcano",)  # type: ignore[assignment]  # typer makes a list of it
    max_queue_depth: Annotated[
        int, typer.Option(min=1, help="Queues between the root queue and a leaf, that counted.")
    ] = 5
    enable_root_queue_protection: Annotated[
        bool, typer.Option(help="The resources of the root queue are fixed.")
    ] = True
    enable_queue_allocated_pods_check: Annotated[
        bool, typer.Option(help="A queue whose pods hold resources cannot be deleted.")
    ] = False
    admission_conf: Annotated[
        Path | None,
        typer.Option(help="resourceGroups for /pods/mutate; read again when it changes."),
    ] = None
    feature_gates: Annotated[
        str, typer.Option(help=f"Name=true,…; only {featuregate.QUEUE_GATES} can be changed here.")
    ] = ""

    def settings(self) -> "AdmissionSettings":
        """As the rules want them."""
        from ..admission.settings import JOB_PLUGINS, AdmissionSettings
        from ..job_ctrl.plugins import entry_points

        return AdmissionSettings(
            scheduler_names=tuple(self.scheduler_name),
            max_queue_depth=self.max_queue_depth,
            root_queue_protection=self.enable_root_queue_protection,
            queue_allocated_pods_check=self.enable_queue_allocated_pods_check,
            job_plugins=JOB_PLUGINS | entry_points.names(),
            queue_gates=featuregate.is_enabled(self.feature_gates, featuregate.QUEUE_GATES),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFlags:
    """Where health and metrics are served. An address alone says that they are wanted."""

    enable_healthz: Annotated[
        bool | None, typer.Option(help="Serve health.", show_default="if addressed")
    ] = None
    healthz_address: Annotated[
        str | None, typer.Option(help="[HOST]:PORT of /healthz, /livez and /readyz.")
    ] = None
    enable_metrics: Annotated[
        bool | None, typer.Option(help="Serve /metrics.", show_default="if addressed")
    ] = None
    metrics_address: Annotated[str | None, typer.Option(help="[HOST]:PORT of /metrics.")] = None
    http_limits: HttpLimits = ""

    def endpoint_flags(self) -> EndpointFlags:
        """The same in the words of other parts, whose --listen-address is that of metrics."""
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
    instruments, clock = Telemetry(), SystemClock()
    with exit_on_error(OSError, ValueError):
        options = _build_options(web, rules)
        election = election_flags.settings_in(web.namespace)
        _warn_ineffective_gates(rules.feature_gates, options)
        doors = instruments.endpoints(health_flags.endpoint_flags(), metrics_port=METRICS_PORT)
        limits = parse_http_limits(health_flags.http_limits)

    async def main(ready: asyncio.Event) -> None:
        registry = instruments.registry
        async with (
            serve_endpoints(doors),
            new_client(cluster, COMPONENT, metrics=instruments.client_metrics) as client,
            _elector_factory(election, cluster, instruments) as elector,
        ):
            place = replace(options.listen, limits=limits, metrics=instruments.listener_metrics)
            made = replace(options, new_elector=elector, listen=place)
            service = AdmissionService(client, made, clock=clock, registry=registry)
            _add_health_checks(service, instruments.health)
            await service.run(ready=ready)

    with exit_on_error(OSError, ValueError, ConfigError):
        run(main)


def _build_options(web: WebhookFlags, rules: AdmissionFlags) -> "AdmissionOptions":
    """As the service wants them.

    Raises:
        FlagError, DurationError, UnknownPathsError: a flag cannot be used.
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
    grace = durations.parse(web.graceful_shutdown_time).total_seconds()
    options = AdmissionOptions(
        paths=_parse_paths(web.enabled_admission),
        endpoint=WebhookEndpoint(url=web.webhook_url, service=web.service, namespace=web.namespace),
        certificates=certificates,
        settings=rules.settings(),
        listen=ListenOptions(
            address=web.host,
            port=web.port,
            shutdown_delay=0 if web.webhook_url else min(SHUTDOWN_DELAY, grace),
            shutdown_timeout=grace,
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
        why = "--enabled-admission is without /pods/mutate"
        log.warning(
            "feature gate without effect", extra={"gate": featuregate.QUEUE_GATES, "why": why}
        )


def _parse_paths(text: str) -> tuple[str, ...]:
    """The paths to serve, each once; what Volcano has and we don't is warned about."""
    asked = dict.fromkeys(filter(None, map(str.strip, text.split(","))))
    for path in UNSUPPORTED_PATHS & asked.keys():
        log.warning("asked for admission that there is not", extra={"path": path})
    return tuple(path for path in asked if path not in UNSUPPORTED_PATHS)


@asynccontextmanager
async def _elector_factory(
    settings: "LeaderElectionConfig | None", cluster: ClusterFlags, telemetry: Telemetry
) -> "AsyncIterator[Callable[[], LeaderElector] | None]":
    """What makes a candidate for the office each time that we stand for it."""
    from ..machinery.clock import BoottimeClock
    from ..machinery.leader_election import LeaderElectionMetrics, LeaderElector

    if settings is None:
        yield None
        return
    metrics = LeaderElectionMetrics(telemetry.registry)
    async with election_client(settings, cluster, COMPONENT, telemetry=telemetry) as client:
        yield lambda: LeaderElector(client, settings, clock=BoottimeClock(), metrics=metrics)


def _add_health_checks(service: "AdmissionService", health: "Health") -> None:
    # Old news are better than no reviews: without those nothing can be written at all.
    health.add_informer_check(lambda: service.informers, max_staleness=math.inf)
    health.readyz["webhooks"] = lambda: None if service.url else "no reviews are taken yet"


_admission.__name__ = "admission"
admission = command_from_groups(_admission, *KLOG_FLAGS)
