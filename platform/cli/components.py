"""Commands of components with few flags: API server, agent, REST API.

Each command imports its component when it runs, to start fast.
"""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..machinery.lifecycle import Runnable
from ..model.job_size import MAX_PODS
from ..model.service_network import PodNetwork
from . import logs, node_flags
from .flag_groups import (
    ClusterDnsOption,
    ClusterFlags,
    EndpointFlags,
    FlagError,
    HttpLimits,
    Kubeconfig,
    LogFormat,
    LogLevel,
    MaxPodsPerJob,
    Notifications,
    NotifyAllow,
    PodNetworkOption,
    PodsOption,
    RegistryOption,
    notification_rules,
)
from .go_flags import command_from_groups
from .history_flags import HistoryElectionFlags, HistoryFlags
from .leader_election import election_client
from .manager import (
    Telemetry,
    exit_on_error,
    new_client,
    parse_http_limits,
    run_components,
)
from .process import SHUTDOWN_TIMEOUT, on_termination, run
from .rest_flags import RestFlags, RestProcessFlags, SecurityFlags
from .version import Version

if TYPE_CHECKING:
    from ..admission.settings import AdmissionSettings
    from ..httpserver.limits import Limits
    from ..kube.client.client import Client
    from ..kube.client.events import EventRecorder
    from ..local.agent.service import Agent
    from ..local.agent.settings import AgentSettings
    from ..machinery.leader_election import LeaderElector
    from ..machinery.serving_certificate import KeyPairFiles
    from ..model.notification_destinations import NotificationRules
    from .health import Endpoint

ListenFd = Annotated[
    int | None, typer.Option(help="File descriptor of an inherited listening socket.")
]
Address = Annotated[str, typer.Option(help="HOST:PORT to listen on.")]
MetricsAddress = Annotated[
    str, typer.Option(help="[HOST]:PORT of /metrics; all addresses without a host.")
]

_API_SERVER_CONNECTIONS = 3000
"""Default limit of connections: a client that uses HTTP/1.1 needs one for each watch."""


def _bind_or_inherit(fd: int | None, address: str) -> socket.socket:
    """Return the inherited socket, or bind one at *address*; exit the command on errors."""
    from .health import split_host_port

    if fd is not None:
        return socket.socket(fileno=fd)
    with exit_on_error(OSError, ValueError):
        host, port = split_host_port(address)
        try:
            return _listen(host, port)
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error


def _listen(host: str, port: int) -> socket.socket:
    """Create a listening socket; dual-stack if *host* is empty or ``::``, as in Go programs."""
    if host in ("", "::") and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    if not host:
        return socket.create_server(("", port))
    families = {info[0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return socket.create_server((host, port), family=family)


def _is_loopback(listener: socket.socket) -> bool:
    """Return whether only local processes can connect to *listener*."""
    if listener.family == socket.AF_UNIX:
        return True
    address = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


Cpus = Annotated[
    int | None,
    typer.Option(
        min=1, help="CPU capacity of each node.", show_default="at least 16; simulated: 32"
    ),
]
OtherTrainingOperator = Annotated[
    bool,
    typer.Option(
        "--other-training-operator",
        help="Another operator runs the training jobs: do not validate them, and keep its custom "
        "resource definitions.",
    ),
]


NodeOption = Annotated[
    str,
    typer.Option(
        help="Node of the agent, whose token then has the rights of a kubelet of that name.",
        show_default="the agent simulates nodes",
    ),
]
ExtensionsKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Kubeconfig of a user who may do what a kubelet does not: list claims, to remove the "
        "directories of deleted ones, and read namespaces and NetworkPolicies.",
        show_default="--kubeconfig",
    ),
]


def apiserver(
    data_dir: Annotated[Path, typer.Option(help="Directory of the database and keys.")],
    listen_address: Address = "127.0.0.1:7443",
    listen_fd: ListenFd = None,
    local_listen_fd: node_flags.LocalListenFd = None,
    service_listen_fd: node_flags.ServiceListenFd = None,
    network_listen_fd: node_flags.NetworkListenFd = None,
    bootstrap_token_file: node_flags.BootstrapTokenFile = None,
    node: NodeOption = "",
    pod_network: PodNetworkOption = "host",
    cluster_dns: ClusterDnsOption = "",
    max_pods_per_job: MaxPodsPerJob = MAX_PODS,
    other_training_operator: OtherTrainingOperator = False,
    notifications: Notifications = None,
    notify_allow: NotifyAllow = None,
    http_limits: HttpLimits = "",
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
    version: Version = False,
) -> None:
    """Run the embedded Kubernetes API server."""
    from ..admission import installed_crds, other_jobs
    from ..admission.webhooks import webhooks
    from ..local.supervisor.apiserver import Settings, serve
    from ..model import crds

    logs.configure(log_format=log_format, level=log_level)
    with exit_on_error(ValueError):
        limits = parse_http_limits(http_limits, connections=_API_SERVER_CONNECTIONS)
        notified = notification_rules(notifications, notify_allow)
    listener = _bind_or_inherit(listen_fd, listen_address)

    async def main(ready: asyncio.Event) -> None:
        rules = _admission_rules(max_pods_per_job, notified, other_training_operator)
        training = crds.load_training()
        own = crds.load() if other_training_operator else (*crds.load(), *training)
        settings = Settings(
            data_dir=data_dir,
            host=_reachable_host(listener),
            listener=listener,
            local_listener=node_flags.inherited_socket(local_listen_fd),
            service_listener=node_flags.inherited_socket(service_listen_fd),
            webhooks=(
                *webhooks(rules),
                other_jobs.batch_job_webhook(rules),
                installed_crds.webhook({each["metadata"]["name"] for each in own}),
            ),
            crds=own,
            optional_crds=training if other_training_operator else (),
            limits=limits,
            node=node,
            pod_network=PodNetwork(pod_network),
            dns_address=cluster_dns,
            network=node_flags.network(network_listen_fd, bootstrap_token_file),
        )
        await serve(settings, ready=ready)

    with exit_on_error(OSError), listener:
        run(main)


def _reachable_host(listener: socket.socket) -> str:
    bound: str = listener.getsockname()[0]
    return "127.0.0.1" if bound in ("0.0.0.0", "::") else bound


def _admission_rules(
    max_pods_per_job: int, notified: "NotificationRules", other_training_operator: bool
) -> "AdmissionSettings":
    from ..admission.settings import JOB_PLUGINS, AdmissionSettings
    from ..job_ctrl.plugins import entry_points
    from ..training_ctrl.frameworks import FRAMEWORKS

    return AdmissionSettings(
        max_pods_per_job=max_pods_per_job,
        job_plugins=JOB_PLUGINS | entry_points.names(),
        queue_gates=True,
        notifications=notified,
        frameworks=() if other_training_operator else FRAMEWORKS,
    )


def _endpoints(
    telemetry: Telemetry, metrics_address: str, http_limits: str
) -> "tuple[list[Endpoint], Limits]":
    """Return the metrics endpoint and the listener limits; exit the command on errors."""
    with exit_on_error(ValueError):
        flags = EndpointFlags(listen_address=metrics_address, http_limits=http_limits)
        return telemetry.endpoints(flags, metrics_port=0), parse_http_limits(http_limits)


MountOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR[:ro]",
        help="Directory, without links, that pods may mount by hostPath; repeatable.",
    ),
]


PkiDir = Annotated[Path | None, typer.Option(help="Directory of agent.crt, agent.key and ca.crt.")]
EndPods = Annotated[
    bool, typer.Option("--end-pods", help="Stop all pods at SIGTERM; else they keep running.")
]


def agent(
    data_dir: Annotated[Path, typer.Option(help="Directory of pods and their logs.")],
    kubeconfig: Kubeconfig = None,
    simulate: Annotated[int, typer.Option(min=0, help="Number of simulated nodes.")] = 0,
    cpus: Cpus = None,
    pki_dir: PkiDir = None,
    mount: MountOption = None,
    pods: PodsOption = "auto",
    registry: RegistryOption = None,
    pod_network: PodNetworkOption = "host",
    cluster_dns: ClusterDnsOption = "",
    container_log_max_size: node_flags.LogSizeOption = "10Mi",
    container_log_max_files: node_flags.LogFilesOption = 5,
    allowed_unsafe_sysctls: node_flags.SysctlsOption = "",
    extensions_kubeconfig: ExtensionsKubeconfig = None,
    node_name: node_flags.NodeNameOption = None,
    node_address: node_flags.NodeAddressOption = "",
    rotate_certificates: node_flags.RotateOption = False,
    end_pods: EndPods = False,
    metrics_address: MetricsAddress = "",
    http_limits: HttpLimits = "",
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
    version: Version = False,
) -> None:
    """Run pods as processes of this machine, or simulate nodes."""
    from ..kube.client.events import EventRecorder
    from ..kube.errors import ConfigError
    from ..local.agent.certificates import CertificateError
    from ..local.agent.service import Agent
    from .health import CannotListenError, serve_endpoints

    logs.configure(log_format=log_format, level=log_level)
    telemetry = Telemetry()
    endpoints, limits = _endpoints(telemetry, metrics_address, http_limits)
    settings = _agent_settings(data_dir, simulate, cpus=cpus, pki_dir=pki_dir, mount=mount or ())
    settings = with_images(settings, pods, registry or ())
    with exit_on_error(ValueError):
        settings = node_flags.with_logs(settings, container_log_max_size, container_log_max_files)
    settings = replace(settings, limits=limits, listener_metrics=telemetry.listener_metrics)
    settings = node_flags.with_network(settings, pod_network, cluster_dns, allowed_unsafe_sysctls)
    settings = node_flags.with_identity(settings, node_name, node_address)
    settings = node_flags.joined(settings, pki_dir) if rotate_certificates else settings
    _prepare_files(settings)
    files, metrics = (kubeconfig, extensions_kubeconfig or kubeconfig), telemetry.client_metrics

    async def main(ready: asyncio.Event) -> None:
        async with (
            serve_endpoints(endpoints),
            new_client(ClusterFlags(kubeconfig=files[0]), "agent", metrics=metrics) as client,
            new_client(ClusterFlags(kubeconfig=files[1]), "agent", metrics=metrics) as extensions,
        ):
            recorder = EventRecorder(client, component="kubelet")
            node_agent = Agent(client, settings=settings, recorder=recorder, extensions=extensions)
            await node_flags.ensure_serving(client, settings)
            _stop_at_signal(node_agent, ready, end_pods=end_pods)
            await run_components(recorder, node_agent, ready=ready)

    with exit_on_error(CannotListenError, CertificateError, ConfigError):
        run(main)


def _stop_at_signal(node_agent: "Agent", ready: asyncio.Event, *, end_pods: bool) -> None:
    """Stop the agent, which the current task runs, when a signal arrives."""
    task = asyncio.current_task()

    def stop() -> None:
        if ready.is_set() or task is None:
            # Not cancelled: pods stop in order, and their final status is written.
            node_agent.stop(stop_pods=end_pods)
        else:
            task.cancel()

    # Pods have their own termination grace periods.
    on_termination(stop, timeout=None if end_pods else SHUTDOWN_TIMEOUT)


def workloads(
    kubeconfig: Kubeconfig = None,
    metrics_address: MetricsAddress = "",
    http_limits: HttpLimits = "",
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
    version: Version = False,
) -> None:
    """Run the controllers that an embedded cluster needs and a Kubernetes cluster has already.

    Of Deployments, ReplicaSets, StatefulSets, DaemonSets and the endpoints of Services.
    """
    from ..kube.client.events import EventRecorder
    from ..local.workloads.service import workload_controllers

    def create(client: "Client", recorder: EventRecorder) -> "Iterable[Runnable]":
        return workload_controllers(client, recorder).values()

    logs.configure(log_format=log_format, level=log_level)
    _run_client("workloads", kubeconfig, create, metrics=(metrics_address, http_limits))


def proxy(
    kubeconfig: Kubeconfig = None,
    pod_network: PodNetworkOption = "host",
    data_dir: Annotated[Path | None, typer.Option(help="Data directory of the agent.")] = None,
    cluster_dns: ClusterDnsOption = "",
    names_only: node_flags.NamesOnlyOption = False,
    metrics_address: MetricsAddress = "",
    http_limits: HttpLimits = "",
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
    version: Version = False,
) -> None:
    """Connect the addresses of an embedded cluster's Services to their pods, and serve names."""
    from ..kube.client.events import EventRecorder
    from ..local.proxy.service_proxy import ServiceProxy
    from ..local.proxy.service_rules import ServiceRules

    def create(client: "Client", recorder: EventRecorder) -> "Iterable[Runnable]":
        own = recorder.with_component("kube-proxy")
        found = ServiceProxy(
            client, recorder=own, ranges=network.ranges, rules=rules, listens=not names_only
        )
        if not cluster_dns:
            return [found]
        from ..local.proxy.dns.server import name_server

        return [found, name_server(found, cluster_dns, network.ranges)]

    logs.configure(log_format=log_format, level=log_level)
    network, rules = PodNetwork(pod_network), None
    if network is PodNetwork.NAMESPACES:
        if data_dir is None:
            raise typer.BadParameter(
                "required with --pod-network=namespaces", param_hint="--data-dir"
            )
        rules = ServiceRules(data_dir)
    _run_client("proxy", kubeconfig, create, metrics=(metrics_address, http_limits))


def _run_client(
    name: str,
    kubeconfig: Path | None,
    create: "Callable[[Client, EventRecorder], Iterable[Runnable]]",
    *,
    metrics: tuple[str, str],
) -> None:
    """Run what *create* returns, with one client and one event recorder.

    *metrics* are the address of the metrics and the limits of its listener.
    """
    from ..kube.client.events import EventRecorder
    from ..kube.errors import ConfigError
    from .health import CannotListenError, serve_endpoints

    telemetry = Telemetry()
    endpoints, _ = _endpoints(telemetry, *metrics)
    cluster = ClusterFlags(kubeconfig=kubeconfig)

    async def main(ready: asyncio.Event) -> None:
        async with (
            serve_endpoints(endpoints),
            new_client(cluster, name, metrics=telemetry.client_metrics) as client,
        ):
            recorder = EventRecorder(client, component=name)
            await run_components(recorder, *create(client, recorder), ready=ready)

    with exit_on_error(CannotListenError, ConfigError):
        run(main)


def with_images(settings: "AgentSettings", pods: str, registries: Iterable[str]) -> "AgentSettings":
    """Return *settings* with the flags about container images; exit the command on errors."""
    from ..local.agent.images.manager import RunMode
    from ..local.agent.images.puller import parse_registries

    with exit_on_error(ValueError):
        parsed = parse_registries(tuple(registries))
    return replace(settings, run_mode=RunMode(pods), registries=parsed)


def _prepare_files(settings: "AgentSettings") -> None:
    """Create the agent's directories; exit if other users can write to them or to its key."""
    from ..kube.private_files import read_credential
    from ..local.agent.pods.records import create_dirs

    with exit_on_error(OSError):
        create_dirs(settings.data_dir)
        if settings.serving is not None and not settings.joined:
            read_credential(settings.serving.key)


def _agent_settings(
    data_dir: Path,
    simulate: int,
    *,
    cpus: int | None,
    pki_dir: Path | None,
    mount: Iterable[str],
) -> "AgentSettings":
    from ..local.agent.devices.discovery import discovery_from_environment
    from ..local.agent.settings import AgentSettings, ServingFiles, SimulationSettings
    from ..local.agent.volumes.host_dirs import HostDir

    simulation = SimulationSettings(nodes=simulate) if simulate else None
    permitted = tuple(map(HostDir.parse, mount))
    settings = AgentSettings(
        data_dir=data_dir,
        simulation=simulation,
        host_dirs=permitted,
        devices=discovery_from_environment(),
    )
    if cpus is not None:
        settings = replace(settings, cpus=cpus)
        if simulation is not None:
            settings = replace(settings, simulation=replace(simulation, cpus=cpus))
    if pki_dir is None:
        return settings
    serving = ServingFiles(
        certificate=pki_dir / "agent.crt",
        key=pki_dir / "agent.key",
        client_ca=pki_dir / "ca.crt",
    )
    return replace(settings, serving=serving)


def _key_pair(
    listener: socket.socket, certificate: Path | None, key: Path | None, *, insecure: bool
) -> "KeyPairFiles | None":
    """Return the serving certificate of *listener*, if any.

    Raises:
        FlagError: a file is missing, or plain HTTP would expose bearer tokens on the network.
    """
    from ..machinery.serving_certificate import KeyPairFiles

    if bool(certificate) != bool(key):
        raise FlagError("--tls-cert-file and --tls-private-key-file require each other")
    if certificate and key:
        if insecure:
            raise FlagError("--insecure has no effect with --tls-cert-file: remove one of them")
        return KeyPairFiles(certificate=certificate, key=key)
    if not (insecure or _is_loopback(listener)):
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise FlagError(
            f"cannot serve plain HTTP on {address}, which is not loopback: bearer tokens could be"
            " read on the network; set --tls-cert-file and --tls-private-key-file, or --insecure"
        )
    return None


@asynccontextmanager
async def _history_electors(
    history: HistoryFlags,
    election: HistoryElectionFlags,
    cluster: ClusterFlags,
    *,
    telemetry: Telemetry,
) -> "AsyncIterator[Callable[[], LeaderElector] | None]":
    """Provide candidates for the Lease of the recorder, one per term; ``None`` without election.

    Raises:
        ConfigError: no valid credentials were found.
    """
    config = election.settings()
    if config is None or not history.record_history:
        yield None
        return
    from ..machinery.clock import BoottimeClock
    from ..machinery.leader_election import LeaderElectionMetrics, LeaderElector

    metrics, clock = LeaderElectionMetrics(telemetry.registry), BoottimeClock()
    async with election_client(config, cluster, "api", telemetry=telemetry) as client:
        yield lambda: LeaderElector(client, config, clock=clock, metrics=metrics)


def _api(
    flags: RestFlags,
    security: SecurityFlags,
    history: HistoryFlags,
    election: HistoryElectionFlags,
    process: RestProcessFlags,
) -> None:
    """Serve the REST command API, with /livez and /readyz."""
    from ..api.http.cors import OriginPatternError
    from ..api.identity.client_certificates import ClientCaError
    from ..api.serving.server import ApiSettings, CertificateFilesError, serve
    from ..api.streams.feeds import StreamSettings
    from ..kube.errors import ConfigError
    from ..machinery.clock import SystemClock
    from ..store.database import StoreError
    from .health import CannotListenError, serve_endpoints

    logs.configure(log_format=process.log_format, level=process.log_level)
    telemetry = Telemetry()
    endpoints, limits = _endpoints(telemetry, process.metrics_address, process.http_limits)
    with exit_on_error(ValueError):
        election.settings()
        recorded = history.settings(telemetry.registry)
    listener = _bind_or_inherit(flags.listen_fd, flags.listen_address)
    cluster = ClusterFlags(kubeconfig=flags.kubeconfig)

    async def main(ready: asyncio.Event) -> None:
        async with (
            serve_endpoints(endpoints),
            new_client(cluster, "api", metrics=telemetry.client_metrics) as client,
            _history_electors(history, election, cluster, telemetry=telemetry) as elector,
        ):
            electing = replace(settings, history=replace(recorded, new_elector=elector))
            await serve(client, electing, clock=SystemClock(), ready=ready)

    errors = (
        *(CannotListenError, CertificateFilesError, ClientCaError, ConfigError),
        *(FlagError, OriginPatternError, StoreError),
    )
    with exit_on_error(*errors), listener:
        pair = _key_pair(
            listener, flags.tls_cert_file, flags.tls_private_key_file, insecure=flags.insecure
        )
        settings = ApiSettings(
            store_url=flags.store,
            scheduler_namespace=flags.scheduler_namespace,
            listener=listener,
            certificate=pair,
            security=security.settings(tls=pair is not None),
            limits=limits,
            listener_metrics=telemetry.listener_metrics,
            streams=StreamSettings(
                max_streams=process.max_streams,
                max_streams_per_caller=process.max_streams_per_caller,
            ),
            access_log=process.access_log,
            pages=process.pages_settings(),
            registry=telemetry.registry,
        )
        run(main)


_api.__name__ = "api"
api = command_from_groups(_api)
