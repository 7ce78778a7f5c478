"""A real API server with replicas of the components under load: for chaos tests.

Every process has its own user, so that the audit log shows who did what.
`ChaosCluster.check` holds the conditions that every run must meet at its end.
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
MAX_REPLICA_RESTARTS = 100
"""Max replicas of a component in one test, each with its own user."""


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
    """All replicas started so far, by component."""
    replica_numbers: dict[str, Iterator[int]] = field(
        default_factory=lambda: {component: itertools.count() for component in COMPONENTS}
    )
    urls: dict[str, str] = field(default_factory=dict)
    """By user: the address that its replica uses instead of the server's."""
    program: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By user: the program that is started instead of the command line."""
    controller_flags: Sequence[str] = ()
    """Further flags of the controllers."""

    @property
    def users(self) -> list[str]:
        """All users that replicas can have."""
        return _users()

    async def _start_replica(self, component: str) -> Replica:
        user = f"{component}-{next(self.replica_numbers[component])}"
        program, url = self.program.get(user, PROGRAM), self.urls.get(user, "")
        flags = [*self.election.flags]
        if component == "controllers":
            flags += self.controller_flags
        replica = await self.fleet.start(component, user, *flags, url=url, program=program)
        self.replicas_started[component].append(replica)
        return replica

    async def _supervise_replica(self, component: str) -> None:
        """Keep one replica of the component running: replace each one that exits."""
        while True:
            replica = await self._start_replica(component)
            await replica.wait_exit(seconds=NEVER)
            await asyncio.sleep(RESTART_DELAY)

    @asynccontextmanager
    async def running_replicas(self, number: int = REPLICAS) -> AsyncIterator[None]:
        """Keep replicas going, as Deployments do, and jobs coming, for the length of the block."""
        tasks = [
            asyncio.create_task(self._supervise_replica(component))
            for component in COMPONENTS
            for _ in range(number)
        ]
        try:
            await wait_default_queue(self.server)
            for component in COMPONENTS:
                await self.wait_live_leader(component)
            tasks.append(asyncio.create_task(self.job_load.submit()))
            yield
            await tasks.pop()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()  # raises

    def leader(self, component: str) -> Replica | None:
        """Return the replica that holds the component's Lease, if any; it may have exited."""
        user = self.audit_log.leader(LEASES[component])
        return self.fleet.replicas.get(user)

    async def wait_live_leader(
        self, component: str, *, excluding: Replica | None = None
    ) -> Replica:
        """Wait for a running leader other than *excluding*; return it."""

        def leads() -> bool:
            found = self.leader(component)
            return found is not None and found is not excluding and found.is_running

        await eventually(leads, lambda: f"a leader of {component}", seconds=120)
        found = self.leader(component)
        assert found is not None
        return found

    async def failed_over(self, what: Callable[[Replica], None]) -> dict[str, Replica]:
        """Apply *what* to the leaders of all components; return them once others lead."""
        fallen = {}
        for component in COMPONENTS:
            fallen[component] = await self.wait_live_leader(component)
            what(fallen[component])
        for component, replica in fallen.items():
            await self.wait_live_leader(component, excluding=replica)
        return fallen

    def leaderships(self, component: str) -> list[audit.Leadership]:
        """Return the holders of the component's Lease, in order."""
        return audit.leaderships(self.audit_log.requests(), LEASES[component])

    def handover_seconds(self, component: str) -> list[float]:
        """Return the seconds without a leader, one entry per leader change."""
        stored = self.leaderships(component)
        return [
            (_parse_time(after.began) - _parse_time(before.ended)).total_seconds()
            for before, after in itertools.pairwise(stored)
        ]

    def stale_writes(self, component: str) -> list[audit.StaleWrite]:
        """Return the component's writes by replicas that did not hold the Lease.

        Events are ignored: they report the past, and a retried one may arrive after the loss.
        """
        users = [replica.user for replica in self.replicas_started[component]]
        return audit.stale_writes(
            self.audit_log.requests(), LEASES[component], users, exempt=["events"]
        )

    async def check_jobs(self) -> None:
        """Wait until all jobs finish; check their result, with no duplicate or orphaned object."""
        await self.job_load.wait_finished()
        await eventually(
            lambda: not self.job_load.mismatches(),
            lambda: f"the right ends; {self.job_load.mismatches()}",
            seconds=120,
        )
        created = audit.pod_creations(self.audit_log.requests())
        expected, were = self.job_load.expected_pods(), self.job_load.uids
        # A watch that was cut off has not seen all, and a log that was cut short does not have all.
        assert created.keys() | were.keys() == expected, (created.keys() | were.keys()) ^ expected
        duplicates = {pod: times for pod, times in created.items() if times > 1}
        duplicates |= {pod: len(uids) for pod, uids in were.items() if len(uids) > 1}
        assert duplicates == {}, duplicates
        await self._check_no_active_pods()

    def check_leaders(self, *, min_transitions: int) -> None:
        """Check that only lease holders wrote, and that each Lease had min_transitions at least.

        (More often only where a leader could not renew in time because the machine was busy.)
        """
        for component in COMPONENTS:
            strays = self.stale_writes(component)
            assert strays == [], strays
            stored = self.leaderships(component)
            assert [leadership.transitions for leadership in stored] == list(range(len(stored))), (
                component
            )
            assert (
                len({leadership.identity for leadership in stored}) == len(stored) > min_transitions
            ), component
            users = {leadership.user for leadership in stored}
            assert all(
                "leader_election: acquired lease" in replica.log_text()
                for replica in self.replicas_started[component]
                if replica.user in users
            )

    async def _check_no_active_pods(self) -> None:
        async with asyncio.timeout(120):
            while left := await active_pods(self.server):  # noqa: ASYNC110 - nothing to wait on
                await asyncio.sleep(0.1)
        assert left == []


def _users() -> list[str]:
    return [
        f"{component}-{number}"
        for component in COMPONENTS
        for number in range(MAX_REPLICA_RESTARTS)
    ]


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


@asynccontextmanager
async def chaos_cluster(
    tmp_path: Path,
    *,
    election: ElectionTiming = FAST_ELECTION,
    workload: Sequence[ExpectedJob] | None = None,
    nodes: int = 2,
    controller_flags: Sequence[str] = (),
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
        log = audit.AuditLog(server.kube.directory / "audit.log")
        yield ChaosCluster(
            server, fleet, work, log, election, controller_flags=tuple(controller_flags)
        )


async def _remove_not_ready_taints(server: RealServer, nodes: int) -> None:
    """Remove the taint of new nodes: no node lifecycle controller runs here."""
    for number in range(nodes):
        path = NODES.path(name=f"sim-{number}")
        patch = {"spec": {"taints": None}}
        kind = "application/merge-patch+json"
        async with asyncio.timeout(120):
            while True:  # until the kubelet has registered it
                response = await server.request("PATCH", path, patch, content_type=kind)
                if response.status == 200:
                    break
                await asyncio.sleep(0.1)
