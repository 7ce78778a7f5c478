"""``batholith controllers``: all controllers in one process."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..machinery.lifecycle import LeaderElectionRunnable, Runnable
from . import controller_selection
from .controller_builder import ControllerInputs
from .controller_flags import BatchFlags, ControllerFlags, TrainingFlags, validate
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
    fenced_client,
    leader_election,
)
from .manager import (
    Telemetry,
    ensure_no_others,
    exit_on_error,
    new_client,
    run_components,
)
from .process import run
from .sharded_controllers import run_with_shards, shard_config

if TYPE_CHECKING:
    from ..machinery.leader_election import LeaderElectionConfig
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
    await ensure_no_others(cluster, *components)
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
    from ..kube.errors import ConfigError
    from ..machinery.shard_leases import ShardCountError
    from .controller_manager_check import ControllerManagerRunningError
    from .deployment_check import OtherSystemRunningError
    from .health import CannotListenError, serve_endpoints

    logging_.configure()
    telemetry = Telemetry()
    with exit_on_error(OSError, ValueError):
        enabled = validate(flags, batch, training)
        config = election.settings()
        shard_config(flags.shards, config)
        endpoints = telemetry.endpoints(endpoint_flags, metrics_port=METRICS_PORT)

    async def main(ready: asyncio.Event) -> None:
        telemetry.health.add_start_check(ready)
        async with serve_endpoints(endpoints):
            await _ensure_sole_controllers(cluster, enabled, batch, training, check_flags)
            inputs = ControllerInputs(flags, batch, training, enabled, cluster, telemetry)
            if flags.shards > 1:
                await run_with_shards(inputs, shard_config(flags.shards, config), ready=ready)
            else:
                await _run_with_leader(inputs, config, ready=ready)

    with exit_on_error(
        OtherSystemRunningError,
        ControllerManagerRunningError,
        CannotListenError,
        ConfigError,
        ShardCountError,
    ):
        run(main)


async def _run_with_leader(
    inputs: ControllerInputs, config: "LeaderElectionConfig | None", *, ready: asyncio.Event
) -> None:
    """Run the controllers while this replica leads, if there is an election."""
    from ..kube.client.events import EventRecorder

    cluster, telemetry = inputs.cluster, inputs.telemetry
    async with (
        leader_election(config, cluster, "controllers", telemetry=telemetry) as elector,
        fenced_client(elector, cluster, "controllers", telemetry=telemetry) as client,
    ):
        recorder = EventRecorder(client, component="vc-controller-manager")
        running = inputs.builder(client, recorder).build(inputs.enabled)
        components: list[Runnable] = [ElectedRunnable(each, elector) for each in running]
        if not elector:
            # Without election, readiness means that jobs can be submitted.
            components += [
                ReadyWhenSet(each.default_queue_ready) for each in _queue_controllers(running)
            ]
        await run_components(recorder, *components, ready=ready)


@dataclass(frozen=True, slots=True)
class ReadyWhenSet:
    """A component that does nothing. It is ready once *event* is set."""

    event: asyncio.Event

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Wait for the event, and set *ready*."""
        await self.event.wait()
        if ready is not None:
            ready.set()


def _queue_controllers(components: Iterable[LeaderElectionRunnable]) -> "Iterator[QueueController]":
    from ..queue_ctrl.controller import QueueController

    return (each for each in components if isinstance(each, QueueController))


_controllers.__name__ = "controllers"
controllers = command_from_groups(_controllers, *IGNORED_FLAGS)
