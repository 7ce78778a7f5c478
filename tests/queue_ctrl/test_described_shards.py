"""Queues count PodGroups that pods describe where replicas share the work by shards."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from batholith.kube.client.client import Client
from batholith.kube.informer.factory import SharedInformers
from batholith.machinery.shards import Shard, shard_of
from batholith.model.described_podgroup import encode
from batholith.model.names import (
    GROUP_NAME,
    NO_PODGROUP,
    NODES,
    PODGROUP,
    PODGROUPS,
    PODS,
    QUEUE_NAME,
    QUEUES,
)
from batholith.model.podgroup import PodGroup, PodGroupSpec
from batholith.queue_ctrl.controller import QueueController, QueueSettings
from batholith.testing import Cluster

SHARDS = 4
NAMES = ("default", "a", "b", "c", "d", "e")
SETTINGS = QueueSettings(count_interval=0.0, count_described=True)


class Replica:
    """The queue controllers of the shards that one replica holds."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.informers = SharedInformers(client, shard_of=lambda key: shard_of(key, SHARDS))
        self.running: dict[int, asyncio.Task[None]] = {}

    async def add(self, shard: int) -> None:
        """Hold one more shard."""
        await self.informers.add_shard(shard)
        controller = QueueController(
            self.client,
            settings=SETTINGS,
            informers=self.informers.for_shard(shard),
            shard=Shard(shard, SHARDS),
        )
        ready = asyncio.Event()
        self.running[shard] = asyncio.create_task(controller.run(ready=ready))
        await ready.wait()

    async def release(self, shard: int) -> None:
        """End the controller of a shard."""
        task = self.running.pop(shard)
        task.cancel()
        await asyncio.wait([task])
        self.informers.remove_shard(shard)

    async def end(self) -> None:
        """End all of them."""
        for shard in list(self.running):
            await self.release(shard)


@asynccontextmanager
async def replica(cluster: Cluster) -> AsyncIterator[Replica]:
    async with Client(cluster.credentials_of("controllers"), user_agent="controllers") as client:
        it = Replica(client)
        try:
            yield it
        finally:
            await it.end()


class Objects:
    """What users, the job controller and the scheduler do."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.pods: dict[str, tuple[str, str]] = {}
        """Queue and phase of the PodGroup by pod; an empty phase if it has ended."""
        self.stored: dict[str, str] = {}
        """Queue by stored PodGroup."""

    async def create_pod(self, name: str, queue: str) -> None:
        described = PodGroup(spec=PodGroupSpec(min_member=1, queue=queue))
        metadata = {
            "name": name,
            "annotations": {GROUP_NAME: name, PODGROUP: encode(described)},
            "labels": {PODGROUP: NO_PODGROUP, QUEUE_NAME: queue},
        }
        spec = {"schedulerName": "other", "containers": [{"name": "c", "image": "busybox"}]}
        await self.cluster.create(PODS, {"metadata": metadata, "spec": spec})
        self.pods[name] = queue, "pending"

    async def bind(self, name: str) -> None:
        queue, _ = self.pods[name]
        self.pods[name] = queue, "running"
        body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
        async with self.cluster.client() as client:
            await client.post(PODS.path("default", name, "binding"), body, view=dict[str, Any])

    async def end(self, name: str) -> None:
        queue, _ = self.pods[name]
        self.pods[name] = queue, ""
        await self.cluster.set_pod_phase(name, "Succeeded")

    async def delete(self, name: str) -> None:
        del self.pods[name]
        self.cluster.remove(PODS, name)

    async def relabel(self, name: str, queue: str) -> None:
        """A user changes the label; the scheduler reads the description."""
        await self.cluster.patch(PODS, name, {"metadata": {"labels": {QUEUE_NAME: queue}}})

    async def store(self, name: str) -> None:
        """Create the PodGroup of a pod."""
        queue, _ = self.pods[name]
        spec = {"minMember": 1, "queue": queue}
        await self.cluster.create(
            PODGROUPS, {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Inqueue"}}
        )
        self.stored[name] = queue

    async def remove(self, name: str) -> None:
        del self.stored[name]
        await self.cluster.delete(PODGROUPS, name)

    def counts(self) -> dict[str, Counter[str]]:
        """The expected counts of each queue."""
        found: dict[str, Counter[str]] = {name: Counter() for name in NAMES}
        for queue in self.stored.values():
            found[queue]["inqueue"] += 1
        for name, (queue, phase) in self.pods.items():
            if phase and name not in self.stored:
                found[queue][phase] += 1
        return found

    async def step(self, rng: random.Random, number: int) -> None:
        """Do one of these."""
        unfinished = [name for name, (_, phase) in self.pods.items() if phase]
        pending = [name for name, (_, phase) in self.pods.items() if phase == "pending"]
        match rng.randrange(9):
            case 0 if unfinished:
                await self.end(rng.choice(unfinished))
            case 1 if self.pods:
                await self.delete(rng.choice(list(self.pods)))
            case 2 | 3 if pending:
                await self.bind(rng.choice(pending))
            case 4 if left := [name for name in unfinished if name not in self.stored]:
                await self.store(rng.choice(left))
            case 5 if self.stored:
                await self.remove(rng.choice(list(self.stored)))
            case 6 if unfinished:
                await self.relabel(rng.choice(unfinished), rng.choice(NAMES))
            case _:
                await self.create_pod(f"p{number}", rng.choice(NAMES))


def shown(cluster: Cluster) -> dict[str, Counter[str]]:
    """The counts of all queues."""
    names = ("pending", "inqueue", "running", "unknown", "completed")
    return {
        name: Counter({each: n for each in names if (n := found["status"].get(each, 0))})
        for name in NAMES
        if (found := cluster.objects(QUEUES).get(name)) is not None and "status" in found
    }


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(controllers=False, scheduler=False, nodes=0, node_lifecycle=None) as started:
        await started.create(NODES, {"metadata": {"name": "n"}})
        yield started


async def test_the_holder_of_the_shard_of_a_queue_counts_all_of_it(cluster: Cluster) -> None:
    """Shards are handed over, and lost, while pods are created and deleted."""
    rng = random.Random(14)
    objects = Objects(cluster)
    async with replica(cluster) as one, replica(cluster) as two:
        for shard in range(SHARDS):
            await (one, two)[shard % 2].add(shard)
        for name in NAMES[1:]:
            await cluster.create(QUEUES, {"metadata": {"name": name}, "spec": {"weight": 1}})
        await cluster.wait_until(lambda: len(shown(cluster)) == len(NAMES))
        for number in range(120):
            await objects.step(rng, number)
            if number % 12 == 0:
                await cluster.wait_until(
                    lambda: shown(cluster) == objects.counts(),
                    describe=lambda: f"{shown(cluster)}, not {objects.counts()}",
                )
            if number % 20 == 10:
                holders = [each for each in (one, two) if each.running]
                source = rng.choice(holders)
                target = two if source is one else one
                shard = rng.choice(sorted(source.running))
                await source.release(shard)
                await objects.step(rng, 1000 + number)
                await target.add(shard)
        lost = sorted(one.running)
        await one.end()
        for number in range(10):
            await objects.step(rng, 2000 + number)
        for shard in lost:
            await two.add(shard)
        await cluster.wait_until(
            lambda: shown(cluster) == objects.counts(),
            describe=lambda: f"{shown(cluster)}, not {objects.counts()}",
        )
