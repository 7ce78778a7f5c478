"""Replicas share shards through Leases: balanced, exclusive, taken over, handed over in order."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.polling import wait_for

from batholith.kube.client.client import Client
from batholith.kube.errors import NotLeaderError
from batholith.machinery.clock import SystemClock
from batholith.machinery.leader_election import (
    LeaderElectionConfig,
    LeaderElectionConfigError,
    LeaderElector,
)
from batholith.machinery.shard_leases import (
    GROUP_LABEL,
    HeldShard,
    ShardConfig,
    ShardCountError,
    ShardLeases,
)
from batholith.model import times
from batholith.model.names import LEASES, NAMESPACES
from batholith.testing import ApiServer, RequestMatcher

NAMESPACE = "volcano-system"
NAME = "vc-controller-manager"


def election(identity: str, *, lease_duration: float = 12.0) -> LeaderElectionConfig:
    """By default with Leases that do not expire while a busy machine delays this process."""
    return LeaderElectionConfig(
        name=NAME,
        namespace=NAMESPACE,
        identity=identity,
        lease_duration=lease_duration,
        renew_deadline=lease_duration * 0.75,
        retry_period=0.2,
    )


@dataclass
class Replica:
    """One process; its work on a shard is to claim it in `working`."""

    identity: str
    client: Client
    working: dict[int, str]
    """Which replica works on each shard; common to all of a test."""
    shards: int = 8
    lease_duration: float = 12.0
    finish_delay: float = 0.0
    """Seconds that work on a shard takes to end."""
    blocked_shard: int = -1
    """Shard whose work does not end before `unblocked`."""
    unblocked: asyncio.Event = field(default_factory=asyncio.Event)
    violations: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    clock: SystemClock = field(default_factory=SystemClock)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.leases = ShardLeases(
            self.client,
            ShardConfig(
                shards=self.shards,
                election=election(self.identity, lease_duration=self.lease_duration),
            ),
            self._work,
            clock=self.clock,
            on_lost=self.lost.append,
        )
        self.task = asyncio.create_task(self.leases.run(ready=self.ready))

    async def _work(self, held: HeldShard) -> None:
        """Work as long as the fence permits, as a controller's writes would."""
        with contextlib.suppress(NotLeaderError):
            while True:
                held.check_fence()
                other = self.working.setdefault(held.index, self.identity)
                if other != self.identity:
                    self.violations.append(f"{other} and {self.identity} hold shard {held.index}")
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    await asyncio.sleep(self.finish_delay)
                    if held.index == self.blocked_shard:
                        await self.unblocked.wait()
                    held.check_fence()
                    del self.working[held.index]
                    raise
        # The fence of a replica that is cut off closes before another replica acquires its shards.
        del self.working[held.index]
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End it as SIGTERM does."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def cut_off(self) -> None:
        """Let none of its requests reach the server."""
        await self.client.__aexit__(None, None, None)


@dataclass
class Group:
    server: ApiServer
    working: dict[int, str] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    everyone: list[Replica] = field(default_factory=list)

    async def start(self, identity: str, **options: Any) -> Replica:
        """Start a replica with *options* of :class:`Replica`."""
        client = self.server.client(identity)
        await client.__aenter__()
        replica = Replica(identity, client, self.working, **options)
        self.replicas.append(replica)
        self.everyone.append(replica)
        return replica

    async def remove(self, replica: Replica, *, orderly: bool) -> None:
        self.replicas.remove(replica)
        if orderly:
            await replica.stop()
        else:
            await replica.cut_off()

    def leases(self) -> list[Any]:
        return list(self.server.objects(LEASES).values())

    def spread(self) -> int:
        counts = [len(replica.leases.held) for replica in self.replicas]
        return max(counts) - min(counts)

    async def wait_balanced(self, shards: int = 8) -> None:
        def is_balanced() -> bool:
            held = sorted(shard for replica in self.replicas for shard in replica.leases.held)
            identities = {replica.identity for replica in self.replicas}
            return (
                held == list(range(shards))
                and self.spread() <= 1
                and set(self.working) == set(range(shards))
                and set(self.working.values()) <= identities
            )

        await wait_for(is_balanced)


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    async with ApiServer() as server:
        server.put(NAMESPACES, NAMESPACE, namespace="")
        found = Group(server)
        yield found
        for replica in found.everyone:
            await replica.stop()
            await replica.cut_off()
        assert [each.violations for each in found.everyone if each.violations] == []
        assert [each.lost for each in found.replicas if each.lost] == []


async def test_replicas_hold_fair_parts_and_a_new_one_gets_its_part(group: Group) -> None:
    first = await group.start("a")
    await group.wait_balanced()
    assert first.leases.held == tuple(range(8))
    for identity in "bc":
        await group.start(identity, finish_delay=0.2)
        await group.wait_balanced()
    assert sorted(len(each.leases.held) for each in group.replicas) == [2, 3, 3]


async def test_the_shards_of_a_stopped_replica_are_taken_over_at_once(group: Group) -> None:
    a, b = await group.start("a"), await group.start("b")
    await group.wait_balanced()
    await group.remove(a, orderly=True)
    assert not any(lease["spec"]["holderIdentity"] == "a" for lease in group.leases())
    await group.wait_balanced()
    assert b.leases.held == tuple(range(8))


async def test_shards_of_a_stopping_replica_are_acquired_while_it_finishes_others(
    group: Group,
) -> None:
    a, b = await group.start("a"), await group.start("b")
    await group.wait_balanced()
    a.blocked_shard = a.leases.held[0]
    stopping = asyncio.create_task(group.remove(a, orderly=True))
    await wait_for(lambda: len(b.leases.held) == 7)
    assert a.leases.held == (a.blocked_shard,)
    a.unblocked.set()
    await stopping
    await group.wait_balanced()


async def test_the_shards_of_a_dead_replica_are_taken_over_once_its_leases_expire(
    group: Group,
) -> None:
    a = await group.start("a")
    for identity in "bc":
        await group.start(identity)
    await group.wait_balanced()
    await group.remove(a, orderly=False)
    await group.wait_balanced()
    assert a.lost  # it would have exited


async def test_replicas_that_died_before_a_new_one_started_get_no_part(group: Group) -> None:
    """Their Leases remain for a while."""
    config = ShardConfig(shards=8, election=election("a"))
    for dead in ("a", "c"):
        name = ShardConfig(shards=8, election=election(dead)).member_lease
        group.server.put(
            LEASES,
            name,
            namespace=NAMESPACE,
            metadata={"labels": {GROUP_LABEL: config.election.name}},
            spec={
                "holderIdentity": dead,
                "leaseDurationSeconds": 60,
                "renewTime": "2026-01-01T00:00:00.000000Z",
            },
        )
    await group.start("b")
    await group.wait_balanced()
    assert {"a", "c"} <= {lease["spec"]["holderIdentity"] for lease in group.leases()}


async def test_a_replica_whose_clock_is_late_gets_its_part_once_it_renews(group: Group) -> None:
    class LateClock(SystemClock):
        def now(self) -> datetime:
            return super().now() - timedelta(days=1)

    await group.start("a")
    await group.wait_balanced()
    await group.start("late", clock=LateClock())
    await group.start("c")
    await group.wait_balanced()


async def test_renewals_of_the_common_lease_that_conflict_are_retried(group: Group) -> None:
    """Another client changes the Lease, for instance its labels."""
    await group.start("a")
    await group.start("b")
    await group.wait_balanced()
    fault = group.server.faults.error(
        RequestMatcher("update", LEASES, count=20, where=lambda r: r.path.endswith(NAME)), 409
    )
    await wait_for(lambda: not fault.pending)
    for replica in group.replicas:
        replica.leases._group.check_fence()


async def test_a_common_lease_without_answers_ends_no_replica_that_renews_its_own(
    group: Group,
) -> None:
    """Requests for it fail for longer than the other Leases would be valid without a renewal."""
    replicas = [await group.start(identity) for identity in "abc"]
    await group.wait_balanced()
    began = replicas[0].clock.now()
    group.server.faults.error(
        RequestMatcher(count=10_000, where=lambda request: request.path.endswith(NAME)), 503
    )
    deadline = began + timedelta(seconds=election("a").lease_duration)

    def have_renewed() -> bool:
        """Whether each replica has renewed its own Lease after the deadline."""
        renewed = [
            times.parse(lease["spec"]["renewTime"])
            for lease in group.leases()
            if "-member-" in lease["metadata"]["name"]
        ]
        return len(renewed) == len(replicas) and min(renewed) > deadline

    await wait_for(lambda: have_renewed() or any(replica.lost for replica in replicas))
    assert [replica.lost for replica in replicas] == [[], [], []]
    for replica in replicas:
        replica.leases._group.check_fence()


async def test_random_joins_stops_and_deaths(group: Group) -> None:
    rng = random.Random(7)
    for number in range(12):
        actions = ["join"] if len(group.replicas) < 2 else ["join", "stop", "die"]
        match rng.choice(actions):
            case "join":
                await group.start(f"r{number}", finish_delay=rng.choice([0.0, 0.1]))
            case "stop":
                await group.remove(rng.choice(group.replicas), orderly=True)
            case "die":
                await group.remove(rng.choice(group.replicas), orderly=False)
        await asyncio.sleep(rng.random() * 0.5)
    await group.wait_balanced()


async def test_a_lost_response_to_an_acquisition_does_not_leave_a_shard_without_work(
    group: Group,
) -> None:
    group.server.faults.lose_response(
        RequestMatcher(count=3, where=lambda request: "-shard-" in request.path)
    )
    await group.start("a")
    await group.wait_balanced()


async def test_another_number_of_shards_is_refused(group: Group) -> None:
    await group.start("a")
    await group.wait_balanced()
    other = await group.start("b", shards=4)
    group.replicas.remove(other)
    with pytest.raises(ShardCountError, match="--shards=8 are running"):
        await other.task


async def test_another_number_of_shards_works_after_the_others_have_ended(group: Group) -> None:
    first = await group.start("a", lease_duration=4.0)
    await group.wait_balanced()
    await group.remove(first, orderly=True)
    await group.start("b", shards=4, lease_duration=4.0)
    await group.wait_balanced(4)


async def test_a_single_leader_and_replicas_with_shards_exclude_each_other(group: Group) -> None:
    async with group.server.client("single") as client:
        single = LeaderElector(client, election("single", lease_duration=4.0), clock=SystemClock())
        leading = asyncio.create_task(single.run())
        await single.elected.wait()
        replica = await group.start("a", lease_duration=4.0)
        await replica.ready.wait()
        for _ in range(10):
            single.check_fence()
            assert not replica.leases.held
            await asyncio.sleep(0.05)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await group.wait_balanced()
        second = LeaderElector(client, election("second", lease_duration=4.0), clock=SystemClock())
        waiting = asyncio.create_task(second.run())
        await wait_for(lambda: second.holder == "batholith-shards-8")
        await group.remove(replica, orderly=True)
        await second.elected.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("shards", [0, 1, 257])
def test_the_number_of_shards_is_limited(shards: int) -> None:
    with pytest.raises(LeaderElectionConfigError, match="--shards"):
        ShardConfig(shards=shards, election=election("a"))
