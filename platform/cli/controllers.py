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
from .manager import (
    Runnable,
    Telemetry,
    ensure_volcano_not_running,
    exit_on_error,
    run_components,
)
from .process import run

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..kube.client.client import Client
    from ..kube.client.events import EventRecorder
    from ..queue_ctrl.controller import QueueController

log = logging.getLogger(__name__)

METRICS_PORT = 8081

IGNORED_FLAGS = (
    IgnoredFlag("worker-threads-for-gc", "the job controller deletes expired jobs."),
    IgnoredFlag("worker-threads-for-cronjob", "there is no CronJob controller."),
    IgnoredFlag("scheduler-configs", "there is no sharding controller."),
    IgnoredFlag("shard-sync-period", "there is no sharding controller."),
    IgnoredFlag("enable-node-event-trigger", "there is no sharding controller.", switch=True),
    IgnoredFlag("sharding-configmap", "there is no sharding controller."),
    IgnoredFlag("sharding-configmap-namespace", "there is no sharding controller."),
    *KLOG_FLAGS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFlags:
    """Enabled controllers and their settings."""

    controllers: Annotated[
        list[str],
        typer.Option(
            help="Comma-separated: * for all that are on by default, NAME or +NAME on, -NAME off; "
            "may be repeated. Names: "
            f"{', '.join(controller_selection.CONTROLLERS)}; off by default: "
            f"{', '.join(controller_selection.OFF_BY_DEFAULT)}. "
            "Volcano's other controllers are accepted and ignored."
        ),
    ] = (controller_selection.DEFAULT,)  # type: ignore[assignment]  # typer converts it to a list
    worker_threads: Annotated[int, typer.Option(min=1, help="Workers of the job controller.")] = 64
    worker_threads_for_podgroup: Annotated[
        int, typer.Option(min=1, help="Workers of the PodGroup controller.")
    ] = 5
    worker_threads_for_queue: Annotated[
        int, typer.Option(min=1, help="Workers of the queue controller.")
    ] = 5
    max_requeue_num: Annotated[
        int,
        typer.Option(
            help="Retries after which a queue is dropped for a minute, and a rejected Command for "
            "good; negative means no limit. Jobs have no limit."
        ),
    ] = 15
    reconcile_timeout: Annotated[
        str,
        typer.Option(
            help="Timeout of one reconcile of a job, queue or PodGroup, after which it is retried."
        ),
    ] = "5m"
    default_queue: Annotated[
        str, typer.Option(help="Created if missing, like root; must match the scheduler's.")
    ] = "default"
    scheduler_name: Annotated[
        list[str],
        typer.Option(help="Create PodGroups for pods of this scheduler; may be repeated."),
    ] = ("volcano",)  # type: ignore[assignment]  # typer converts it to a list
    inherit_owner_annotations: Annotated[
        bool,
        typer.Option(help="Inherit minMember and annotations of PodGroups from the pods' owners."),
    ] = True
    feature_gates: Annotated[
        str, typer.Option(help="Name=true,…; validated, but without effect.")
    ] = ""

    @property
    def selection(self) -> str:
        """The list of controllers, without repetitions of the flag."""
        return ",".join(self.controllers)


def _reconcile_timeout(flags: ControllerFlags) -> float:
    """Seconds of ``--reconcile-timeout``.

    Raises:
        DurationError: it is not a positive duration.
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
    controller_selection.select(flags.selection)
    _reconcile_timeout(flags)
    for gate in featuregate.ineffective_gates(flags.feature_gates):
        log.warning("feature gate without effect", extra={"gate": gate})
    for name in controller_selection.unsupported(flags.selection):
        log.warning("unsupported controller ignored", extra={"controller": name})


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
    telemetry = Telemetry()
    with exit_on_error(OSError, ValueError):
        _validate(flags)
        config = election.settings()
        endpoints = telemetry.endpoints(endpoint_flags, metrics_port=METRICS_PORT)

    async def main(ready: asyncio.Event) -> None:
        async with serve_endpoints(endpoints):
            await ensure_volcano_not_running(cluster, check_flags, CONTROLLERS)
            async with (
                leader_election(config, cluster, "controllers", telemetry=telemetry) as elector,
                fenced_client(elector, cluster, "controllers", telemetry=telemetry) as client,
            ):
                recorder = EventRecorder(client, component="vc-controller-manager")
                running = _build_controllers(flags, client, recorder, telemetry.registry)
                components: list[Runnable] = [ElectedRunnable(each, elector) for each in running]
                if not elector:
                    # Without election, readiness means that jobs can be submitted.
                    components += [
                        ReadyWhenSet(each.default_queue_ready)
                        for each in _queue_controllers(running)
                    ]
                await run_components(recorder, *components, ready=ready)

    with exit_on_error(VolcanoRunningError, CannotListenError, ConfigError):
        run(main)


@dataclass(frozen=True, slots=True)
class ReadyWhenSet:
    """A component that does nothing and is ready once *event* is set."""

    event: asyncio.Event

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Wait for the event, and set *ready*."""
        await self.event.wait()
        if ready is not None:
            ready.set()


def _queue_controllers(components: Iterable[LeaderElectionRunnable]) -> "Iterator[QueueController]":
    from ..queue_ctrl.controller import QueueController

    return (each for each in components if isinstance(each, QueueController))


def _build_controllers(
    flags: ControllerFlags,
    client: "Client",
    recorder: "EventRecorder",
    registry: "CollectorRegistry",
) -> list[LeaderElectionRunnable]:
    """Create the enabled controllers."""
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
    factories: dict[str, Callable[[], LeaderElectionRunnable]] = {
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
    enabled = controller_selection.select(flags.selection)
    return [create() for name, create in factories.items() if name in enabled]


_controllers.__name__ = "controllers"
controllers = command_from_groups(_controllers, *IGNORED_FLAGS)
