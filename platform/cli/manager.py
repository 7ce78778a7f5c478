"""What the commands put parts together with: a client, figures, and the life that parts share."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from .flag_groups import ClusterFlags, EndpointFlags, FlagError, VolcanoCheckFlags

if TYPE_CHECKING:
    from ..httpserver.limits import Limits
    from ..kube.client.client import Client
    from ..kube.client.config import Credentials
    from ..kube.client.events import EventRecorder
    from ..kube.metrics import ClientMetrics
    from .health import Endpoint
    from .volcano_check import VolcanoComponent


EVENT_FLUSH_TIMEOUT = 1.0
"""Seconds that events get to be written when everything else has ended."""


class Runnable(Protocol):
    """A part of a process."""

    def run(self, *, ready: asyncio.Event | None = None) -> Coroutine[Any, Any, None]:
        """Run until cancelled; *ready* is set when work begins."""
        ...


class ComponentExitedError(Exception):
    """A part ended as if it had been told to, and it had not: the process must not go on."""


class Telemetry:
    """What a process shows of itself: figures and health."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

        from ..httpserver.metrics import ListenerMetrics
        from ..kube.metrics import ClientMetrics
        from ..kube.supervision import TaskMetrics
        from .health import Health

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(TaskMetrics())
        self.client_metrics = ClientMetrics(self.registry)
        self.listener_metrics = ListenerMetrics(self.registry)
        self.health = Health()
        self.health.add_informer_check(self.client_metrics.informers)

    def endpoints(self, flags: EndpointFlags, *, metrics_port: int) -> "list[Endpoint]":
        """Where *flags* want health and metrics served.

        Raises:
            OSError: a file of the certificate cannot be used.
            ValueError: an address is none, the certificate lacks a part, or a limit is wrong.
        """
        from .health import Endpoint, split_host_port, tls_context

        flags.validate()
        limits, figures = parse_http_limits(flags.http_limits), self.listener_metrics
        context = tls_context(
            client_ca=flags.ca_cert_file,
            certificate=flags.tls_cert_file,
            key=flags.tls_private_key_file,
        )
        wanted = [
            Endpoint(
                address=flags.health(),
                health=self.health,
                tls=context,
                limits=limits,
                listener_metrics=figures,
            ),
            Endpoint(
                address=flags.metrics(metrics_port),
                registry=self.registry,
                limits=limits,
                listener_metrics=figures,
            ),
        ]
        found = [place for place in wanted if place.address]
        for place in found:
            split_host_port(place.address)
        return found


def parse_http_limits(text: str) -> "Limits":
    """The limits that ``--http-limits`` asks for.

    Raises:
        FlagError: it names none, or no value of one.
    """
    from ..httpserver.limits import Limits, LimitsError

    try:
        return Limits.parse(text)
    except LimitsError as error:
        raise FlagError(f"--http-limits: {error}") from error


def credentials(kubeconfig: Path | None, master: str = "") -> "Credentials":
    """Those of *kubeconfig*, or the usual ones; *master* is the server in any case.

    Raises:
        ConfigError: none were found that can be used.
    """
    from ..kube.client.config import Credentials, load_credentials
    from ..kube.errors import ConfigError

    if master and not master.startswith(("http://", "https://")):
        raise ConfigError(f"--master={master}: no http or https URL")
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
    """A client for the part *name*: *metrics* counts its requests, *fence* allows its writes.

    Raises:
        ConfigError: there are no credentials that can be used.
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


async def ensure_volcano_not_running(
    cluster: ClusterFlags, check_flags: VolcanoCheckFlags, component: "VolcanoComponent"
) -> None:
    """Return if *counterpart* is not at work, or if that does not matter.

    Raises:
        BesideVolcanoError: it is.
        ConfigError: there are no credentials that can be used.
    """
    from .volcano_check import ensure_not_running

    if not check_flags.force_beside_volcano:
        async with new_client(cluster, "start") as client:
            await ensure_not_running(client, component)


@contextmanager
def exit_on_error(*errors: type[Exception]) -> Iterator[None]:
    """End the command with a line, not a traceback, when one of *errors* is raised."""
    try:
        yield
    except errors as error:
        typer.echo(f"batholith: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


async def run_components(
    recorder: "EventRecorder", *components: Runnable, ready: asyncio.Event
) -> None:
    """Run *parts* beside the recorder of their events; *ready* when all of them are.

    The recorder ends last: what the parts have to say when they stop is still told.
    """
    async with asyncio.TaskGroup() as outer:
        recording = outer.create_task(recorder.run())
        try:
            await _run_components(components, ready)
        finally:
            await recorder.flush(EVENT_FLUSH_TIMEOUT)
        recording.cancel()


async def _run_components(components: Sequence[Runnable], ready: asyncio.Event) -> None:
    each = [asyncio.Event() for _ in components]

    async def signal_ready() -> None:
        for its_ready in each:
            await its_ready.wait()
        ready.set()

    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(signal_ready())
        running = [
            tasks.create_task(part.run(ready=its_ready))
            for part, its_ready in zip(components, each, strict=True)
        ]
        # Not gathered: the first to end would have the others cancelled once more, and cut short.
        await asyncio.wait(running)
        telling.cancel()
    if any(task.cancelled() for task in running):  # and nothing has cancelled this one
        raise ComponentExitedError("a part of the process has ended by itself")
