"""``batholith controllers``: all controllers in one process."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from . import controller_selection
from .controller_flags import (
    BatchFlags,
    ControllerFlags,
    TrainingFlags,
    reconcile_timeout,
    training_settings,
    validate,
)
from .flag_groups import (
    KLOG_FLAGS,
    ClusterFlags,
    EndpointFlags,
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
        enabled = validate(flags, batch, training)
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
        self._timeout = reconcile_timeout(self.flags)

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
            ttl_waits_for_history=self.flags.ttl_waits_for_history,
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
                settings=self._flow_settings,
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
                settings=self._flow_settings,
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

    @cached_property
    def _flow_settings(self) -> "FlowSettings":
        """Settings of both controllers, with the counters of all that start one after another."""
        from ..flow_ctrl.metrics import FlowMetrics
        from ..flow_ctrl.settings import FlowSettings

        return FlowSettings(
            workers=self.flags.worker_threads_for_jobflow,
            reconcile_timeout=self._timeout,
            metrics=FlowMetrics(self.registry),
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
            ttl_waits_for_history=self.flags.ttl_waits_for_history,
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
            training_settings(self.training),
            ttl_waits_for_history=self.flags.ttl_waits_for_history,
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
