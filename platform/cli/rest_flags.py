"""Flags of ``batholith api``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .flag_groups import FlagError, HttpLimits, Kubeconfig, LogFormat, LogLevel
from .version import Version

if TYPE_CHECKING:
    from ..api.identity.authentication import SecuritySettings
    from ..api.pages.app import PagesSettings

DEFAULT_CALLER_RATE = 100.0
"""Default of the requests per second that one caller may send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestFlags:
    """API server, store and listener."""

    kubeconfig: Kubeconfig = None
    store: Annotated[
        str,
        typer.Option(help="SQLAlchemy URL of the command history.", envvar="BATHOLITH_STORE"),
    ] = "sqlite:///batholith-api.db"
    scheduler_namespace: Annotated[
        str, typer.Option(help="Namespace of the scheduler, which simulates jobs.")
    ] = "volcano-system"
    listen_address: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = "127.0.0.1:7480"
    listen_fd: Annotated[
        int | None, typer.Option(help="File descriptor of an inherited listening socket.")
    ] = None
    tls_cert_file: Annotated[
        Path | None, typer.Option(help="Serving certificate; reloaded when it changes.")
    ] = None
    tls_private_key_file: Annotated[
        Path | None, typer.Option(help="Private key of that certificate.")
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain HTTP on addresses other than loopback.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityFlags:
    """Who may call, how often, and with which identity."""

    audience: Annotated[
        list[str],
        typer.Option(
            help="Audience of accepted tokens, repeatable; requires --impersonate-callers.",
            show_default="those of the Kubernetes API",
        ),
    ] = field(default_factory=list)
    client_ca_file: Annotated[
        Path | None,
        typer.Option(
            help="Accept client certificates of these authorities; requires --impersonate-callers."
        ),
    ] = None
    impersonate_callers: Annotated[
        bool,
        typer.Option(
            "--impersonate-callers",
            help="Impersonate callers whose credentials are not valid at the Kubernetes API.",
        ),
    ] = False
    caller_rate: Annotated[
        float,
        typer.Option(help="Requests per second and caller, twice as many at once; 0: no limit."),
    ] = DEFAULT_CALLER_RATE
    cors_allowed_origins: Annotated[
        list[str],
        typer.Option(
            help="Regular expressions of origins whose scripts may call, comma-separated.",
            show_default="none",
        ),
    ] = field(default_factory=list)

    def settings(self, *, tls: bool) -> "SecuritySettings":
        """Return the settings; *tls*: whether HTTPS is served.

        Raises:
            FlagError: flags contradict each other.
            OriginPatternError: an origin pattern is invalid.
        """
        from ..api.http.cors import OriginPatterns
        from ..api.identity.authentication import SecuritySettings

        if self.client_ca_file is not None and not tls:
            raise FlagError("--client-ca-file requires --tls-cert-file and --tls-private-key-file")
        required = {"--audience": self.audience, "--client-ca-file": self.client_ca_file}
        for flag, value in required.items():
            if value and not self.impersonate_callers:
                raise FlagError(
                    f"{flag} requires --impersonate-callers: the Kubernetes API does not accept the"
                    " credentials of such callers"
                )
        if not 0 <= self.caller_rate < float("inf"):
            raise FlagError(
                f"--caller-rate={self.caller_rate}: want a number of requests per second"
            )
        origins = tuple(
            each for text in self.cors_allowed_origins for each in text.split(",") if each
        )
        OriginPatterns(origins)
        return SecuritySettings(
            audiences=tuple(self.audience),
            impersonate=self.impersonate_callers,
            client_ca_file=self.client_ca_file,
            caller_rate=self.caller_rate,
            cors_allowed_origins=origins,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestProcessFlags:
    """Metrics, limits, streams and logs of the process."""

    metrics_address: Annotated[
        str, typer.Option(help="[HOST]:PORT of /metrics; all addresses without a host.")
    ] = ""
    http_limits: HttpLimits = ""
    max_streams: Annotated[
        int, typer.Option(min=0, help="Open event streams; fewer than connections.")
    ] = 800
    max_streams_per_caller: Annotated[
        int, typer.Option(min=0, help="Open event streams of one user.")
    ] = 100
    pages: Annotated[
        bool, typer.Option("--pages", help="Serve HTML pages at /, where users sign in by token.")
    ] = False
    sign_in_file: Annotated[
        Path | None, typer.Option(hidden=True, help="For `up`: file with a one-time code.")
    ] = None
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log each request, without values of its query.")
    ] = False
    log_format: LogFormat = "text"
    log_level: LogLevel = "INFO"
    version: Version = False

    def pages_settings(self) -> "PagesSettings | None":
        """Return how the pages are served, if they are."""
        from ..api.pages.app import PagesSettings

        return PagesSettings(sign_in_file=self.sign_in_file) if self.pages else None
