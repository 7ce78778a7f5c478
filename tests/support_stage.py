"""A real API server with replicas of the parts under load: where chaos is tried.

Every process has a user of its own, so that the audit log tells who did what. `Stage.check` says
what must be true in the end whatever happened in between.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import support_audit as audit
from support_load import (
    Load,
    Script,
    eventually,
    living_pods,
    load,
    scripts,
    until_queue_is_there,
)
from support_realkube import MASTERS, Options, RealServer, real_server
from support_replicas import QUICK, Election, Fleet, Replica

from batholith.model import crds
from batholith.model.names import NODES

PARTS = ("controllers", "scheduler")
LEASES: Mapping[str, str] = MappingProxyType(
    {
        "controllers": "volcano-system/vc-controller-manager",
        "scheduler": "volcano-system/vc-scheduler",
    }
)
JOBS = 200
REPLICAS = 3
LIVES = 8
"""Replicas of a part that there can have been in a test, each with a user of its own."""


@dataclass(slots=True)
class Stage:
    """What a test of chaos works with."""

    server: RealServer
    fleet: Fleet
    work: Load
    log: audit.AuditLog
    election: Election | None
    """None: one replica a part, without election."""
    started: dict[str, list[Replica]] = field(default_factory=lambda: {p: [] for p in PARTS})
    """By part, all replicas that there have been."""

    async def start(self, part: str, **more: Any) -> Replica:
        """Start one more replica of a part."""
        user = f"{part}-{len(self.started[part])}"
        flags = self.election.flags if self.election else []
        replica = await self.fleet.start(part, user, *flags, **more)
        self.started[part].append(replica)
        return replica

    async def start_all(self, urls: Mapping[str, str] | None = None) -> None:
        """Start the replicas of all parts, each at its own of *urls*, or at the server."""
        number = REPLICAS if self.election else 1
        for part in PARTS:
            for _ in range(number):
                user = f"{part}-{len(self.started[part])}"
                await self.start(part, url=(urls or {}).get(user, ""))
        await until_queue_is_there(self.server)
        for part in PARTS:
            if self.election:
                await self.next_leader(part, than=None)

    def leader(self, part: str) -> Replica | None:
        """The replica that holds the part's Lease, if one does; it may be dead by now."""
        user = self.log.leader(LEASES[part])
        return self.fleet.replicas.get(user)

    async def next_leader(self, part: str, *, than: Replica | None) -> Replica:
        """Wait until another replica *than* this leads, and say which."""

        def another() -> bool:
            return self.leader(part) not in (None, than)

        await eventually(another, lambda: f"another leader of {part}", seconds=40)
        found = self.leader(part)
        assert found is not None
        return found

    def reigns(self, part: str) -> list[audit.Reign]:
        """Who held the part's Lease so far."""
        return audit.reigns(self.log.requests(), LEASES[part])

    def strays(self, part: str) -> list[audit.Stray]:
        """Writes of the part's replicas beside their time."""
        users = [replica.user for replica in self.started[part]]
        return audit.strays(self.log.requests(), LEASES[part], users)

    async def check(self) -> None:
        """Wait until all jobs have ended; they must have ended right, nothing twice or left."""
        await self.work.until_ended(seconds=90)
        await eventually(
            lambda: not self.work.wrong(), lambda: f"the right ends; {self.work.wrong()}", seconds=9
        )
        made = audit.pods_made(self.log.requests())
        assert {pod: times for pod, times in made.items() if times > 1} == {}
        twice = {pod: uids for pod, uids in self.work.uids.items() if len(uids) > 1}
        assert twice == {}
        wanted, were = self.work.pods(), set(self.work.uids)
        assert (wanted - were, were - wanted, set(made) - wanted) == (set(), set(), set())
        await self._nothing_runs_on()

    def check_leaders(self, transitions: int) -> None:
        """Nobody wrote beside his time, and each Lease changed hands so often."""
        for part in PARTS:
            assert self.strays(part) == []
            held = self.reigns(part)
            assert [reign.transitions for reign in held] == list(range(transitions + 1)), part
            assert len({reign.identity for reign in held}) == transitions + 1

    async def _nothing_runs_on(self) -> None:
        async with asyncio.timeout(20):
            while left := await living_pods(self.server):  # noqa: ASYNC110 - nothing to wait on
                await asyncio.sleep(0.1)
        assert left == []


@asynccontextmanager
async def stage(
    tmp_path: Path,
    *,
    election: Election | None = QUICK,
    wanted: Sequence[Script] | None = None,
    nodes: int = 2,
) -> AsyncIterator[Stage]:
    """A server with CRDs and a simulated kubelet; nothing else is started yet."""
    users = ["admin", "agent", *(f"{part}-{n}" for part in PARTS for n in range(LIVES))]
    options = Options(users=dict.fromkeys(users, MASTERS), audit=True, audit_rules=audit.RULES)
    jobs = scripts(JOBS) if wanted is None else wanted
    async with (
        real_server(tmp_path, options, crds=crds.load()) as server,
        Fleet(server, tmp_path / "replicas") as fleet,
        load(server, jobs) as work,
    ):
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
        async with asyncio.timeout(20):
            while True:  # until the kubelet has registered it
                answer = await server.request("PATCH", path, patch, content_type=kind)
                if answer.status == 200:
                    break
                await asyncio.sleep(0.1)
