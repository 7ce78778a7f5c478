"""The parts as commands of their own; ``batholith up`` runs one process of each.

Every command imports its part when it runs, so that none pays for the others at start.
"""

import asyncio
import signal
import socket
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from . import logs
from .process import run

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..kube.client import Client
    from ..kube.events import EventRecorder

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Credentials.", show_default="$KUBECONFIG, ~/.kube/config, or in-cluster"),
]
ListenFd = Annotated[
    int | None, typer.Option(help="A listening socket that the parent process hands down.")
]
LogFormat = Annotated[str, typer.Option(help="text or json.")]
LogLevel = Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")]
Address = Annotated[str, typer.Option(help="HOST:PORT to listen on.")]


Qps = Annotated[
    float,
    typer.Option("--kube-api-qps", min=0, help="Requests a second at most; 0 means no limit."),
]
Burst = Annotated[
    int, typer.Option("--kube-api-burst", min=1, help="Requests at once, within the limit.")
]
Metrics = Annotated[
    str, typer.Option("--listen-address", help="HOST:PORT of /metrics.", show_default="none")
]


class _Runs(Protocol):
    def run(self, *, ready: asyncio.Event | None = None) -> Coroutine[Any, Any, None]: ...


def _client(
    kubeconfig: Path | None,
    name: str,
    *,
    qps: float = 0,
    burst: int = 100,
    registry: "CollectorRegistry | None" = None,
) -> "Client":
    from ..kube.client import Client
    from ..kube.config import load
    from ..kube.flow import RateLimiter
    from ..kube.metrics import ClientMetrics
    from ..kube.transport import ClientOptions

    metrics = ClientMetrics(registry)
    limiter = RateLimiter(qps, burst) if qps else None
    if limiter is not None:
        metrics.report_limiter(name, lambda: limiter.saturation)
    return Client(
        load(None if kubeconfig is None else str(kubeconfig)),
        user_agent=f"batholith-{name}",
        limiter=limiter,
        options=ClientOptions(metrics=metrics),
    )


def _serve_metrics(address: str) -> "CollectorRegistry":
    """A registry of this process, shown at *address* unless that is empty."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    if address:
        host, _, port = address.rpartition(":")
        start_http_server(int(port), host or "127.0.0.1", registry)
    return registry


async def _run_all(recorder: "EventRecorder", *parts: _Runs, ready: asyncio.Event) -> None:
    """Run *parts* beside the recorder of their events; *ready* when all of them are."""
    each = [asyncio.Event() for _ in parts]

    async def tell() -> None:
        for its_ready in each:
            await its_ready.wait()
        ready.set()

    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(recorder.run()), tasks.create_task(tell())]
        running = [
            tasks.create_task(part.run(ready=its_ready))
            for part, its_ready in zip(parts, each, strict=True)
        ]
        await asyncio.gather(*running)
        for task in beside:
            task.cancel()


def _listener(fd: int | None, address: str) -> socket.socket:
    if fd is not None:
        return socket.socket(fileno=fd)
    host, _, port = address.rpartition(":")
    return socket.create_server((host, int(port)))


def apiserver(
    data_dir: Annotated[Path, typer.Option(help="Keeps everything that lasts.")],
    listen_address: Address = "127.0.0.1:7443",
    listen_fd: ListenFd = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
) -> None:
    """Run the embedded Kubernetes API server."""
    from ..admission.settings import AdmissionSettings
    from ..admission.webhooks import webhooks
    from ..cluster.apiserver.server import Settings, serve
    from ..model import crds

    logs.configure(form=log_format, level=log_level)

    async def main(ready: asyncio.Event) -> None:
        settings = Settings(
            data=data_dir,
            listener=_listener(listen_fd, listen_address),
            webhooks=webhooks(AdmissionSettings()),
            crds=crds.load(),
        )
        await serve(settings, ready=ready)

    run(main)


def controllers(
    kubeconfig: Kubeconfig = None,
    worker_threads: Annotated[int, typer.Option(min=1, help="Workers of the job queue.")] = 64,
    kube_api_qps: Qps = 0,
    kube_api_burst: Burst = 100,
    listen_address: Metrics = "",
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
) -> None:
    """Run the queue, job and podgroup controllers."""
    from ..job_ctrl.controller import JobController
    from ..job_ctrl.settings import JobSettings
    from ..kube.cache import Cache
    from ..kube.events import EventRecorder
    from ..machinery.clock import SystemClock
    from ..machinery.metrics import WorkQueueMetrics
    from ..model.names import PODGROUPS
    from ..model.podgroup import PodGroup
    from ..podgroup_ctrl.controller import PodGroupController, PodGroupSettings
    from ..queue_ctrl.controller import QueueController, QueueSettings

    logs.configure(form=log_format, level=log_level)

    async def main(ready: asyncio.Event) -> None:
        clock = SystemClock()
        registry = _serve_metrics(listen_address)
        work_metrics = WorkQueueMetrics(registry)
        async with _client(
            kubeconfig, "controllers", qps=kube_api_qps, burst=kube_api_burst, registry=registry
        ) as client:
            recorder = EventRecorder(client, component="vc-controller-manager")
            podgroups = Cache(client, PODGROUPS, PodGroup)
            jobs = JobController(
                client,
                settings=JobSettings(
                    workers=worker_threads, registry=registry, work_metrics=work_metrics
                ),
                clock=clock,
                recorder=recorder,
                podgroups=podgroups,
            )
            queues = QueueController(
                client,
                settings=QueueSettings(registry=registry, work_metrics=work_metrics),
                clock=clock,
                recorder=recorder,
                podgroups=podgroups,
            )
            groups = PodGroupController(
                client,
                settings=PodGroupSettings(work_metrics=work_metrics),
                clock=clock,
                recorder=recorder,
                podgroups=podgroups,
            )
            await _run_all(recorder, queues, jobs, groups, ready=ready)

    run(main)


def scheduler(
    kubeconfig: Kubeconfig = None,
    scheduler_conf: Annotated[
        Path | None, typer.Option(help="Actions and plugins, as Volcano writes them.")
    ] = None,
    default_scheduler: Annotated[
        bool,
        typer.Option("--default-scheduler", help="Place pods of default-scheduler, too."),
    ] = False,
    kube_api_qps: Qps = 0,
    kube_api_burst: Burst = 100,
    listen_address: Metrics = "",
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
) -> None:
    """Run the gang scheduler."""
    from ..kube.events import EventRecorder
    from ..machinery.clock import SystemClock
    from ..scheduler import conf
    from ..scheduler.service import Scheduler, SchedulerSettings

    logs.configure(form=log_format, level=log_level)

    async def main(ready: asyncio.Event) -> None:
        registry = _serve_metrics(listen_address)
        async with _client(
            kubeconfig, "scheduler", qps=kube_api_qps, burst=kube_api_burst, registry=registry
        ) as client:
            recorder = EventRecorder(client, component="volcano")
            settings = SchedulerSettings(
                conf=conf.DEFAULT if scheduler_conf is None else scheduler_conf.read_text(),
                single_names=("default-scheduler",) if default_scheduler else (),
            )
            part = Scheduler(client, settings=settings, clock=SystemClock(), recorder=recorder)
            await _run_all(recorder, part, ready=ready)

    run(main)


def agent(
    data_dir: Annotated[Path, typer.Option(help="Keeps pods and their logs.")],
    kubeconfig: Kubeconfig = None,
    simulate: Annotated[int, typer.Option(min=0, help="Pretend this many nodes.")] = 0,
    cpus: Annotated[
        int | None,
        typer.Option(min=1, help="CPUs that the node offers.", show_default="at least 16"),
    ] = None,
    pki_dir: Annotated[
        Path | None, typer.Option(help="agent.crt, agent.key and ca.crt of the log server.")
    ] = None,
    end_pods: Annotated[
        bool, typer.Option("--end-pods", help="End all pods at SIGTERM; else they run on.")
    ] = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
) -> None:
    """Run pods as processes of this machine, or pretend to."""
    from ..cluster.agent.service import Agent
    from ..cluster.agent.settings import AgentSettings, ServingFiles, Simulation
    from ..kube.events import EventRecorder
    from ..machinery.clock import SystemClock

    logs.configure(form=log_format, level=log_level)
    settings = AgentSettings(
        data_dir=data_dir, simulation=Simulation(nodes=simulate) if simulate else None
    )
    if cpus is not None:
        settings = replace(settings, cpus=cpus)
    if pki_dir is not None:
        serving = ServingFiles(
            certificate=pki_dir / "agent.crt",
            key=pki_dir / "agent.key",
            client_ca=pki_dir / "ca.crt",
        )
        settings = replace(settings, serving=serving)

    async def main(ready: asyncio.Event) -> None:
        async with _client(kubeconfig, "agent") as client:
            recorder = EventRecorder(client, component="kubelet")
            part = Agent(client, settings=settings, clock=SystemClock(), recorder=recorder)
            loop, task = asyncio.get_running_loop(), asyncio.current_task()

            def stop() -> None:
                if ready.is_set() or task is None:
                    # In the place of being cancelled: pods end in order, and their ends are told.
                    part.stop(end_pods=end_pods)
                else:
                    task.cancel()

            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            await _run_all(recorder, part, ready=ready)

    run(main)


def api(
    kubeconfig: Kubeconfig = None,
    store: Annotated[
        str,
        typer.Option(help="SQLAlchemy URL of the history.", envvar="BATHOLITH_STORE"),
    ] = "sqlite:///batholith-api.db",
    listen_address: Address = "127.0.0.1:7480",
    listen_fd: ListenFd = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
) -> None:
    """Serve the REST command API."""
    from ..api.server import ApiSettings, serve
    from ..machinery.clock import SystemClock

    logs.configure(form=log_format, level=log_level)

    async def main(ready: asyncio.Event) -> None:
        settings = ApiSettings(store_url=store, listener=_listener(listen_fd, listen_address))
        async with _client(kubeconfig, "api") as client:
            await serve(client, settings, clock=SystemClock(), ready=ready)

    run(main)
