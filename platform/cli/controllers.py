"""``batholith controllers``: the queue, job and podgroup controllers in one process."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from . import controller_selection, featuregate
from .flag_groups import KLOG_FLAGS, ClusterFlags, EndpointFlags, LogFlags, VolcanoCheckFlags
from .go_flags import IgnoredFlag, command_from_groups
from .leader_election import (
    ElectedRunnable,
    ElectionFlags,
    LeaderElectionRunnable,
    fenced_client,
    leader_election,
)
from .manager import Telemetry, ensure_volcano_not_running, exit_on_error, run_components
from .process import run

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..kube.client.client import Client
    from ..kube.client.events import EventRecorder
    from ..queue_ctrl.controller import QueueController

log = logging.getLogger(__name__)

METRICS_PORT = 8081

IGNORED_FLAGS = (
    IgnoredFlag("worker-threads-for-gc", "the job controller ends what has lived its time."),
    IgnoredFlag("worker-threads-for-cronjob", "there is no such controller here yet."),
    IgnoredFlag("scheduler-configs", "there is no sharding controller here."),
    IgnoredFlag("shard-sync-period", "there is no sharding controller here."),
    IgnoredFlag("enable-node-event-trigger", "there is no sharding controller here.", switch=True),
    IgnoredFlag("sharding-configmap", "there is no sharding controller here."),
    IgnoredFlag("sharding-configmap-namespace", "there is no sharding controller here."),
    *KLOG_FLAGS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFlags:
    """Which controllers run, and how."""

    controllers: Annotated[
        str,
        typer.Option(
            help="Comma-separated: * for all, NAME or +NAME on, -NAME off. Names: "
            f"{', '.join(controller_selection.CONTROLLERS)}. "
            "Volcano's others are known and start nothing."
        ),
    ] = controller_selection.DEFAULT
    worker_threads: Annotated[int, typer.Option(min=1, help="Jobs worked on at once.")] = 64
    worker_threads_for_podgroup: Annotated[
        int, typer.Option(min=1, help="PodGroups of pods without a job worked on at once.")
    ] = 5
    worker_threads_for_queue: Annotated[
        int, typer.Option(min=1, help="Queues worked on at once.")
    ] = 5
    max_requeue_num: Annotated[
        int,
        typer.Option(
            help="Retries before a queue is left alone for a minute, and a Command to it that is "
            "refused for good; negative: no limit. Jobs: no limit."
        ),
    ] = 15
    reconcile_timeout: Annotated[
        str,
        typer.Option(
            help="How long one look at a job, queue or PodGroup may take; then it is cancelled and "
            "tried again."
        ),
    ] = "5m"
    default_queue: Annotated[
        str, typer.Option(help="Made if it is missing, as root is; the scheduler's, too.")
    ] = "default"
    scheduler_name: Annotated[
        list[str], typer.Option(help="Pods of this scheduler get PodGroups; may be repeated.")
    ] = ("volcano",)  # type: ignore[assignment]  # typer makes a list of it
    inherit_owner_annotations: Annotated[
        bool, typer.Option(help="PodGroups take sizes and annotations from the pods' owners.")
    ] = True
    feature_gates: Annotated[
        str, typer.Option(help="Name=true,…; checked, but none of them can be changed here.")
    ] = ""


def _reconcile_timeout(flags: ControllerFlags) -> float:
    """Seconds of ``--reconcile-timeout``.

    Raises:
        DurationError: it is no duration, or none that leaves time for anything.
    """
    from ..model.durations import DurationError, parse

    try:
        seconds = parse(flags.reconcile_timeout).total_seconds()
    except DurationError as error:
        raise DurationError(f"--reconcile-timeout: {error}") from None
    if seconds <= 0:
        raise DurationError(f"--reconcile-timeout={flags.reconcile_timeout}: must be more than 0")
    return seconds


def _validate(flags: ControllerFlags) -> None:
    controller_selection.select(flags.controllers)
    _reconcile_timeout(flags)
    for gate in featuregate.ineffective_gates(flags.feature_gates):
        log.warning("feature gate without effect", extra={"gate": gate})
    for name in controller_selection.unsupported(flags.controllers):
        log.warning("asked for a controller that there is not", extra={"controller": name})


def _controllers(
    cluster: ClusterFlags,
    flags: ControllerFlags,
    election: ElectionFlags,
    check_flags: VolcanoCheckFlags,
    endpoint_flags: EndpointFlags,
    logging_: LogFlags,
) -> None:
    """Run the queue, job and podgroup controllers."""
    from ..kube.client.events import EventRecorder
    from ..kube.errors import ConfigError
    from .health import CannotListenError, serve_endpoints
    from .volcano_check import CONTROLLERS, VolcanoRunningError

    logging_.configure()
    instruments = Telemetry()
    with exit_on_error(OSError, ValueError):
        _validate(flags)
        contest = election.settings()
        doors = instruments.endpoints(endpoint_flags, metrics_port=METRICS_PORT)

    async def main(ready: asyncio.Event) -> None:
        async with serve_endpoints(doors):
            await ensure_volcano_not_running(cluster, check_flags, CONTROLLERS)
            async with (
                leader_election(contest, cluster, "controllers", telemetry=instruments) as elector,
                fenced_client(elector, cluster, "controllers", telemetry=instruments) as client,
            ):
                recorder = EventRecorder(client, component="vc-controller-manager")
                parts = _build_controllers(flags, client, recorder, instruments.registry)
                candidates = [ElectedRunnable(part, elector) for part in parts]
                # A standby is ready without; who works at once is when jobs can come.
                waits = (
                    []
                    if elector
                    else [
                        ReadyWhenSet(queue.default_queue_ready)
                        for queue in _queue_controllers(parts)
                    ]
                )
                await run_components(recorder, *candidates, *waits, ready=ready)

    with exit_on_error(VolcanoRunningError, CannotListenError, ConfigError):
        run(main)


@dataclass(frozen=True, slots=True)
class ReadyWhenSet:
    """A part of a process that does nothing, and is ready when something is there."""

    event: asyncio.Event

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Wait for it, and set *ready*."""
        await self.event.wait()
        if ready is not None:
            ready.set()


def _queue_controllers(components: Iterable[LeaderElectionRunnable]) -> "Iterator[QueueController]":
    from ..queue_ctrl.controller import QueueController

    return (part for part in components if isinstance(part, QueueController))


def _build_controllers(
    flags: ControllerFlags,
    client: "Client",
    recorder: "EventRecorder",
    registry: "CollectorRegistry",
) -> list[LeaderElectionRunnable]:
    """The controllers that are wanted."""
    from ..job_ctrl.controller import JobController
    from ..job_ctrl.settings import JobSettings
    from ..kube.informer.informer import Informer
    from ..machinery.clock import SystemClock
    from ..machinery.metrics import WorkQueueMetrics
    from ..model.names import PODGROUPS
    from ..model.podgroup import PodGroup
    from ..podgroup_ctrl.controller import PodGroupController, PodGroupSettings
    from ..queue_ctrl.controller import QueueController, QueueSettings

    clock, work_metrics = SystemClock(), WorkQueueMetrics(registry)
    podgroups = Informer(client, PODGROUPS, PodGroup)
    timeout = _reconcile_timeout(flags)
    jobs = JobSettings(
        workers=flags.worker_threads,
        reconcile_timeout=timeout,
        registry=registry,
        work_metrics=work_metrics,
    )
    queues = QueueSettings(
        workers=flags.worker_threads_for_queue,
        reconcile_timeout=timeout,
        max_requeues=flags.max_requeue_num,
        default_queue=flags.default_queue,
        registry=registry,
        work_metrics=work_metrics,
    )
    groups = PodGroupSettings(
        workers=flags.worker_threads_for_podgroup,
        reconcile_timeout=timeout,
        scheduler_names=tuple(flags.scheduler_name),
        inherit_owner_annotations=flags.inherit_owner_annotations,
        work_metrics=work_metrics,
    )
    makers: dict[str, Callable[[], LeaderElectionRunnable]] = {
        "queue-controller": lambda: QueueController(
            client, settings=queues, clock=clock, recorder=recorder, podgroups=podgroups
        ),
        "job-controller": lambda: JobController(
            client, settings=jobs, clock=clock, recorder=recorder, podgroups=podgroups
        ),
        "pg-controller": lambda: PodGroupController(
            client, settings=groups, clock=clock, recorder=recorder, podgroups=podgroups
        ),
    }
    chosen = controller_selection.select(flags.controllers)
    return [make() for name, make in makers.items() if name in chosen]


_controllers.__name__ = "controllers"
controllers = command_from_groups(_controllers, *IGNORED_FLAGS)
