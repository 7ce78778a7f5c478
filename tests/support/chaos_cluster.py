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
    Load,
    Script,
    eventually,
    living_pods,
    load,
    scripts,
    until_queue_is_there,
)
from support.realkube import MASTERS, Options, RealServer, real_server
from support.replicas import PROGRAM, QUICK, Election, Fleet, Replica

from batholith.model import crds
from batholith.model.names import NAMESPACES, NODES

PARTS = ("controllers", "scheduler")
LEASES: Mapping[str, str] = MappingProxyType(
    {
        "controllers": "volcano-system/vc-controller-manager",
        "scheduler": "volcano-system/volcano",
    }
)
JOBS = 200
REPLICAS = 3
NEVER, BACK_OFF = 1e6, 1.0
"""Seconds: for which a replica may live, and after which one that ended is followed by another."""
LIVES = 40
"""Replicas of a part that there can have been in a test, each with a user of its own."""


@dataclass(slots=True)
class Stage:
    """What a test of chaos works with."""

    server: RealServer
    fleet: Fleet
    work: Load
    log: audit.AuditLog
    election: Election
    started: dict[str, list[Replica]] = field(default_factory=lambda: {p: [] for p in PARTS})
    """By part, all replicas that there have been."""
    numbers: dict[str, Iterator[int]] = field(
        default_factory=lambda: {part: itertools.count() for part in PARTS}
    )
    urls: dict[str, str] = field(default_factory=dict)
    """By user, where its replica goes instead of to the server."""
    program: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By user, what is started in the place of the command line."""

    @property
    def users(self) -> list[str]:
        """All users that replicas can have."""
        return _users()

    async def _start(self, part: str) -> Replica:
        user = f"{part}-{next(self.numbers[part])}"
        program, url = self.program.get(user, PROGRAM), self.urls.get(user, "")
        flags = self.election.flags
        replica = await self.fleet.start(part, user, *flags, url=url, program=program)
        self.started[part].append(replica)
        return replica

    async def _keep(self, part: str) -> None:
        """Have a replica of the part at all times: one that ends is followed by a new one."""
        while True:
            replica = await self._start(part)
            await replica.end(seconds=NEVER)
            await asyncio.sleep(BACK_OFF)

    @asynccontextmanager
    async def replicas(self) -> AsyncIterator[None]:
        """Keep replicas going, as Deployments do, and jobs coming, for the length of the block."""
        tasks = [asyncio.create_task(self._keep(part)) for part in PARTS for _ in range(REPLICAS)]
        try:
            await until_queue_is_there(self.server)
            for part in PARTS:
                await self.living_leader(part)
            tasks.append(asyncio.create_task(self.work.submit()))
            yield
            await tasks.pop()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def leader(self, part: str) -> Replica | None:
        """The replica that holds the part's Lease, if one does; it may be dead by now."""
        user = self.log.leader(LEASES[part])
        return self.fleet.replicas.get(user)

    async def living_leader(self, part: str, *, but: Replica | None = None) -> Replica:
        """Wait until a replica leads that lives and is not this one, and say which."""

        def leads() -> bool:
            found = self.leader(part)
            return found is not None and found is not but and found.alive

        await eventually(leads, lambda: f"a leader of {part}", seconds=120)
        found = self.leader(part)
        assert found is not None
        return found

    async def fell(self, what: Callable[[Replica], None]) -> dict[str, Replica]:
        """Do something to the leaders of all parts; those, once others lead in their place."""
        fallen = {}
        for part in PARTS:
            fallen[part] = await self.living_leader(part)
            what(fallen[part])
        for part, replica in fallen.items():
            await self.living_leader(part, but=replica)
        return fallen

    def reigns(self, part: str) -> list[audit.Reign]:
        """Who held the part's Lease so far."""
        return audit.reigns(self.log.requests(), LEASES[part])

    def handovers(self, part: str) -> list[float]:
        """Seconds that the part was without a leader, each time that it changed."""
        held = self.reigns(part)
        return [
            (_moment(after.began) - _moment(before.ended)).total_seconds()
            for before, after in itertools.pairwise(held)
        ]

    def strays(self, part: str) -> list[audit.Stray]:
        """Writes of the part's replicas beside their time.

        Events are spared: they tell what was, and one that its sender gave up may come late.
        """
        users = [replica.user for replica in self.started[part]]
        return audit.strays(self.log.requests(), LEASES[part], users, spared=["events"])

    async def check(self) -> None:
        """Wait until all jobs have ended; they must have ended right, nothing twice or left."""
        await self.work.until_ended()
        await eventually(
            lambda: not self.work.wrong(),
            lambda: f"the right ends; {self.work.wrong()}",
            seconds=120,
        )
        made = audit.pods_made(self.log.requests())
        wanted, were = self.work.pods(), self.work.uids
        # A watch that was cut off has not seen all, and a log that was cut short does not have all.
        assert made.keys() | were.keys() == wanted, (made.keys() | were.keys()) ^ wanted
        twice = {pod: times for pod, times in made.items() if times > 1}
        twice |= {pod: len(uids) for pod, uids in were.items() if len(uids) > 1}
        assert twice == {}, twice
        await self._nothing_runs_on()

    def check_leaders(self, *, least: int) -> None:
        """Nobody wrote beside his time, and each Lease changed hands in order, so often at least.

        (More often only where a leader could not renew in time because the machine was busy.)
        """
        for part in PARTS:
            strays = self.strays(part)
            assert strays == [], strays
            held = self.reigns(part)
            assert [reign.transitions for reign in held] == list(range(len(held))), part
            assert len({reign.identity for reign in held}) == len(held) > least, part
            users = {reign.user for reign in held}
            assert all(
                "leadership: leading" in replica.said()
                for replica in self.started[part]
                if replica.user in users
            )

    async def _nothing_runs_on(self) -> None:
        async with asyncio.timeout(120):
            while left := await living_pods(self.server):  # noqa: ASYNC110 - nothing to wait on
                await asyncio.sleep(0.1)
        assert left == []


def _users() -> list[str]:
    return [f"{part}-{number}" for part in PARTS for number in range(LIVES)]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


@asynccontextmanager
async def stage(
    tmp_path: Path,
    *,
    election: Election = QUICK,
    wanted: Sequence[Script] | None = None,
    nodes: int = 2,
) -> AsyncIterator[Stage]:
    """A server with CRDs and a simulated kubelet; nothing else is started yet."""
    users = dict.fromkeys(("admin", "agent", *_users()), MASTERS)
    options = Options(users=users, audit=True, audit_rules=audit.RULES)
    jobs = scripts(JOBS) if wanted is None else wanted
    async with (
        real_server(tmp_path, options, crds=crds.load()) as server,
        Fleet(server, tmp_path / "replicas") as fleet,
        load(server, jobs) as work,
    ):
        await server.create(NAMESPACES.path(), {"metadata": {"name": "volcano-system"}})
        await fleet.start_agent(nodes)
        await _untaint(server, nodes)
        log = audit.AuditLog(server.kube.folder / "audit.log")
        yield Stage(server, fleet, work, log, election)


async def _untaint(server: RealServer, nodes: int) -> None:
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
