"""``batholith scheduler``: the gang scheduler."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import featuregate
from .flag_groups import KLOG_FLAGS, ClusterFlags, EndpointFlags, LogFlags, VolcanoCheckFlags
from .go_flags import IgnoredFlag, command_from_groups
from .leader_election import ElectedRunnable, SchedulerElectionFlags, fenced_client, leader_election
from .manager import Telemetry, ensure_no_others, exit_on_error, run_components
from .process import run

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..kube.client.client import Client
    from ..scheduler.scheduler import Scheduler, SchedulerSettings
    from ..scheduler.simulation.server import SimulationAddress
    from ..scheduler.writers.kept_state import KeptState

log = logging.getLogger(__name__)

METRICS_PORT = 8080

_EVENT_DRIVEN = "scheduling is event-driven."
_ALL_NODES = "all nodes are evaluated together."

IGNORED_FLAGS = (
    IgnoredFlag("schedule-period", _EVENT_DRIVEN),
    IgnoredFlag("resync-period", _EVENT_DRIVEN),
    IgnoredFlag("node-worker-threads", _ALL_NODES),
    IgnoredFlag("minimum-feasible-nodes", _ALL_NODES),
    IgnoredFlag("minimum-percentage-nodes-to-find", _ALL_NODES),
    IgnoredFlag("percentage-nodes-to-find", _ALL_NODES),
    IgnoredFlag("gate-removal-worker-num", "gates are removed with the concurrency of binds."),
    IgnoredFlag(
        "resource-sync-timeout", "the scheduler waits until informers are synced; see /readyz."
    ),
    IgnoredFlag("ignored-provisioners", "volumes are not considered yet."),
    IgnoredFlag("csi-storage", "volumes are not considered yet.", switch=True),
    IgnoredFlag("priority-class", "priority classes are always considered.", switch=True),
    IgnoredFlag("enable-pprof", "there is no profiler.", switch=True),
    IgnoredFlag("cache-dumper", "there is no cache dumper.", switch=True),
    IgnoredFlag("cache-dump-dir", "there is no cache dumper."),
    IgnoredFlag("disable-default-scheduler-config", "see --scheduler-conf.", switch=True),
    IgnoredFlag("scheduler-sharding-name", "there is no sharding."),
    *KLOG_FLAGS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingFlags:
    """Scheduling configuration."""

    scheduler_conf: Annotated[
        Path | None,
        typer.Option(
            help="Scheduler configuration (actions and plugins) in Volcano's format; "
            "changes of the file take effect within two seconds."
        ),
    ] = None
    strict_conf: Annotated[
        bool,
        typer.Option(
            "--strict-conf",
            help="Reject a configuration with a plugin of Volcano that is not implemented; "
            "else it is disabled and reported.",
        ),
    ] = False
    scheduler_name: Annotated[
        list[str], typer.Option(help="Schedule pods with this scheduler name; may be repeated.")
    ] = ("volcano",)  # type: ignore[assignment]  # typer converts it to a list
    default_scheduler: Annotated[
        bool, typer.Option("--default-scheduler", help="Also schedule pods of default-scheduler.")
    ] = False
    default_queue: Annotated[str, typer.Option(help="Queue of gangs without one.")] = "default"
    stranded_gang_timeout: Annotated[
        str,
        typer.Option(
            help="Time after which the bound pods of a gang that was never complete are evicted."
        ),
    ] = "60s"
    place_at_creation: Annotated[
        bool,
        typer.Option(
            help="Allocate gangs before their pods exist, if the job controller describes them."
        ),
    ] = True
    state_configmap: Annotated[
        str,
        typer.Option(
            help="ConfigMap in the namespace of the Lease with what is kept over restarts; "
            "empty: nothing is kept."
        ),
    ] = "batholith-scheduler-state"
    feature_gates: Annotated[
        str, typer.Option(help=f"Name=true,…; only {featuregate.QUEUE_GATES} has an effect.")
    ] = ""
    node_selector: Annotated[
        list[str], typer.Option(help="Not supported; setting it is an error.")
    ] = ()  # type: ignore[assignment]  # typer converts it to a list
    scheduler_sharding_mode: Annotated[str, typer.Option(help="Only none is supported.")] = "none"
    plugins_dir: Annotated[
        str, typer.Option(help="Not supported (Go plugins); setting it is an error.")
    ] = ""

    def kept_state(
        self, client: "Client", namespace: str, gang_scheduler: "Scheduler"
    ) -> "KeptState":
        """Return what keeps the scheduler's state in the ConfigMap, in *namespace*."""
        from ..machinery.clock import SystemClock
        from ..scheduler.writers.kept_state import KeptState

        entries = gang_scheduler.kept_entries
        kept = KeptState(client, SystemClock(), namespace, self.state_configmap, entries)
        gang_scheduler.restored = kept.restored
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationFlags:
    """Simulation of jobs for the REST API."""

    simulation_address: Annotated[
        str,
        typer.Option(
            help="[HOST]:PORT at which the leader simulates jobs for the REST API; empty: nowhere."
        ),
    ] = ""
    simulation_advertised_host: Annotated[
        str,
        typer.Option(help="Host that the REST API connects to; by default that of the address."),
    ] = ""

    def address(self, namespace: str) -> "SimulationAddress | None":
        """Return the address, if simulations are to be served; its Secret is in *namespace*.

        Raises:
            ValueError: the address is malformed.
        """
        from ..scheduler.simulation.server import SimulationAddress
        from .health import split_host_port

        if not self.simulation_address:
            return None
        try:
            host, port = split_host_port(self.simulation_address)
        except ValueError as error:
            raise ValueError(f"--simulation-address: {error}") from None
        if not (host or self.simulation_advertised_host):
            raise ValueError("--simulation-advertised-host: required if the address has no host")
        return SimulationAddress(
            host=host,
            port=port,
            namespace=namespace,
            advertised_host=self.simulation_advertised_host,
        )


class UnsupportedFlagError(ValueError):
    """A flag is not supported, and ignoring it would schedule pods wrongly."""


def _validate(flags: SchedulingFlags) -> None:
    if flags.node_selector:
        raise UnsupportedFlagError("--node-selector is not supported")
    if flags.scheduler_sharding_mode not in ("", "none"):
        raise UnsupportedFlagError("--scheduler-sharding-mode: only none is supported")
    if flags.plugins_dir:
        raise UnsupportedFlagError("--plugins-dir: Go plugins cannot be loaded")
    for gate in featuregate.ineffective_gates(
        flags.feature_gates, supported=[featuregate.QUEUE_GATES]
    ):
        log.warning("feature gate without effect", extra={"gate": gate})


def _settings(flags: SchedulingFlags, registry: "CollectorRegistry") -> "SchedulerSettings":
    """Return the scheduler's settings.

    Raises:
        ValueError: the configuration cannot be read or is invalid.
    """
    from ..machinery.metrics import WorkQueueMetrics
    from ..scheduler import conf, conf_reload
    from ..scheduler.scheduler import SchedulerSettings

    text = conf.DEFAULT if flags.scheduler_conf is None else conf_reload.read(flags.scheduler_conf)
    settings = SchedulerSettings(
        conf=text,
        conf_file=flags.scheduler_conf,
        strict_conf=flags.strict_conf,
        gang_scheduler_names=tuple(flags.scheduler_name),
        pod_scheduler_names=("default-scheduler",) if flags.default_scheduler else (),
        default_queue=flags.default_queue,
        queue_gates=featuregate.is_enabled(flags.feature_gates, featuregate.QUEUE_GATES),
        stranded_gang_timeout=_stranded_gang_timeout(flags),
        place_at_creation=flags.place_at_creation,
        registry=registry,
        work_metrics=WorkQueueMetrics(registry),
    )
    settings.load_conf(text)  # Report errors at start-up, not when elected.
    return settings


def _stranded_gang_timeout(flags: SchedulingFlags) -> float:
    """Return the timeout in seconds.

    Raises:
        DurationError: it is not a positive duration.
    """
    from ..model.durations import DurationError, parse

    try:
        timeout = parse(flags.stranded_gang_timeout).total_seconds()
    except DurationError as error:
        raise DurationError(f"--stranded-gang-timeout: {error}") from None
    if timeout <= 0:
        value = flags.stranded_gang_timeout
        raise DurationError(f"--stranded-gang-timeout={value}: must be more than 0")
    return timeout


def _scheduler(
    cluster: ClusterFlags,
    scheduling: SchedulingFlags,
    simulation: SimulationFlags,
    election: SchedulerElectionFlags,
    check_flags: VolcanoCheckFlags,
    endpoint_flags: EndpointFlags,
    logging_: LogFlags,
) -> None:
    """Run the gang scheduler."""
    from ..kube.client.events import EventRecorder
    from ..kube.errors import ConfigError
    from ..machinery.clock import SystemClock
    from ..scheduler.scheduler import Scheduler
    from ..scheduler.simulation.server import SimulationServer
    from .deployment_check import SCHEDULER, OtherSystemRunningError
    from .health import CannotListenError, serve_endpoints

    logging_.configure()
    telemetry = Telemetry()
    with exit_on_error(OSError, ValueError):
        _validate(scheduling)
        settings = _settings(scheduling, telemetry.registry)
        config = election.settings()
        namespace = election.leader_elect_resource_namespace
        address = simulation.address(namespace)
        endpoints = telemetry.endpoints(endpoint_flags, metrics_port=METRICS_PORT)

    async def main(ready: asyncio.Event) -> None:
        async with serve_endpoints(endpoints):
            await ensure_no_others(cluster, *check_flags.components(SCHEDULER))
            async with (
                leader_election(config, cluster, "scheduler", telemetry=telemetry) as elector,
                fenced_client(elector, cluster, "scheduler", telemetry=telemetry) as client,
            ):
                recorder = EventRecorder(client, component="volcano")
                gang_scheduler = Scheduler(
                    client, settings=settings, clock=SystemClock(), recorder=recorder
                )
                telemetry.health.conditions["plugins"] = lambda: gang_scheduler.disabled_plugins
                components = [ElectedRunnable(gang_scheduler, elector)]
                if scheduling.state_configmap:
                    kept = scheduling.kept_state(client, namespace, gang_scheduler)
                    components.append(ElectedRunnable(kept, elector))
                if address is not None:
                    server = SimulationServer(
                        gang_scheduler.simulations,
                        client,
                        SystemClock(),
                        address,
                        telemetry.listener_metrics,
                    )
                    components.append(ElectedRunnable(server, elector))
                await run_components(recorder, *components, ready=ready)

    with exit_on_error(OtherSystemRunningError, CannotListenError, ConfigError):
        run(main)


_scheduler.__name__ = "scheduler"
scheduler = command_from_groups(_scheduler, *IGNORED_FLAGS)
