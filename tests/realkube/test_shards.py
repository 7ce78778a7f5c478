"""Replicas that share shards: killed, stopped, ended and added while jobs run.

All jobs reach their expected results, no pod is created twice, and no replica writes for a shard
that it does not hold.
"""

import asyncio
import random
from pathlib import Path

import pytest
from support.chaos_cluster import ChaosCluster, chaos_cluster
from support.job_load import eventually, expected_jobs
from support.replicas import Replica
from support.shard_audit import imbalance, leaderships, writes_for_other_shards

pytestmark = pytest.mark.timeout(3000)  # for a loaded machine

SHARDS = 8
SUSPENDED = 10.0
"""Seconds; longer than a Lease."""


def running(s: ChaosCluster) -> list[Replica]:
    return [each for each in s.replicas_started["controllers"] if each.is_running]


async def wait_balanced(s: ChaosCluster) -> None:
    def is_balanced() -> bool:
        users = [replica.user for replica in running(s)]
        return imbalance(s.audit_log.requests(), SHARDS, users) <= 1

    await eventually(is_balanced, lambda: "fair parts of the shards", seconds=200)


async def suspend(replica: Replica) -> None:
    """Stop it for longer than its Leases are valid; it exits when it goes on."""
    replica.suspend()
    await asyncio.sleep(SUSPENDED)
    replica.resume()
    assert await replica.wait_exit() == 1
    assert "lost lease" in replica.log_text()


async def kill(replica: Replica) -> None:
    replica.kill()
    assert await replica.wait_exit() == -9


async def terminate(replica: Replica) -> None:
    replica.terminate()
    assert await replica.wait_exit() == 0


FAULTS = (kill, suspend, terminate)


@pytest.mark.parametrize(
    ("jobs", "steps"), [(40, 3), pytest.param(2000, 40, marks=pytest.mark.soak)]
)
async def test_replicas_with_shards_under_chaos(tmp_path: Path, jobs: int, steps: int) -> None:
    rng = random.Random(jobs)
    load = expected_jobs(jobs)
    async with (
        chaos_cluster(tmp_path, workload=load, controller_flags=[f"--shards={SHARDS}"]) as s,
        s.running_replicas(),
    ):
        for step in range(steps):
            await s.job_load.wait_finished((step + 1) * jobs // (steps + 1) // 2)
            await FAULTS[step % len(FAULTS)](rng.choice(running(s)))
        await s.check_jobs()
        await wait_balanced(s)
        requests = s.audit_log.requests()
        users = [replica.user for replica in s.replicas_started["controllers"]]
        strays = writes_for_other_shards(requests, SHARDS, users)
        assert strays == [], strays
        assert all(len(held) > 1 for held in leaderships(requests, SHARDS))
