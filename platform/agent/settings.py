"""What an administrator may choose about the agent."""

import asyncio
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from ..httpserver.limits import Limits
from ..httpserver.metrics import ListenerMetrics
from .runtime.runs import IsolationLevel
from .state.status import BackOff


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """How pretended nodes look and how their pods behave by default."""

    nodes: int
    """How many there are; they are named ``<prefix>-0`` and so on."""

    prefix: str = "sim"
    cpus: int = 32
    memory: str = "128Gi"
    pods: int = 500
    start_delay: float = 0.0
    """Seconds from binding to running, unless a pod's annotation says otherwise."""

    stop_delay: float = 0.0
    """Seconds that a pod takes to obey, unless it ignores SIGTERM."""

    min_run: float = 0.0
    """Seconds that each container runs at least, even one whose command ends at once."""

    writers: int = 48
    """Requests in flight at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFiles:
    """The files that the log server needs."""

    certificate: Path
    key: Path
    client_ca: Path
    """Only clients with a certificate of this authority are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The agent of one machine."""

    data_dir: Path
    """Holds ``pods/``, ``logs/`` and ``volumes/``; containers in a sandbox do not see it."""

    node_name: str = field(default_factory=lambda: socket.gethostname().lower())
    cpus: int = field(default_factory=lambda: max(16, os.cpu_count() or 1))
    """Allocatable cores; more than there are lets examples fit a laptop."""

    memory: str = ""
    """Allocatable memory; empty means all that the machine has."""

    pods: int = 500
    labels: dict[str, str] = field(default_factory=dict)
    """More labels of the node."""

    sandbox: IsolationLevel | None = None
    """How far containers are kept apart; ``None`` finds the best level that works here."""

    back_off: BackOff = field(default_factory=BackOff)
    host_paths: tuple[str, ...] = ()
    """Folders of the machine that pods may mount by hostPath."""

    api_address: str = ""
    """``host:port`` of the API server as pods see it; told to them when set."""

    serving: ServingFiles | None = None
    """Without it there is no log server."""

    listen_port: int = 0
    """Port of the log server on loopback; 0 takes a free one."""

    limits: Limits = field(default_factory=Limits)
    """What clients may take of the log server."""

    listener_metrics: ListenerMetrics = field(default_factory=ListenerMetrics)
    """Counts what the log server refuses."""

    simulation: SimulationSettings | None = None
    """Pretend nodes instead of running anything."""


@dataclass(slots=True)
class ShutdownRequest:
    """The wish that the agent ends."""

    requested: asyncio.Event = field(default_factory=asyncio.Event)
    stop_pods: bool = False
    """Containers are to be ended too; else they run on."""
