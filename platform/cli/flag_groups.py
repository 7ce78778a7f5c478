"""Flag groups of several commands; see :mod:`.go_flags`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from . import logs
from .go_flags import IgnoredFlag
from .version import Version

if TYPE_CHECKING:
    from ..model.notification_destinations import NotificationRules
    from .deployment_check import OtherComponent

LOOPBACK = "127.0.0.1"
VERBOSE = 5
"""Lowest ``-v`` that enables DEBUG: Volcano's chart sets 4 by default."""

_DEFAULT_HOST_HELP = "all addresses of a pod, loopback elsewhere"

KLOG_FLAGS = (
    IgnoredFlag("logtostderr", "logs always go to standard error.", switch=True),
    IgnoredFlag("alsologtostderr", "logs always go to standard error.", switch=True),
    IgnoredFlag("stderrthreshold", "logs of all levels go to standard error."),
    IgnoredFlag("vmodule", "set --log-level for the whole process."),
    IgnoredFlag("log-dir", "logs go to standard error alone."),
    IgnoredFlag("log-file", "logs go to standard error alone."),
    IgnoredFlag("log-file-max-size", "logs go to standard error alone."),
    IgnoredFlag("log-flush-frequency", "logs are written immediately."),
    IgnoredFlag("log-backtrace-at", "errors carry their traceback."),
    IgnoredFlag("one-output", "logs go to standard error alone.", switch=True),
    IgnoredFlag("skip-headers", "see --log-format.", switch=True),
    IgnoredFlag("skip-log-headers", "logs go to standard error alone.", switch=True),
    IgnoredFlag("add-dir-header", "log lines name their module.", switch=True),
)
"""Flags of Go's log library."""


def _parse_log_format(value: str) -> str:
    if value not in ("text", "json"):
        raise typer.BadParameter(f"{value!r} is neither text nor json")
    return value


def _parse_log_level(value: str | None) -> str | None:
    if value is not None and value.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter(f"{value!r} is none of DEBUG, INFO, WARNING and ERROR")
    return value


Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Path of the kubeconfig.", show_default="$KUBECONFIG, ~/.kube/config, or in-cluster"
    ),
]
PodsOption = Annotated[
    Literal["processes", "images", "auto"],
    typer.Option(
        help="What pods run: programs of this machine; their images; or their images if these are "
        "stored, else programs of this machine."
    ),
]
PodNetworkOption = Annotated[
    Literal["host", "namespaces"],
    typer.Option(
        help="Network of pods: that of the machine, or a network namespace for each pod, which "
        "needs iproute2 and nftables, and passt unless for root."
    ),
]
ClusterDnsOption = Annotated[
    str, typer.Option(help="Address at which the service proxy serves names; empty: nowhere.")
]
RegistryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--registry",
        metavar="HOST[=URL]",
        help="Registry from which images are pulled when a pod needs them, and the URL of a mirror "
        "to try first; repeatable. With --pods=images all registries are used.",
    ),
]
NotifyAllow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST|NETWORK",
        help="Host or network that jobs may notify although it is not public, and without TLS, such"
        " as localhost; repeatable.",
    ),
]
Notifications = Annotated[
    bool | None,
    typer.Option(
        "--notifications/--no-notifications",
        help="Whether the REST API sends notifications of jobs: what it would not send causes a "
        "warning.",
        show_default="unknown, without warnings",
    ),
]
MaxPodsPerJob = Annotated[
    int,
    typer.Option(
        min=1,
        max=2**31 - 1,
        help="Pods that a Volcano job or a training job may have; larger ones are denied, and fail "
        "if they are stored. The same for admission and controllers.",
    ),
]

HttpLimits = Annotated[
    str,
    typer.Option(
        help="NAME=VALUE,…: overrides of the default limits of HTTP listeners; "
        "names: connections, handshake-timeout, header-timeout, body-timeout, idle-timeout, "
        "write-timeout, unfinished-bytes."
    ),
]

LogFormat = Annotated[str, typer.Option(help="text or json.", callback=_parse_log_format)]
LogLevel = Annotated[
    str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.", callback=_parse_log_level)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlags:
    """Log level and format."""

    log_format: LogFormat = "text"
    log_level: Annotated[
        str | None,
        typer.Option(
            help="DEBUG, INFO, WARNING or ERROR.",
            show_default="INFO; DEBUG from -v=5 on",
            callback=_parse_log_level,
        ),
    ] = None
    v: Annotated[int, typer.Option("-v", "--v", help="Verbosity in Volcano's scale.")] = 0
    version: Version = False

    def configure(self) -> None:
        """Configure logging of this process."""
        level = self.log_level or ("DEBUG" if self.v >= VERBOSE else "INFO")
        logs.configure(log_format=self.log_format, level=level)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFlags:
    """API server, credentials and request rate."""

    kubeconfig: Kubeconfig = None
    master: Annotated[
        str,
        typer.Option(help="Address of the API server.", show_default="from the kubeconfig"),
    ] = ""
    kube_api_qps: Annotated[
        float, typer.Option(min=0, help="Maximum requests per second; 0 means no limit.")
    ] = 0
    kube_api_burst: Annotated[int, typer.Option(min=1, help="Burst of the request rate limit.")] = (
        100
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VolcanoCheckFlags:
    """Start-up check for Volcano itself."""

    force_beside_volcano: Annotated[
        bool,
        typer.Option(
            "--force-beside-volcano",
            help="Start even if a Deployment of Volcano's counterpart exists.",
        ),
    ] = False

    def components(self, counterpart: "OtherComponent") -> "tuple[OtherComponent, ...]":
        """Return the components to check for: Volcano's *counterpart*, unless disabled."""
        return () if self.force_beside_volcano else (counterpart,)


class FlagError(ValueError):
    """A flag is invalid; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthzFlags:
    """Endpoint of health; setting its address enables it."""

    enable_healthz: Annotated[
        bool | None,
        typer.Option(
            help="Serve /healthz, /livez and /readyz.", show_default="if an address is set"
        ),
    ] = None
    healthz_address: Annotated[
        str | None,
        typer.Option(
            help="[HOST]:PORT of /healthz, /livez and /readyz; all addresses without a host.",
            show_default=f":11251, {_DEFAULT_HOST_HELP}",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFlags(HealthzFlags):
    """Endpoints of health and metrics; setting an address enables them."""

    enable_metrics: Annotated[
        bool | None, typer.Option(help="Serve /metrics.", show_default="if an address is set")
    ] = None
    listen_address: Annotated[
        str | None,
        typer.Option(
            help="[HOST]:PORT of /metrics; all addresses without a host.",
            show_default=f":8081 (scheduler: :8080), {_DEFAULT_HOST_HELP}",
        ),
    ] = None
    ca_cert_file: Annotated[str, typer.Option(help="CA of client certificates for /healthz.")] = ""
    tls_cert_file: Annotated[
        str, typer.Option(help="Serving certificate of /healthz (HTTPS); requires the other two.")
    ] = ""
    tls_private_key_file: Annotated[str, typer.Option(help="Private key of that certificate.")] = ""
    http_limits: HttpLimits = ""

    def health(self, port: int = 11251) -> str:
        """Return the address of health; empty if disabled."""
        return _endpoint_address(self.enable_healthz, self.healthz_address, port)

    def validate(self) -> None:
        """Check that either all or none of the TLS flags are set.

        Raises:
            FlagError: only some of them are set.
        """
        files = {
            "--ca-cert-file": self.ca_cert_file,
            "--tls-cert-file": self.tls_cert_file,
            "--tls-private-key-file": self.tls_private_key_file,
        }
        given = [flag for flag, value in files.items() if value]
        missing = [flag for flag in files if flag not in given]
        if given and missing:
            raise FlagError(
                f"{' and '.join(given)} without {' and '.join(missing)}: set all"
                " three to serve health over HTTPS, or none for HTTP"
            )

    def metrics(self, port: int) -> str:
        """Return the address of metrics, with default *port*; empty if disabled."""
        return _endpoint_address(self.enable_metrics, self.listen_address, port)


def _endpoint_address(enabled: bool | None, address: str | None, port: int) -> str:
    if enabled is False or (enabled is None and not address):
        return ""
    if address:
        return address
    # In a pod, the kubelet and Prometheus connect from outside.
    return f":{port}" if "KUBERNETES_SERVICE_HOST" in os.environ else f"{LOOPBACK}:{port}"


def notification_rules(is_enabled: bool | None, allowed: list[str] | None) -> "NotificationRules":
    """Return which notifications are sent.

    Raises:
        FlagError: flags contradict each other, or one is neither a host nor a network.
    """
    from ..model.notification_destinations import Destinations, NotificationRules

    if allowed and not is_enabled:
        raise FlagError("--notify-allow requires --notifications")
    try:
        destinations = Destinations.parse(allowed or ()) if is_enabled else None
    except ValueError as error:
        raise FlagError(f"--notify-allow: {error}") from None
    return NotificationRules(destinations=destinations, is_known=is_enabled is not None)
