"""Building blocks of the commands: clients, telemetry, and running components."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..machinery.lifecycle import Runnable
from .flag_groups import ClusterFlags, EndpointFlags, FlagError

if TYPE_CHECKING:
    from ..httpserver.limits import Limits
    from ..kube.client.client import Client
    from ..kube.client.config import Credentials
    from ..kube.client.events import EventRecorder
    from ..kube.metrics import ClientMetrics
    from .deployment_check import OtherComponent
    from .health import Endpoint


EVENT_FLUSH_TIMEOUT = 1.0
"""Seconds to write pending events after everything else has stopped."""


class ComponentExitedError(Exception):
    """A component stopped without being cancelled: the process must exit."""


class Telemetry:
    """Metrics and health checks of a process."""

    def __init__(self) -> None:
        from importlib import metadata

        from prometheus_client import CollectorRegistry, GCCollector, Info, ProcessCollector

        from ..httpserver.metrics import ListenerMetrics
        from ..kube.metrics import ClientMetrics
        from ..kube.supervision import TaskMetrics
        from .health import Health

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(TaskMetrics())
        build = Info("batholith_build", "Version of Batholith.", registry=self.registry)
        build.info({"version": metadata.version("batholith")})
        self.client_metrics = ClientMetrics(self.registry)
        self.listener_metrics = ListenerMetrics(self.registry)
        self.health = Health()
        self.health.add_informer_check(self.client_metrics.informers)

    def endpoints(self, flags: EndpointFlags, *, metrics_port: int) -> "list[Endpoint]":
        """Return the endpoints of health and metrics according to *flags*.

        Raises:
            OSError: a certificate file cannot be used.
            ValueError: an address or limit is invalid, or a certificate file is missing.
        """
        from .health import Endpoint, split_host_port, tls_context

        flags.validate()
        limits, listener_metrics = parse_http_limits(flags.http_limits), self.listener_metrics
        context = tls_context(
            client_ca=flags.ca_cert_file,
            certificate=flags.tls_cert_file,
            key=flags.tls_private_key_file,
        )
        endpoints = [
            Endpoint(
                address=flags.health(),
                health=self.health,
                tls=context,
                limits=limits,
                listener_metrics=listener_metrics,
            ),
            Endpoint(
                address=flags.metrics(metrics_port),
                registry=self.registry,
                limits=limits,
                listener_metrics=listener_metrics,
            ),
        ]
        enabled = [endpoint for endpoint in endpoints if endpoint.address]
        for endpoint in enabled:
            split_host_port(endpoint.address)
        return enabled


def parse_http_limits(text: str, *, connections: int | None = None) -> "Limits":
    """Parse the value of ``--http-limits``; *connections* is another default.

    Raises:
        FlagError: a name or value is invalid.
    """
    from ..httpserver.limits import Limits, LimitsError

    try:
        base = Limits() if connections is None else Limits(connections=connections)
        return Limits.parse(text, base=base)
    except LimitsError as error:
        raise FlagError(f"--http-limits: {error}") from error


def credentials(kubeconfig: Path | None, master: str = "") -> "Credentials":
    """Load credentials from *kubeconfig* or the default locations; *master* overrides the server.

    Raises:
        ConfigError: no valid credentials were found.
    """
    from ..kube.client.config import Credentials, load_credentials
    from ..kube.errors import ConfigError

    if master and not master.startswith(("http://", "https://")):
        raise ConfigError(f"--master={master}: not an http or https URL")
    try:
        found = load_credentials(None if kubeconfig is None else str(kubeconfig))
    except ConfigError:
        if kubeconfig is not None or not master:
            raise
        return Credentials(server=master.rstrip("/"))
    return replace(found, server=master.rstrip("/")) if master else found


def new_client(
    flags: ClusterFlags,
    name: str,
    *,
    metrics: "ClientMetrics | None" = None,
    fence: Callable[[], None] | None = None,
) -> "Client":
    """Create a client for component *name*; *fence* is called before each write.

    Raises:
        ConfigError: no valid credentials were found.
    """
    from ..kube.client.client import Client
    from ..kube.client.flowcontrol import TokenBucketRateLimiter
    from ..kube.client.transport import ClientOptions
    from ..kube.metrics import ClientMetrics

    metrics = metrics or ClientMetrics()
    qps = flags.kube_api_qps
    limiter = TokenBucketRateLimiter(qps, flags.kube_api_burst) if qps else None
    if limiter is not None:
        metrics.register_rate_limiter(name, lambda: limiter.saturation)
    return Client(
        credentials(flags.kubeconfig, flags.master),
        user_agent=f"batholith-{name}",
        limiter=limiter,
        options=ClientOptions(metrics=metrics, fence=fence),
    )


async def ensure_no_others(cluster: ClusterFlags, *components: "OtherComponent") -> None:
    """Check that none of the *components* of other systems is running.

    Raises:
        OtherSystemRunningError: one is running.
        ConfigError: no valid credentials were found.
    """
    from .deployment_check import ensure_not_running

    if components:
        async with new_client(cluster, "start") as client:
            for component in components:
                await ensure_not_running(client, component)


@contextmanager
def exit_on_error(*errors: type[Exception]) -> Iterator[None]:
    """Print *errors* in one line instead of a traceback, and exit with 1."""
    try:
        yield
    except errors as error:
        typer.echo(f"batholith: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


async def run_components(
    recorder: "EventRecorder", *components: Runnable, ready: asyncio.Event
) -> None:
    """Run *components* and the event recorder; set *ready* once all components are ready.

    The recorder stops last, so that events recorded during shutdown are still written.
    """
    async with asyncio.TaskGroup() as outer:
        recording = outer.create_task(recorder.run())
        try:
            await _run_components(components, ready)
        finally:
            await recorder.flush(EVENT_FLUSH_TIMEOUT)
        recording.cancel()


async def _run_components(components: Sequence[Runnable], ready: asyncio.Event) -> None:
    ready_events = [asyncio.Event() for _ in components]

    async def signal_ready() -> None:
        for event in ready_events:
            await event.wait()
        ready.set()

    async with asyncio.TaskGroup() as tasks:
        notifier = tasks.create_task(signal_ready())
        running = [
            tasks.create_task(component.run(ready=event))
            for component, event in zip(components, ready_events, strict=True)
        ]
        # Not gathered: the first exit would cancel the others again during their shutdown.
        await asyncio.wait(running)
        notifier.cancel()
    if any(task.cancelled() for task in running):  # This task itself was not cancelled.
        raise ComponentExitedError("a component exited unexpectedly")
