"""Groups of flags that several parts share; see :mod:`.flags`."""

import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from . import logs
from .go_flags import IgnoredFlag

LOOPBACK = "127.0.0.1"
VERBOSE = 5
"""Volcano's ``-v`` from which on we say as much as it does: its chart sets 4 for everyday use."""

_DEFAULT_HOST_HELP = "all addresses of a pod, loopback elsewhere"

KLOG_FLAGS = (
    IgnoredFlag("logtostderr", "logs always go to standard error.", switch=True),
    IgnoredFlag("alsologtostderr", "logs always go to standard error.", switch=True),
    IgnoredFlag("stderrthreshold", "logs of all levels go to standard error."),
    IgnoredFlag("vmodule", "set --log-level for the whole process."),
    IgnoredFlag("log-dir", "logs go to standard error alone."),
    IgnoredFlag("log-file", "logs go to standard error alone."),
    IgnoredFlag("log-file-max-size", "logs go to standard error alone."),
    IgnoredFlag("log-flush-frequency", "logs are written at once."),
    IgnoredFlag("log-backtrace-at", "errors carry their traceback."),
    IgnoredFlag("one-output", "logs go to standard error alone.", switch=True),
    IgnoredFlag("skip-headers", "see --log-format.", switch=True),
    IgnoredFlag("skip-log-headers", "logs go to standard error alone.", switch=True),
    IgnoredFlag("add-dir-header", "log lines name their module.", switch=True),
)
"""Flags of Go's log library."""


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"batholith {metadata.version('batholith')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
]


def _parse_log_format(given: str) -> str:
    if given not in ("text", "json"):
        raise typer.BadParameter(f"{given!r} is neither text nor json")
    return given


def _parse_log_level(given: str | None) -> str | None:
    if given is not None and given.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter(f"{given!r} is none of DEBUG, INFO, WARNING and ERROR")
    return given


HttpLimits = Annotated[
    str,
    typer.Option(
        help="NAME=VALUE,… that differ from the usual limits of HTTP listeners; "
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
    """How much is logged, and in which form."""

    log_format: LogFormat = "text"
    log_level: Annotated[
        str | None,
        typer.Option(
            help="DEBUG, INFO, WARNING or ERROR.",
            show_default="INFO; DEBUG from -v=5 on",
            callback=_parse_log_level,
        ),
    ] = None
    v: Annotated[int, typer.Option("-v", "--v", help="Verbosity as Volcano counts it.")] = 0
    version: Version = False

    def configure(self) -> None:
        """Send the logs of this process where they belong."""
        level = self.log_level or ("DEBUG" if self.v >= VERBOSE else "INFO")
        logs.configure(log_format=self.log_format, level=level)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFlags:
    """Which cluster, as whom, and how fast."""

    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            help="Credentials.", show_default="$KUBECONFIG, ~/.kube/config, or in-cluster"
        ),
    ] = None
    master: Annotated[
        str,
        typer.Option(help="Address of the API server.", show_default="as the credentials say"),
    ] = ""
    kube_api_qps: Annotated[
        float, typer.Option(min=0, help="Requests a second at most; 0 means no limit.")
    ] = 0
    kube_api_burst: Annotated[
        int, typer.Option(min=1, help="Requests at once, within the limit.")
    ] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class VolcanoCheckFlags:
    """What to do when Volcano itself is at work in the cluster."""

    force_beside_volcano: Annotated[
        bool,
        typer.Option(
            "--force-beside-volcano",
            help="Start although a Deployment of Volcano's counterpart is there.",
        ),
    ] = False


class FlagError(ValueError):
    """Flags that cannot be used; the text names the flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFlags:
    """Where health and metrics are served. An address alone says that they are wanted."""

    enable_healthz: Annotated[
        bool | None,
        typer.Option(help="Serve /healthz, /livez and /readyz.", show_default="if addressed"),
    ] = None
    healthz_address: Annotated[
        str | None,
        typer.Option(
            help="[HOST]:PORT of /healthz, /livez and /readyz; all addresses without a host.",
            show_default=f":11251, {_DEFAULT_HOST_HELP}",
        ),
    ] = None
    enable_metrics: Annotated[
        bool | None, typer.Option(help="Serve /metrics.", show_default="if addressed")
    ] = None
    listen_address: Annotated[
        str | None,
        typer.Option(
            help="[HOST]:PORT of /metrics; all addresses without a host.",
            show_default=f":8081 (scheduler: :8080), {_DEFAULT_HOST_HELP}",
        ),
    ] = None
    ca_cert_file: Annotated[
        str, typer.Option(help="Authority of clients that show certificates to /healthz.")
    ] = ""
    tls_cert_file: Annotated[
        str, typer.Option(help="Certificate of /healthz, which is HTTPS then; needs the other two.")
    ] = ""
    tls_private_key_file: Annotated[str, typer.Option(help="Its key.")] = ""
    http_limits: HttpLimits = ""

    def health(self, port: int = 11251) -> str:
        """Where health is served; empty for nowhere."""
        return _endpoint_address(self.enable_healthz, self.healthz_address, port)

    def validate(self) -> None:
        """Check that the certificate is whole: without a part of it health would be plain HTTP.

        Raises:
            FlagError: some of its flags are given, and others are not.
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
                f"{' and '.join(given)} without {' and '.join(missing)}: health is HTTPS if all"
                " three are given, and HTTP if none is"
            )

    def metrics(self, port: int) -> str:
        """Where metrics are served, at *port* unless told otherwise; empty for nowhere."""
        return _endpoint_address(self.enable_metrics, self.listen_address, port)


def _endpoint_address(enabled: bool | None, address: str | None, port: int) -> str:
    if enabled is False or (enabled is None and not address):
        return ""
    if address:
        return address
    # The kubelet and Prometheus come from outside a pod; on a laptop nobody does.
    return f":{port}" if "KUBERNETES_SERVICE_HOST" in os.environ else f"{LOOPBACK}:{port}"
