"""A real API server with replicas of the parts under load: where chaos is tried.

Every process has a user of its own, so that the audit log tells who did what. `Stage.check` says
what must be true in the end whatever happened in between.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import support.audit_log as audit
from support.job_load import (
    ExpectedJob,
    JobLoad,
    active_pods,
    eventually,
    expected_jobs,
    job_load,
    wait_default_queue,
)
from support.realkube import MASTERS, RealKubeOptions, RealServer, real_server
from support.replicas import FAST_ELECTION, PROGRAM, ElectionTiming, Replica, ReplicaSet

from batholith.model import crds
from batholith.model.names import NAMESPACES, NODES

COMPONENTS = ("controllers", "scheduler")
LEASES: Mapping[str, str] = MappingProxyType(
    {
        "controllers": "volcano-system/vc-controller-manager",
        "scheduler": "volcano-system/volcano",
    }
)
JOBS = 200
REPLICAS = 3
NEVER, RESTART_DELAY = 1e6, 1.0
"""Seconds: for which a replica may live, and after which one that ended is followed by another."""
MAX_REPLICA_RESTARTS = 40
"""Replicas of a part that there can have been in a test, each with a user of its own."""


@dataclass(slots=True)
class ChaosCluster:
    """What a test of chaos works with."""

    server: RealServer
    fleet: ReplicaSet
    job_load: JobLoad
    audit_log: audit.AuditLog
    election: ElectionTiming
    replicas_started: dict[str, list[Replica]] = field(
        default_factory=lambda: {p: [] for p in COMPONENTS}
    )
    """By part, all replicas that there have been."""
    replica_numbers: dict[str, Iterator[int]] = field(
        default_factory=lambda: {part: itertools.count() for part in COMPONENTS}
    )
    urls: dict[str, str] = field(default_factory=dict)
    """By user, where its replica goes instead of to the server."""
    program: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By user, what is started in the place of the command line."""

    @property
    def users(self) -> list[str]:
        """All users that replicas can have."""
        return _users()

    async def _start_replica(self, component: str) -> Replica:
        user = f"{component}-{next(self.replica_numbers[component])}"
        program, url = self.program.get(user, PROGRAM), self.urls.get(user, "")
        flags = self.election.flags
        replica = await self.fleet.start(component, user, *flags, url=url, program=program)
        self.replicas_started[component].append(replica)
        return replica

    async def _supervise_replica(self, component: str) -> None:
        """Have a replica of the part at all times: one that ends is followed by a new one."""
        while True:
            replica = await self._start_replica(component)
            await replica.wait_exit(seconds=NEVER)
            await asyncio.sleep(RESTART_DELAY)

    @asynccontextmanager
    async def running_replicas(self) -> AsyncIterator[None]:
        """Keep replicas going, as Deployments do, and jobs coming, for the length of the block."""
        tasks = [
            asyncio.create_task(self._supervise_replica(part))
            for part in COMPONENTS
            for _ in range(REPLICAS)
        ]
        try:
            await wait_default_queue(self.server)
            for part in COMPONENTS:
                await self.wait_live_leader(part)
            tasks.append(asyncio.create_task(self.job_load.submit()))
            yield
            await tasks.pop()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def leader(self, component: str) -> Replica | None:
        """The replica that holds the part's Lease, if one does; it may be dead by now."""
        user = self.audit_log.leader(LEASES[component])
        return self.fleet.replicas.get(user)

    async def wait_live_leader(
        self, component: str, *, excluding: Replica | None = None
    ) -> Replica:
        """Wait until a replica leads that lives and is not this one, and say which."""

        def leads() -> bool:
            found = self.leader(component)
            return found is not None and found is not excluding and found.is_running

        await eventually(leads, lambda: f"a leader of {component}", seconds=120)
        found = self.leader(component)
        assert found is not None
        return found

    async def failed_over(self, what: Callable[[Replica], None]) -> dict[str, Replica]:
        """Do something to the leaders of all parts; those, once others lead in their place."""
        fallen = {}
        for part in COMPONENTS:
            fallen[part] = await self.wait_live_leader(part)
            what(fallen[part])
        for part, replica in fallen.items():
            await self.wait_live_leader(part, excluding=replica)
        return fallen

    def leaderships(self, component: str) -> list[audit.Leadership]:
        """Who held the part's Lease so far."""
        return audit.leaderships(self.audit_log.requests(), LEASES[component])

    def handover_seconds(self, component: str) -> list[float]:
        """Seconds that the part was without a leader, each time that it changed."""
        held = self.leaderships(component)
        return [
            (_parse_time(after.began) - _parse_time(before.ended)).total_seconds()
            for before, after in itertools.pairwise(held)
        ]

    def stale_writes(self, component: str) -> list[audit.StaleWrite]:
        """Writes of the part's replicas beside their time.

        Events are spared: they tell what was, and one that its sender gave up may come late.
        """
        users = [replica.user for replica in self.replicas_started[component]]
        return audit.stale_writes(
            self.audit_log.requests(), LEASES[component], users, exempt=["events"]
        )

    async def check_jobs(self) -> None:
        """Wait until all jobs have ended; they must have ended right, nothing twice or left."""
        await self.job_load.wait_finished()
        await eventually(
            lambda: not self.job_load.mismatches(),
            lambda: f"the right ends; {self.job_load.mismatches()}",
            seconds=120,
        )
        made = audit.pod_creations(self.audit_log.requests())
        wanted, were = self.job_load.expected_pods(), self.job_load.uids
        # A watch that was cut off has not seen all, and a log that was cut short does not have all.
        assert made.keys() | were.keys() == wanted, (made.keys() | were.keys()) ^ wanted
        twice = {pod: times for pod, times in made.items() if times > 1}
        twice |= {pod: len(uids) for pod, uids in were.items() if len(uids) > 1}
        assert twice == {}, twice
        await self._check_no_active_pods()

    def check_leaders(self, *, min_transitions: int) -> None:
        """Nobody wrote beside his time, and each Lease changed hands in order, so often at least.

        (More often only where a leader could not renew in time because the machine was busy.)
        """
        for part in COMPONENTS:
            strays = self.stale_writes(part)
            assert strays == [], strays
            held = self.leaderships(part)
            assert [reign.transitions for reign in held] == list(range(len(held))), part
            assert len({reign.identity for reign in held}) == len(held) > min_transitions, part
            users = {reign.user for reign in held}
            assert all(
                "leadership: leading" in replica.log_text()
                for replica in self.replicas_started[part]
                if replica.user in users
            )

    async def _check_no_active_pods(self) -> None:
        async with asyncio.timeout(120):
            while left := await active_pods(self.server):  # noqa: ASYNC110 - nothing to wait on
                await asyncio.sleep(0.1)
        assert left == []


def _users() -> list[str]:
    return [f"{part}-{number}" for part in COMPONENTS for number in range(MAX_REPLICA_RESTARTS)]


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


@asynccontextmanager
async def chaos_cluster(
    tmp_path: Path,
    *,
    election: ElectionTiming = FAST_ELECTION,
    workload: Sequence[ExpectedJob] | None = None,
    nodes: int = 2,
) -> AsyncIterator[ChaosCluster]:
    """A server with CRDs and a simulated kubelet; nothing else is started yet."""
    users = dict.fromkeys(("admin", "agent", *_users()), MASTERS)
    options = RealKubeOptions(users=users, audit=True, audit_rules=audit.RULES)
    jobs = expected_jobs(JOBS) if workload is None else workload
    async with (
        real_server(tmp_path, options, crds=crds.load()) as server,
        ReplicaSet(server, tmp_path / "replicas") as fleet,
        job_load(server, jobs) as work,
    ):
        await server.create(NAMESPACES.path(), {"metadata": {"name": "volcano-system"}})
        await fleet.start_agent(nodes)
        await _remove_not_ready_taints(server, nodes)
        log = audit.AuditLog(server.kube.folder / "audit.log")
        yield ChaosCluster(server, fleet, work, log, election)


async def _remove_not_ready_taints(server: RealServer, nodes: int) -> None:
    """Nodes are born with a taint that only a node life cycle controller would take off."""
    for number in range(nodes):
        path = NODES.path(name=f"sim-{number}")
        patch = {"spec": {"taints": None}}
        kind = "application/merge-patch+json"
        async with asyncio.timeout(120):
            while True:  # until the kubelet has registered it
                answer = await server.request("PATCH", path, patch, content_type=kind)
                if answer.status == 200:
                    break
                await asyncio.sleep(0.1)
