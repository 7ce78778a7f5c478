"""``batholith scheduler``: the gang scheduler as a process."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import featuregate
from .flag_groups import KLOG, BesideFlags, ClusterFlags, LogFlags, ServingFlags
from .go_flags import Inert, grouped
from .leader_election import Candidate, SchedulerElectionFlags, campaigning, fenced_client
from .manager import Instruments, alone, run_all, told_in_a_line
from .process import run

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..scheduler.scheduler import SchedulerSettings

log = logging.getLogger(__name__)

METRICS_PORT = 8080

_AT_ONCE = "decisions are made when something changes."
_MATRIX = "all nodes are looked at, at once."

INERT = (
    Inert("schedule-period", _AT_ONCE),
    Inert("resync-period", _AT_ONCE),
    Inert("node-worker-threads", _MATRIX),
    Inert("minimum-feasible-nodes", _MATRIX),
    Inert("minimum-percentage-nodes-to-find", _MATRIX),
    Inert("percentage-nodes-to-find", _MATRIX),
    Inert("gate-removal-worker-num", "as many gates are lifted at once as pods are bound."),
    Inert("resource-sync-timeout", "it waits for as long as it takes; see /readyz."),
    Inert("ignored-provisioners", "volumes are not looked at yet."),
    Inert("csi-storage", "volumes are not looked at yet.", switch=True),
    Inert("priority-class", "priority classes always count.", switch=True),
    Inert("enable-pprof", "there is no profiler here.", switch=True),
    Inert("cache-dumper", "there are no dumps here.", switch=True),
    Inert("cache-dump-dir", "there are no dumps here."),
    Inert("disable-default-scheduler-config", "see --scheduler-conf.", switch=True),
    Inert("scheduler-sharding-name", "there are no shards here."),
    *KLOG,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingFlags:
    """What is scheduled, and how."""

    scheduler_conf: Annotated[
        Path | None, typer.Option(help="Actions and plugins, as Volcano writes them.")
    ] = None
    scheduler_name: Annotated[
        list[str], typer.Option(help="Pods of this scheduler are placed; may be repeated.")
    ] = ("volcano",)  # type: ignore[assignment]  # typer makes a list of it
    default_scheduler: Annotated[
        bool, typer.Option("--default-scheduler", help="Place pods of default-scheduler, too.")
    ] = False
    default_queue: Annotated[str, typer.Option(help="Queue of gangs that name none.")] = "default"
    feature_gates: Annotated[
        str, typer.Option(help=f"Name=true,…; only {featuregate.QUEUE_GATES} can be changed here.")
    ] = ""
    node_selector: Annotated[
        list[str], typer.Option(help="Not supported: refused, as pods might go elsewhere.")
    ] = ()  # type: ignore[assignment]  # typer makes a list of it
    scheduler_sharding_mode: Annotated[
        str, typer.Option(help="Only none is supported; others are refused.")
    ] = "none"
    plugins_dir: Annotated[
        str, typer.Option(help="Not supported: Go plugins cannot be loaded; refused.")
    ] = ""


class UnsupportedError(ValueError):
    """A flag asks for what cannot be done, and to go on without it would place pods wrongly."""


def _check(flags: SchedulingFlags) -> None:
    if flags.node_selector:
        raise UnsupportedError("--node-selector is not supported")
    if flags.scheduler_sharding_mode not in ("", "none"):
        raise UnsupportedError("--scheduler-sharding-mode: only none is supported")
    if flags.plugins_dir:
        raise UnsupportedError("--plugins-dir: Go plugins cannot be loaded")
    for gate in featuregate.without_effect(flags.feature_gates, heeded=[featuregate.QUEUE_GATES]):
        log.warning("feature gate without effect", extra={"gate": gate})


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--scheduler-conf: {error}") from error


def _settings(flags: SchedulingFlags, registry: "CollectorRegistry") -> "SchedulerSettings":
    """As the scheduler wants them.

    Raises:
        ValueError: the configuration cannot be read or used.
    """
    from ..machinery.metrics import WorkQueueMetrics
    from ..scheduler import conf
    from ..scheduler.scheduler import SchedulerSettings

    text = conf.DEFAULT if flags.scheduler_conf is None else _read(flags.scheduler_conf)
    conf.load(text)  # what is wrong with it is told now, not when we come to lead
    return SchedulerSettings(
        conf=text,
        gang_scheduler_names=tuple(flags.scheduler_name),
        pod_scheduler_names=("default-scheduler",) if flags.default_scheduler else (),
        default_queue=flags.default_queue,
        queue_gates=featuregate.is_open(flags.feature_gates, featuregate.QUEUE_GATES),
        registry=registry,
        work_metrics=WorkQueueMetrics(registry),
    )


def _scheduler(
    cluster: ClusterFlags,
    scheduling: SchedulingFlags,
    election: SchedulerElectionFlags,
    beside: BesideFlags,
    served: ServingFlags,
    logging_: LogFlags,
) -> None:
    """Run the gang scheduler."""
    from ..kube.client.events import EventRecorder
    from ..kube.errors import ConfigError
    from ..machinery.clock import SystemClock
    from ..scheduler.scheduler import Scheduler
    from .health import CannotListenError, serving
    from .volcano_check import SCHEDULER, BesideVolcanoError

    logging_.configure()
    instruments = Instruments()
    with told_in_a_line(OSError, ValueError):
        _check(scheduling)
        settings = _settings(scheduling, instruments.registry)
        contest = election.settings()
        doors = instruments.places(served, metrics_port=METRICS_PORT)

    async def main(ready: asyncio.Event) -> None:
        async with serving(doors):
            await alone(cluster, beside, SCHEDULER)
            async with (
                campaigning(contest, cluster, "scheduler", instruments=instruments) as elector,
                fenced_client(elector, cluster, "scheduler", instruments=instruments) as client,
            ):
                recorder = EventRecorder(client, component="volcano")
                part = Scheduler(client, settings=settings, clock=SystemClock(), recorder=recorder)
                await run_all(recorder, Candidate(part, elector), ready=ready)

    with told_in_a_line(BesideVolcanoError, CannotListenError, ConfigError):
        run(main)


_scheduler.__name__ = "scheduler"
scheduler = grouped(_scheduler, *INERT)
