"""Controllers of a replica that holds some of the shards, while other replicas hold the rest.

Jobs, queues and PodGroups are sharded. All other controllers run where shard 0 is held.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..kube.supervision import cancel_and_wait
from ..machinery.lifecycle import LeaderElectionRunnable
from .controller_builder import Builder, ControllerInputs, SharedMetrics, import_controllers
from .flag_groups import FlagError
from .leader_election import election_client
from .manager import ComponentExitedError, new_client
from .process import exit_now

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..kube.client.client import Client
    from ..kube.client.events import EventRecorder
    from ..machinery.leader_election import LeaderElectionConfig
    from ..machinery.shard_leases import HeldShard, ShardConfig

SHARDED = frozenset(("job-controller", "queue-controller", "pg-controller"))
"""Controllers whose keys are divided into shards."""

EVENT_FLUSH_TIMEOUT = 1.0
"""Seconds to write pending events after all shards are released."""


def shard_config(shards: int, election: "LeaderElectionConfig | None") -> "ShardConfig | None":
    """Return the configuration of *shards*, or None for one.

    Raises:
        ValueError: the number is out of range, or there is no election.
    """
    from ..machinery.shard_leases import ShardConfig

    if shards == 1:
        return None
    if election is None:
        raise FlagError(f"--shards={shards} requires --leader-elect")
    return ShardConfig(shards=shards, election=election)


async def run_with_shards(
    inputs: ControllerInputs, config: "ShardConfig | None", *, ready: asyncio.Event
) -> None:
    """Run the controllers for the shards that this replica holds, until cancelled.

    Raises:
        ShardCountError: replicas with another number of shards are running.
        ConfigError: no valid credentials were found.
    """
    from ..kube.client.events import EventRecorder
    from ..machinery.clock import BoottimeClock
    from ..machinery.leader_election import LeaderElectionMetrics
    from ..machinery.shard_leases import ShardLeases, ShardMetrics

    if config is None:
        raise ValueError("one shard needs no leases of shards")
    cluster, telemetry = inputs.cluster, inputs.telemetry
    async with (
        election_client(config.election, cluster, "controllers", telemetry=telemetry) as electing,
        new_client(cluster, "controllers", metrics=telemetry.client_metrics) as client,
    ):
        recorder = EventRecorder(client, component="vc-controller-manager")
        import_controllers(inputs.enabled)
        shards = _Shards(inputs, client, recorder, config.shards)
        leases = ShardLeases(
            electing,
            config,
            shards.run,
            clock=BoottimeClock(),
            on_lost=exit_now,
            metrics=LeaderElectionMetrics(telemetry.registry),
            shard_metrics=ShardMetrics(telemetry.registry),
        )
        telemetry.health.add_leader_check(leases)
        recording = asyncio.create_task(recorder.run())
        try:
            await leases.run(ready=ready)
        finally:
            await recorder.flush(EVENT_FLUSH_TIMEOUT)
            await cancel_and_wait(recording)


class _Shards:
    """Runs the controllers of one shard after another, or of several at once."""

    def __init__(
        self, inputs: ControllerInputs, client: "Client", recorder: "EventRecorder", count: int
    ) -> None:
        from ..kube.informer.factory import SharedInformers
        from ..machinery.shards import shard_of

        self._inputs = inputs
        self._client = client
        self._recorder = recorder
        self._count = count
        self._metrics = SharedMetrics(inputs.telemetry.registry)
        self._informers = SharedInformers(client, shard_of=lambda key: shard_of(key, count))

    async def run(self, held: "HeldShard") -> None:
        """Run the controllers of a shard until cancelled; they finish what they have begun."""
        await self._informers.add_shard(held.index)
        try:
            with _registry(self._inputs.telemetry.registry) as registry:
                await _run_all(self._build(held, registry))
        finally:
            self._metrics.work.unregister_shard(held.index)
            self._informers.remove_shard(held.index)

    def _build(
        self, held: "HeldShard", registry: "CollectorRegistry"
    ) -> Collection[LeaderElectionRunnable]:
        from ..machinery.shards import Shard

        inputs, client = self._inputs, self._client.fenced(held.check_fence)
        builder = Builder(
            flags=inputs.flags,
            batch=inputs.batch,
            training=inputs.training,
            client=client,
            recorder=self._recorder,
            registry=registry,
            metrics=self._metrics,
            informers=self._informers.for_shard(held.index),
            shard=Shard(held.index, self._count),
        )
        enabled = set(inputs.enabled)
        return builder.build(enabled if held.index == 0 else enabled & SHARDED)


@contextmanager
def _registry(parent: "CollectorRegistry") -> "Iterator[CollectorRegistry]":
    """Provide a registry that is part of *parent* for the length of the block."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    parent.register(registry)
    try:
        yield registry
    finally:
        parent.unregister(registry)


async def _run_all(controllers: Collection[LeaderElectionRunnable]) -> None:
    """Run all until cancelled. It is an error if one of them ends before."""
    if not controllers:
        await asyncio.Event().wait()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in controllers]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if any(task.cancelled() for task in running):  # this task itself was not cancelled
            raise ComponentExitedError("a controller exited unexpectedly")
