"""Settings of the agent."""

import asyncio
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from ...httpserver.limits import Limits
from ...httpserver.metrics import ListenerMetrics
from ...model.service_network import PodNetwork
from .devices.discovery import Discovery
from .images.manager import RunMode
from .images.puller import Registry
from .runtime.logs import LogRotation
from .runtime.runs import IsolationLevel
from .state.status import BackOff
from .volumes.host_dirs import HostDir


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """Simulated nodes, and the default behaviour of their pods."""

    nodes: int
    """Number of nodes, named ``<prefix>-0`` and so on."""

    prefix: str = "sim"
    cpus: int = 32
    memory: str = "128Gi"
    pods: int = 500
    start_delay: float = 0.0
    """Seconds from binding to running, unless a pod's annotation overrides it."""

    stop_delay: float = 0.0
    """Seconds from SIGTERM to exit, unless the pod ignores SIGTERM."""

    min_run: float = 0.0
    """Minimum seconds that each container runs."""

    lease_seconds: int = 0
    """Duration of the nodes' Leases, which are renewed four times as often; 0: 200, or 40 for a
    single node."""

    writers: int = 48
    """Status writes in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFiles:
    """TLS files of the log server."""

    certificate: Path
    key: Path
    client_ca: Path
    """CA of the client certificates that the log server accepts."""

    renewed: bool = False
    """Whether certificate and key are replaced while the server runs."""


def node_name() -> str:
    """Return the name of this machine's node."""
    return socket.gethostname().lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of the agent of one machine."""

    data_dir: Path
    """Parent of ``pods/``, ``logs/`` and ``volumes/``; hidden from containers in a sandbox."""

    node_name: str = field(default_factory=node_name)
    node_address: str = ""
    """IPv4 address of the node and of all its pods, for other nodes; empty: they are on loopback,
    and each pod has another address."""

    joined: bool = False
    """Whether the node belongs to the cluster of another machine: it renews its certificates, and
    has no directories of claims."""

    cpus: int = field(default_factory=lambda: max(16, os.cpu_count() or 1))
    """Allocatable cores, by default at least 16 so that the examples fit on a laptop."""

    memory: str = ""
    """Allocatable memory; empty means all of the machine's memory."""

    pods: int = 500
    labels: dict[str, str] = field(default_factory=dict)
    """Additional labels of the node."""

    sandbox: IsolationLevel | None = None
    """Isolation level of containers; ``None`` selects the best one that works on this machine."""

    run_mode: RunMode = RunMode.AUTO
    """Whether containers run images, or programs of the machine."""

    registries: tuple[Registry, ...] = ()
    """Registries from which images are pulled in mode auto, and their mirrors."""

    image_retry: float = 10.0
    """Seconds after which a container that lacks its image is started again; doubled after each
    failed pull."""

    usage_interval: float = 15.0
    """Seconds between two readings of what containers and the node use."""

    storage_interval: float = 10.0
    """Seconds between measurements of the disk space of pods with limits."""

    log_rotation: LogRotation = field(default_factory=LogRotation)
    """Limits of the logs of containers."""

    devices: Discovery = field(default_factory=Discovery)
    """Where devices are looked for."""

    device_interval: float = 60.0
    """Seconds between two checks which devices work."""

    back_off: BackOff = field(default_factory=BackOff)
    host_dirs: tuple[HostDir, ...] = ()
    """Directories of the machine that pods may mount by hostPath and local volumes."""

    serving: ServingFiles | None = None
    """TLS files of the log server; ``None`` disables it."""

    limits: Limits = field(default_factory=Limits)
    """Limits of the log server's connections and requests."""

    listener_metrics: ListenerMetrics = field(default_factory=ListenerMetrics)
    """Counters of the log server's rejections."""

    allowed_unsafe_sysctls: tuple[str, ...] = ()
    """Sysctls that pods may set in addition to the safe ones; one may end with ``*``."""

    network: PodNetwork = PodNetwork.HOST
    """In which network pods run."""

    cluster_dns: str = ""
    """Address of the cluster's name server; empty if there is none."""

    simulation: SimulationSettings | None = None
    """Simulate nodes instead of running containers."""


@dataclass(slots=True)
class ShutdownRequest:
    """Request to stop the agent."""

    requested: asyncio.Event = field(default_factory=asyncio.Event)
    stop_pods: bool = False
    """Also stop the containers, which otherwise keep running."""
