"""``batholith controllers``: all controllers in one process."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import controller_selection, featuregate
from .flag_groups import (
    KLOG_FLAGS,
    ClusterFlags,
    EndpointFlags,
    FlagError,
    LogFlags,
    VolcanoCheckFlags,
)
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
    ensure_not_beside,
    exit_on_error,
    new_client,
    run_components,
)
from .process import run

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..flow_ctrl.settings import FlowSettings
    from ..kube.client.client import Client
    from ..kube.client.events import EventRecorder
    from ..kube.informer.informer import Informer
    from ..model.flow import JobTemplate
    from ..model.names import Resource
    from ..queue_ctrl.controller import QueueController
    from ..training_ctrl.settings import TrainingSettings

log = logging.getLogger(__name__)

METRICS_PORT = 8081

IGNORED_FLAGS = (
    IgnoredFlag("worker-threads-for-gc", "the job controller deletes expired jobs."),
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
    worker_threads_for_cronjob: Annotated[
        int, typer.Option(min=1, help="Workers of the controller of Volcano's CronJobs.")
    ] = 64
    worker_threads_for_jobflow: Annotated[
        int, typer.Option(min=1, help="Workers each of the JobFlow and JobTemplate controllers.")
    ] = 5
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """Controllers of batch/v1: Jobs and CronJobs."""

    manage_all_jobs: Annotated[
        bool,
        typer.Option(
            "--manage-all-jobs",
            help="Reconcile all Jobs of batch/v1, not only those whose spec.managedBy is "
            "batholith.io/job-controller, and delete those whose TTL has expired. Only where "
            "kube-controller-manager does not run.",
        ),
    ] = False
    concurrent_job_syncs: Annotated[
        int, typer.Option(min=1, help="Workers of the controller of batch/v1 Jobs.")
    ] = 5
    concurrent_cron_job_syncs: Annotated[
        int, typer.Option(min=1, help="Workers of the controller of batch/v1 CronJobs.")
    ] = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags:
    """Controller of Kubeflow's training jobs; the flags are those of its training operator."""

    enable_scheme: Annotated[
        list[str],
        typer.Option(help="Kind of training jobs to reconcile, all without; may be repeated."),
    ] = ()  # type: ignore[assignment]  # typer converts it to a list
    controller_threads: Annotated[
        int, typer.Option(min=1, help="Workers for each kind of training jobs.")
    ] = 1
    gang_scheduler_name: Annotated[
        str,
        typer.Option(
            help="Scheduler of the gangs of training jobs, each with a PodGroup: volcano, or one "
            "with the coscheduling plugin of Kubernetes; empty for no gangs."
        ),
    ] = ""
    pytorch_init_container_image: Annotated[
        str,
        typer.Option(help="Image of the init container that waits for the master; empty for none."),
    ] = "alpine:3.10"
    pytorch_init_container_max_tries: Annotated[
        int, typer.Option(min=1, help="Attempts of that init container.")
    ] = 100
    pytorch_init_container_template_file: Annotated[
        Path | None, typer.Option(help="YAML list of init containers to use instead.")
    ] = None
    mpi_kubectl_delivery_image: Annotated[
        str, typer.Option(help="Image of the init container with the launcher's kubectl.")
    ] = "kubeflow/kubectl-delivery:latest"
    force_beside_training_operator: Annotated[
        bool,
        typer.Option(
            "--force-beside-training-operator",
            help="Start the controller of training jobs even if a Deployment of Kubeflow's "
            "training operator exists.",
        ),
    ] = False


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


def _validate(
    flags: ControllerFlags, batch: BatchFlags, training: TrainingFlags
) -> Collection[str]:
    """Check the flags; return the enabled controllers.

    Raises:
        OSError, ValueError: a flag is invalid; the text names it.
    """
    enabled = controller_selection.select(flags.selection)
    _reconcile_timeout(flags)
    _reject_flags_of_disabled_controllers(enabled, batch, training)
    if controller_selection.TRAINING in enabled:
        _training_settings(training)
    for gate in featuregate.ineffective_gates(flags.feature_gates):
        log.warning("feature gate without effect", extra={"gate": gate})
    for name in controller_selection.unsupported(flags.selection):
        log.warning("unsupported controller ignored", extra={"controller": name})
    return enabled


def _reject_flags_of_disabled_controllers(
    enabled: Collection[str], batch: BatchFlags, training: TrainingFlags
) -> None:
    """Check that each flag with another value than its default belongs to an enabled controller.

    Raises:
        FlagError: one would have no effect.
    """
    owners = {
        "manage_all_jobs": (batch, controller_selection.BATCH_JOB),
        "concurrent_job_syncs": (batch, controller_selection.BATCH_JOB),
        "concurrent_cron_job_syncs": (batch, controller_selection.BATCH_CRON_JOB),
        **{each.name: (training, controller_selection.TRAINING) for each in fields(training)},
    }
    defaults = {each.name: each.default for each in (*fields(batch), *fields(training))}
    for name, (group, owner) in owners.items():
        value = getattr(group, name)
        given = tuple(value) if isinstance(value, list) else value
        if given != defaults[name] and owner not in enabled:
            flag = f"--{name.replace('_', '-')}"
            raise FlagError(f"{flag} has no effect without --controllers=*,{owner}")


def _training_settings(flags: TrainingFlags) -> "TrainingSettings":
    """Return the settings of the controller of training jobs that *flags* give.

    Raises:
        OSError: the template file cannot be read.
        ValueError: a kind is unknown, or the template malformed.
    """
    import yaml

    from ..training_ctrl.controller import select_frameworks
    from ..training_ctrl.frameworks import FRAMEWORKS
    from ..training_ctrl.frameworks._pytorch_init import init_containers
    from ..training_ctrl.frameworks.base import PodSettings
    from ..training_ctrl.settings import TrainingSettings

    file = flags.pytorch_init_container_template_file
    pods = PodSettings(
        pytorch_init_image=flags.pytorch_init_container_image,
        pytorch_init_tries=flags.pytorch_init_container_max_tries,
        pytorch_init_template=file.read_text() if file is not None else "",
        mpi_kubectl_delivery_image=flags.mpi_kubectl_delivery_image,
    )
    try:
        containers = init_containers("address", pods)
    except yaml.YAMLError as error:
        raise FlagError(f"--pytorch-init-container-template-file={file}: {error}") from None
    if not isinstance(containers, list):
        raise FlagError(f"--pytorch-init-container-template-file={file}: not a list of containers")
    select_frameworks(FRAMEWORKS, flags.enable_scheme)
    return TrainingSettings(
        kinds=tuple(flags.enable_scheme),
        workers=flags.controller_threads,
        gang_scheduler_name=flags.gang_scheduler_name,
        pods=pods,
    )


async def _ensure_sole_controllers(
    cluster: ClusterFlags,
    enabled: Collection[str],
    batch: BatchFlags,
    training: TrainingFlags,
    check_flags: VolcanoCheckFlags,
) -> None:
    """Check that no other system reconciles the objects of the *enabled* controllers.

    Raises:
        OtherSystemRunningError, ControllerManagerRunningError: one does.
        ConfigError: no valid credentials were found.
    """
    from . import controller_manager_check
    from .deployment_check import CONTROLLERS, TRAINING_OPERATOR

    components = [*check_flags.components(CONTROLLERS)]
    if controller_selection.TRAINING in enabled and not training.force_beside_training_operator:
        components.append(TRAINING_OPERATOR)
    await ensure_not_beside(cluster, *components)
    owners = {
        "--manage-all-jobs": batch.manage_all_jobs,
        f"--controllers={controller_selection.BATCH_CRON_JOB}": controller_selection.BATCH_CRON_JOB
        in enabled,
    }
    required_by = " and ".join(flag for flag, given in owners.items() if given)
    if required_by:
        async with new_client(cluster, "start") as client:
            await controller_manager_check.ensure_not_running(client, required_by=required_by)


def _controllers(
    cluster: ClusterFlags,
    flags: ControllerFlags,
    batch: BatchFlags,
    training: TrainingFlags,
    election: ElectionFlags,
    check_flags: VolcanoCheckFlags,
    endpoint_flags: EndpointFlags,
    logging_: LogFlags,
) -> None:
    """Run the controllers: of queues, jobs and PodGroups, and others by name."""
    from ..kube.client.events import EventRecorder
    from ..kube.errors import ConfigError
    from .controller_manager_check import ControllerManagerRunningError
    from .deployment_check import OtherSystemRunningError
    from .health import CannotListenError, serve_endpoints

    logging_.configure()
    telemetry = Telemetry()
    with exit_on_error(OSError, ValueError):
        enabled = _validate(flags, batch, training)
        config = election.settings()
        endpoints = telemetry.endpoints(endpoint_flags, metrics_port=METRICS_PORT)

    async def main(ready: asyncio.Event) -> None:
        telemetry.health.add_start_check(ready)
        async with serve_endpoints(endpoints):
            await _ensure_sole_controllers(cluster, enabled, batch, training, check_flags)
            async with (
                leader_election(config, cluster, "controllers", telemetry=telemetry) as elector,
                fenced_client(elector, cluster, "controllers", telemetry=telemetry) as client,
            ):
                recorder = EventRecorder(client, component="vc-controller-manager")
                builder = _Builder(
                    flags=flags,
                    batch=batch,
                    training=training,
                    client=client,
                    recorder=recorder,
                    registry=telemetry.registry,
                )
                running = builder.build(enabled)
                components: list[Runnable] = [ElectedRunnable(each, elector) for each in running]
                if not elector:
                    # Without election, readiness means that jobs can be submitted.
                    components += [
                        ReadyWhenSet(each.default_queue_ready)
                        for each in _queue_controllers(running)
                    ]
                await run_components(recorder, *components, ready=ready)

    with exit_on_error(
        OtherSystemRunningError,
        ControllerManagerRunningError,
        CannotListenError,
        ConfigError,
    ):
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


@dataclass(kw_only=True)
class _Builder:
    """Creates the controllers of the process, which share informers, metrics and events."""

    flags: ControllerFlags
    batch: BatchFlags
    training: TrainingFlags
    client: "Client"
    recorder: "EventRecorder"
    registry: "CollectorRegistry"

    def __post_init__(self) -> None:
        from ..kube.informer.informer import Informer
        from ..machinery.clock import SystemClock
        from ..machinery.metrics import WorkQueueMetrics
        from ..model.names import PODGROUPS
        from ..model.podgroup import PodGroup

        self._clock = SystemClock()
        self._work_metrics = WorkQueueMetrics(self.registry)
        self._podgroups = Informer(self.client, PODGROUPS, PodGroup)
        self._timeout = _reconcile_timeout(self.flags)

    def build(self, enabled: Collection[str]) -> list[LeaderElectionRunnable]:
        """Create the *enabled* controllers."""
        factories: dict[str, Callable[[], LeaderElectionRunnable]] = {
            "cronjob-controller": self._cron_job_controller,
            "queue-controller": self._queue_controller,
            "job-controller": self._job_controller,
            "jobflow-controller": self._jobflow_controller,
            "jobtemplate-controller": self._jobtemplate_controller,
            "pg-controller": self._podgroup_controller,
            controller_selection.BATCH_JOB: self._batch_job_controller,
            controller_selection.BATCH_CRON_JOB: self._batch_cron_job_controller,
            controller_selection.TRAINING: self._training_controller,
        }
        return [create() for name, create in factories.items() if name in enabled]

    def _queue_controller(self) -> LeaderElectionRunnable:
        from ..queue_ctrl.controller import QueueController, QueueSettings

        settings = QueueSettings(
            workers=self.flags.worker_threads_for_queue,
            reconcile_timeout=self._timeout,
            max_requeues=self.flags.max_requeue_num,
            default_queue=self.flags.default_queue,
            registry=self.registry,
            work_metrics=self._work_metrics,
        )
        return QueueController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder,
            podgroups=self._podgroups,
        )

    def _job_controller(self) -> LeaderElectionRunnable:
        from ..job_ctrl.controller import JobController
        from ..job_ctrl.settings import JobSettings

        settings = JobSettings(
            workers=self.flags.worker_threads,
            reconcile_timeout=self._timeout,
            registry=self.registry,
            work_metrics=self._work_metrics,
        )
        return JobController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder,
            podgroups=self._podgroups,
        )

    def _jobflow_controller(self) -> LeaderElectionRunnable:
        from ..flow_ctrl.controller import JobFlowController
        from ..model.names import JOBFLOWS, JOBTEMPLATES

        def create() -> JobFlowController:
            return JobFlowController(
                self.client,
                settings=self._flow_settings(),
                clock=self._clock,
                recorder=self.recorder,
                templates=self._templates,
            )

        return self._while_served(create, JOBFLOWS, JOBTEMPLATES)

    def _jobtemplate_controller(self) -> LeaderElectionRunnable:
        from ..flow_ctrl.template_controller import JobTemplateController
        from ..model.names import JOBTEMPLATES

        def create() -> JobTemplateController:
            return JobTemplateController(
                self.client,
                settings=self._flow_settings(),
                clock=self._clock,
                templates=self._templates,
            )

        return self._while_served(create, JOBTEMPLATES)

    @cached_property
    def _templates(self) -> "Informer[JobTemplate]":
        """Informer of both controllers, created only for them: readiness waits for each one."""
        from ..kube.informer.informer import Informer
        from ..model.flow import JobTemplate
        from ..model.names import JOBTEMPLATES

        return Informer(self.client, JOBTEMPLATES, JobTemplate)

    def _flow_settings(self) -> "FlowSettings":
        from ..flow_ctrl.settings import FlowSettings

        return FlowSettings(
            workers=self.flags.worker_threads_for_jobflow,
            reconcile_timeout=self._timeout,
            registry=self.registry,
            work_metrics=self._work_metrics,
        )

    def _podgroup_controller(self) -> LeaderElectionRunnable:
        from ..podgroup_ctrl.controller import PodGroupController, PodGroupSettings

        settings = PodGroupSettings(
            workers=self.flags.worker_threads_for_podgroup,
            reconcile_timeout=self._timeout,
            scheduler_names=tuple(self.flags.scheduler_name),
            inherit_owner_annotations=self.flags.inherit_owner_annotations,
            work_metrics=self._work_metrics,
        )
        return PodGroupController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder,
            podgroups=self._podgroups,
        )

    def _cron_job_controller(self) -> LeaderElectionRunnable:
        from ..cron_ctrl.controller import CronJobController
        from ..machinery.cronjobs.controller import CronJobSettings
        from ..model.names import CRONJOBS

        settings = CronJobSettings(
            workers=self.flags.worker_threads_for_cronjob,
            reconcile_timeout=self._timeout,
            work_metrics=self._work_metrics,
        )

        def create() -> CronJobController:
            return CronJobController(
                self.client, settings=settings, clock=self._clock, recorder=self.recorder
            )

        return self._while_served(create, CRONJOBS)

    def _while_served(
        self, create: Callable[[], LeaderElectionRunnable], *resources: "Resource"
    ) -> LeaderElectionRunnable:
        """Return a controller that runs while the API server has all *resources*.

        Helm installs no definitions when a release is upgraded.
        """
        from ..machinery.served import ServedController

        return ServedController(create, resources, client=self.client, clock=self._clock)

    def _batch_job_controller(self) -> LeaderElectionRunnable:
        from ..batch_ctrl.controller import BatchJobController
        from ..batch_ctrl.settings import ALL_JOBS, OWN_JOBS, BatchJobSettings

        settings = BatchJobSettings(
            managed_by=ALL_JOBS if self.batch.manage_all_jobs else OWN_JOBS,
            delete_finished=self.batch.manage_all_jobs,
            workers=self.batch.concurrent_job_syncs,
            reconcile_timeout=self._timeout,
            registry=self.registry,
            work_metrics=self._work_metrics,
        )
        return BatchJobController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder.with_component("job-controller"),
        )

    def _batch_cron_job_controller(self) -> LeaderElectionRunnable:
        from ..batch_ctrl.cronjobs.controller import CronJobController
        from ..machinery.cronjobs.controller import CronJobSettings

        settings = CronJobSettings(
            workers=self.batch.concurrent_cron_job_syncs,
            reconcile_timeout=self._timeout,
            work_metrics=self._work_metrics,
        )
        return CronJobController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder.with_component("cronjob-controller"),
        )

    def _training_controller(self) -> LeaderElectionRunnable:
        from ..training_ctrl.controller import TrainingController

        settings = replace(
            _training_settings(self.training),
            reconcile_timeout=self._timeout,
            registry=self.registry,
            work_metrics=self._work_metrics,
        )
        return TrainingController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder,
            podgroups=self._podgroups,
        )


_controllers.__name__ = "controllers"
controllers = command_from_groups(_controllers, *IGNORED_FLAGS)
