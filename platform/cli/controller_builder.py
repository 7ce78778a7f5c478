"""Construction of the controllers of a process, or of one shard of it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from ..machinery.lifecycle import LeaderElectionRunnable
from . import controller_selection
from .controller_flags import (
    BatchFlags,
    ControllerFlags,
    TrainingFlags,
    parse_groupers,
    reconcile_timeout,
    training_settings,
)
from .flag_groups import ClusterFlags
from .manager import Telemetry
from .process import restore_termination_handlers

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..flow_ctrl.settings import FlowSettings
    from ..kube.client.client import Client
    from ..kube.client.events import EventRecorder
    from ..kube.informer.factory import InformerFactory
    from ..kube.informer.informer import Informer
    from ..machinery.shards import Shard
    from ..model.flow import JobTemplate
    from ..model.names import Resource

MIN_WRITES_IN_FLIGHT = 8
"""Concurrent writes that the job controller of each shard may have at least; otherwise the shards
divide the limit of the settings."""


_MODULES = {
    "job-controller": ("job_ctrl.controller",),
    "jobflow-controller": ("flow_ctrl.controller",),
    "jobtemplate-controller": ("flow_ctrl.template_controller",),
    "queue-controller": ("queue_ctrl.controller",),
    "pg-controller": ("podgroup_ctrl.controller",),
    "cronjob-controller": ("cron_ctrl.controller", "cron_ctrl.volcano"),
    controller_selection.BATCH_JOB: ("batch_ctrl.controller",),
    controller_selection.BATCH_CRON_JOB: ("cron_ctrl.controller", "cron_ctrl.kubernetes"),
    controller_selection.HYPERNODE: ("hypernode_ctrl.controller",),
    controller_selection.TRAINING: ("training_ctrl.controller",),
    **dict.fromkeys(controller_selection.SUSPENSION, ("podgroup_ctrl.suspension",)),
}


def import_controllers(enabled: Collection[str]) -> None:
    """Import the modules of the *enabled* controllers.

    Until it is elected, a process does not need them. They take a third of a second on an idle
    core, during which no Lease is renewed.
    """
    for name in enabled:
        for module in _MODULES[name]:
            import_module(f"...{module}", __name__)


class SharedMetrics:
    """Metrics that the controllers of all shards of a process share, and the rate of changes."""

    def __init__(self, registry: "CollectorRegistry") -> None:
        from ..job_ctrl.metrics import JobMetrics
        from ..machinery.change_rate import ChangeRate
        from ..machinery.clock import SystemClock
        from ..machinery.metrics import WorkQueueMetrics
        from ..queue_ctrl.metrics import QueueMetrics

        self.change_rate = ChangeRate(SystemClock())
        self.work = WorkQueueMetrics(registry)
        self.jobs = JobMetrics(registry)
        self.queues = QueueMetrics(registry)


@dataclass(frozen=True, slots=True)
class ControllerInputs:
    """What the controllers of a process are created from."""

    flags: ControllerFlags
    batch: BatchFlags
    training: TrainingFlags
    enabled: Collection[str]
    cluster: ClusterFlags
    telemetry: Telemetry

    def builder(self, client: "Client", recorder: "EventRecorder") -> "Builder":
        """Return the builder of a process without shards."""
        return Builder(
            flags=self.flags,
            batch=self.batch,
            training=self.training,
            client=client,
            recorder=recorder,
            registry=self.telemetry.registry,
            metrics=SharedMetrics(self.telemetry.registry),
        )


@dataclass(kw_only=True)
class Builder:
    """Creates the controllers of the process, which share informers, metrics and events.

    With *informers*, they are those of one *shard*.
    """

    flags: ControllerFlags
    batch: BatchFlags
    training: TrainingFlags
    client: "Client"
    recorder: "EventRecorder"
    registry: "CollectorRegistry"
    metrics: "SharedMetrics"
    informers: "InformerFactory | None" = None
    shard: "Shard | None" = None

    def __post_init__(self) -> None:
        from ..kube.informer.informer import Informer
        from ..machinery.clock import SystemClock
        from ..machinery.shards import WHOLE
        from ..model.names import PODGROUPS
        from ..model.podgroup import PodGroup

        self._clock = SystemClock()
        self._owned = self.shard or WHOLE
        # With shards, the controllers need different ones of them.
        self._podgroups = (
            Informer(self.client, PODGROUPS, PodGroup) if self.informers is None else None
        )
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
            controller_selection.HYPERNODE: self._hypernode_controller,
            controller_selection.BATCH_JOB: self._batch_job_controller,
            controller_selection.BATCH_CRON_JOB: self._batch_cron_job_controller,
            controller_selection.TRAINING: self._training_controller,
            **{name: self._suspension_controller(name) for name in controller_selection.SUSPENSION},
        }
        return [create() for name, create in factories.items() if name in enabled]

    def _queue_controller(self) -> LeaderElectionRunnable:
        from ..queue_ctrl.controller import QueueController, QueueSettings

        settings = QueueSettings(
            workers=self.flags.worker_threads_for_queue,
            reconcile_timeout=self._timeout,
            max_requeues=self.flags.max_requeue_num,
            default_queue=self.flags.default_queue,
            count_described=self.flags.podgroups == "gangs",
            metrics=self.metrics.queues,
            work_metrics=self.metrics.work,
        )
        return QueueController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder,
            podgroups=self._podgroups,
            informers=self.informers,
            shard=self._owned,
        )

    def _job_controller(self) -> LeaderElectionRunnable:
        from ..machinery.served import ServedController
        from ..model.names import NATIVE_PODGROUPS, NATIVE_PODGROUPS_BETA

        if self.flags.gang_provider == "volcano":
            return self._job_controller_with(None)
        return ServedController(
            lambda served: self._job_controller_with(served[0]),
            [(NATIVE_PODGROUPS_BETA,), (NATIVE_PODGROUPS,)],
            client=self.client,
            clock=self._clock,
        )

    def _job_controller_with(self, native: "Resource | None") -> LeaderElectionRunnable:
        """Return the job controller, with PodGroups of Volcano or of a version of Kubernetes."""
        from ..job_ctrl.controller import JobController
        from ..job_ctrl.settings import JobSettings
        from ..model.described_podgroup import PodGroupsOf

        settings = JobSettings(
            workers=self.flags.worker_threads,
            ttl_waits_for_history=self.flags.ttl_waits_for_history,
            place_at_creation=self.flags.place_at_creation,
            podgroups=PodGroupsOf(self.flags.podgroups),
            scheduler_names=tuple(self.flags.scheduler_name),
            native_podgroups=native,
            max_pods_per_job=self.flags.max_pods_per_job,
            max_writes_in_flight=max(
                MIN_WRITES_IN_FLIGHT, JobSettings().max_writes_in_flight // self._owned.count
            ),
            reconcile_timeout=self._timeout,
            change_rate=self.metrics.change_rate,
            metrics=self.metrics.jobs,
            work_metrics=self.metrics.work,
        )
        return JobController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder,
            podgroups=self._podgroups,
            informers=self.informers,
            shard=self._owned,
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
            work_metrics=self.metrics.work,
        )

    def _podgroup_controller(self) -> LeaderElectionRunnable:
        from ..podgroup_ctrl.controller import PodGroupController, PodGroupSettings

        settings = PodGroupSettings(
            workers=self.flags.worker_threads_for_podgroup,
            reconcile_timeout=self._timeout,
            scheduler_names=tuple(self.flags.scheduler_name),
            inherit_owner_annotations=self.flags.inherit_owner_annotations,
            groupers=parse_groupers(self.flags.groupers),
            work_metrics=self.metrics.work,
        )
        return PodGroupController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder,
            podgroups=self._podgroups,
            informers=self.informers,
            shard=self._owned,
        )

    def _cron_job_controller(self) -> LeaderElectionRunnable:
        from ..cron_ctrl.controller import CronJobController, CronJobSettings
        from ..cron_ctrl.volcano import KIND, Job
        from ..model.names import CRONJOBS

        settings = CronJobSettings(
            workers=self.flags.worker_threads_for_cronjob,
            reconcile_timeout=self._timeout,
            work_metrics=self.metrics.work,
        )

        def create() -> CronJobController[Job]:
            return CronJobController(
                self.client, KIND, settings=settings, clock=self._clock, recorder=self.recorder
            )

        return self._while_served(create, CRONJOBS)

    def _hypernode_controller(self) -> LeaderElectionRunnable:
        from ..hypernode_ctrl.controller import (
            HyperNodeController,
            HyperNodeSettings,
            configuration_namespace,
        )
        from ..model.names import HYPERNODES

        settings = HyperNodeSettings(
            reconcile_timeout=self._timeout,
            work_metrics=self.metrics.work,
            namespace=configuration_namespace(),
            restore_signals=restore_termination_handlers,
        )

        def create() -> HyperNodeController:
            return HyperNodeController(
                self.client, settings=settings, clock=self._clock, recorder=self.recorder
            )

        return self._while_served(create, HYPERNODES)

    def _while_served(
        self, create: Callable[[], LeaderElectionRunnable], *resources: "Resource"
    ) -> LeaderElectionRunnable:
        """Return a controller that runs while the API server has all *resources*.

        Helm installs no definitions when a release is upgraded.
        """
        from ..machinery.served import ServedController

        return ServedController(
            lambda served: create(), [resources], client=self.client, clock=self._clock
        )

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
            work_metrics=self.metrics.work,
        )
        return BatchJobController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder.with_component("job-controller"),
        )

    def _batch_cron_job_controller(self) -> LeaderElectionRunnable:
        from ..cron_ctrl.controller import CronJobController, CronJobSettings
        from ..cron_ctrl.kubernetes import KIND

        settings = CronJobSettings(
            workers=self.batch.concurrent_cron_job_syncs,
            reconcile_timeout=self._timeout,
            work_metrics=self.metrics.work,
        )
        return CronJobController(
            self.client,
            KIND,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder.with_component("cronjob-controller"),
        )

    def _training_controller(self) -> LeaderElectionRunnable:
        from ..training_ctrl.controller import TrainingController

        settings = replace(
            training_settings(self.training),
            max_pods_per_job=self.flags.max_pods_per_job,
            ttl_waits_for_history=self.flags.ttl_waits_for_history,
            reconcile_timeout=self._timeout,
            registry=self.registry,
            work_metrics=self.metrics.work,
        )
        return TrainingController(
            self.client,
            settings=settings,
            clock=self._clock,
            recorder=self.recorder,
            podgroups=self._podgroups,
        )

    def _suspension_controller(self, name: str) -> Callable[[], LeaderElectionRunnable]:
        def build() -> LeaderElectionRunnable:
            from ..podgroup_ctrl.suspendable_kinds import KINDS
            from ..podgroup_ctrl.suspension import SuspensionController, SuspensionSettings

            (kind,) = (each for each in KINDS if each.controller == name)
            settings = SuspensionSettings(
                reconcile_timeout=self._timeout,
                scheduler_names=tuple(self.flags.scheduler_name),
                work_metrics=self.metrics.work,
            )

            def create() -> SuspensionController:
                return SuspensionController(
                    self.client,
                    kind,
                    settings=settings,
                    clock=self._clock,
                    recorder=self.recorder,
                    podgroups=self._podgroups,
                )

            return self._while_served(create, *{kind.resource, kind.owner})

        return build
