"""Replicas that share shards: killed, stopped, ended and added while jobs run.

All jobs reach their expected results, no pod is created twice, and no replica writes for a shard
that it does not hold.
"""

import asyncio
import random
from pathlib import Path

import pytest
from support.chaos_cluster import REPLICAS, ChaosCluster, chaos_cluster
from support.job_load import eventually, expected_jobs
from support.kubectl import Kubectl, needs_kubectl
from support.manifests import MANIFESTS, NAMESPACE, Objects, dumped, kustomized
from support.rbac import (
    ComponentProcesses,
    forbidden_requests,
    granted_permissions,
    used_permissions,
)
from support.realkube import RealKubeOptions, RealServer, real_server, require_realkube
from support.replicas import FAST_ELECTION, ElectionTiming, Replica
from support.shard_audit import (
    current_holders,
    imbalance,
    leaderships,
    writes_for_other_shards,
)

from batholith.machinery.shard_leases import GROUP_LABEL
from batholith.model import crds
from batholith.model.names import LEASES

pytestmark = pytest.mark.timeout(3000)  # for a loaded machine

SHARDS = 8
BUSY = ElectionTiming(lease=12, renew=9, retry=1.5)
"""For minutes with few seconds of processor time per replica."""


def running(s: ChaosCluster) -> list[Replica]:
    return [each for each in s.replicas_started["controllers"] if each.is_running]


async def wait_holders(s: ChaosCluster) -> list[Replica]:
    """Wait for running replicas that hold shards; return them."""
    found: list[Replica] = []

    def has_holders() -> bool:
        users = current_holders(s.audit_log.requests(), SHARDS)
        found[:] = [each for each in running(s) if each.user in users]
        return bool(found)

    await eventually(has_holders, lambda: "a replica that holds shards", seconds=200)
    return found


async def wait_balanced(s: ChaosCluster) -> None:
    def is_balanced() -> bool:
        users = [replica.user for replica in running(s)]
        return len(users) == REPLICAS and imbalance(s.audit_log.requests(), SHARDS, users) <= 1

    await eventually(is_balanced, lambda: "fair shares of the shards", seconds=200)


async def suspend(replica: Replica, lease: float) -> None:
    """Stop it for longer than its Leases are valid; it exits when it is resumed."""
    replica.suspend()
    await asyncio.sleep(lease + 2)
    replica.resume()
    assert await replica.wait_exit() == 1
    assert "lost lease" in replica.log_text()


async def kill(replica: Replica, _: float) -> None:
    replica.kill()
    assert await replica.wait_exit() == -9


async def terminate(replica: Replica, _: float) -> None:
    replica.terminate()
    assert await replica.wait_exit() == 0


FAULTS = (kill, suspend, terminate)


@pytest.mark.parametrize(
    ("jobs", "steps", "election"),
    [
        pytest.param(40, 3, FAST_ELECTION, marks=pytest.mark.soak),
        pytest.param(2000, 40, BUSY, marks=pytest.mark.soak),
        pytest.param(2000, 0, BUSY, marks=pytest.mark.soak),
    ],
    ids=["40 jobs", "2000 jobs", "2000 jobs, no faults"],
)
async def test_replicas_with_shards_under_chaos(
    tmp_path: Path, jobs: int, steps: int, election: ElectionTiming
) -> None:
    rng = random.Random(jobs)
    load = expected_jobs(jobs)
    ended: list[Replica] = []
    async with (
        chaos_cluster(
            tmp_path,
            election=election,
            workload=load,
            controller_flags=[f"--shards={SHARDS}"],
        ) as s,
        s.running_replicas(),
    ):
        for step in range(steps):
            await s.job_load.wait_finished((step + 1) * jobs // (steps + 1) // 2)
            replica = rng.choice(await wait_holders(s))
            ended.append(replica)
            await FAULTS[step % len(FAULTS)](replica, election.lease)
        await s.check_jobs()
        await wait_balanced(s)
        requests = s.audit_log.requests()
        users = [replica.user for replica in s.replicas_started["controllers"]]
        strays = writes_for_other_shards(requests, SHARDS, users)
        assert strays == [], strays
        assert not steps or all(len(held) > 1 for held in leaderships(requests, SHARDS))
        lost = [r for r in s.replicas_started["controllers"] if not (r.is_running or r in ended)]
        assert lost == [], {replica.user: replica.log_text()[-1000:] for replica in lost}


async def test_replicas_with_shards_use_all_rights_of_their_component(tmp_path: Path) -> None:
    """And no others; `test_rbac` shows those of a single leader."""
    needs_kubectl()
    require_realkube()
    found = kustomized(MANIFESTS / "overlays" / "sharded-controllers")
    # Servers before 1.34 give no list as the head of a watch: then both rights are used.
    flags = ("--feature-gates=WatchList=false",)
    options = RealKubeOptions(controllers=(), audit=True, flags=flags)
    async with real_server(tmp_path, options, crds=crds.load()) as server:
        kubectl = Kubectl(server, tmp_path)
        await kubectl("apply", "-f", "-", stdin=dumped(_access(found).values()))
        components = ComponentProcesses(found, kubectl, tmp_path, url=server.url)
        try:
            for _ in range(2):
                await components.start("controllers", ports={":11251": 0, ":8081": 0})
            await _wait_held_by(server, replicas=2)
            assert await components.running[0].stop() == 0
            await _wait_held_by(server, replicas=1)
        finally:
            await components.stop()
        log = server.kube.audit()
    assert forbidden_requests(log) == []
    granted = granted_permissions(found, "controllers") - granted_permissions(
        kustomized(), "controllers"
    )
    used = used_permissions(log, "controllers")
    assert {right for right in granted if not any(map(right.covers, used))} == set()


def _access(found: Objects) -> Objects:
    """The objects that decide what the components may do; nothing runs their Deployments here."""
    kinds = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    return {key: each for key, each in found.items() if key[0] in (*kinds, "Role", "RoleBinding")}


async def _wait_held_by(server: RealServer, *, replicas: int) -> None:
    """Wait until all shards are held by *replicas* replicas."""
    path = f"{LEASES.path(NAMESPACE)}?labelSelector={GROUP_LABEL}=vc-controller-manager"
    async with asyncio.timeout(100):
        while True:
            holders = [
                lease["spec"].get("holderIdentity")
                for lease in (await server.get(path))["items"]
                if "-shard-" in lease["metadata"]["name"]
            ]
            if len(holders) == 12 and all(holders) and len(set(holders)) == replicas:
                return
            await asyncio.sleep(0.1)
