"""Three replicas of the controllers and the scheduler, of which the leaders die, stop or are ended.

In all of them many jobs reach their expected results, no pod is created a second time, and only
leaders write: `ChaosCluster.check` and `ChaosCluster.check_leaders`.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.chaos_cluster import COMPONENTS, chaos_cluster
from support.job_load import expected_jobs
from support.replicas import ElectionTiming, Replica

pytestmark = pytest.mark.timeout(900)  # for a loaded machine


LONG = ElectionTiming(lease=120, renew=80, retry=2)


@pytest.mark.parametrize(
    ("jobs", "kills"), [(40, (10,)), pytest.param(200, (10, 70, 130), marks=pytest.mark.soak)]
)
async def test_leaders_are_killed(tmp_path: Path, jobs: int, kills: Sequence[int]) -> None:
    """Each time when a number of jobs have ended."""
    async with chaos_cluster(tmp_path, workload=expected_jobs(jobs)) as s, s.running_replicas():
        for ended in kills:
            await s.job_load.wait_finished(ended)
            for replica in (await s.failed_over(Replica.kill)).values():
                assert await replica.wait_exit() == -9
        await s.check_jobs()
        s.check_leaders(min_transitions=len(kills))


@pytest.mark.soak
async def test_leaders_are_stopped_for_longer_than_the_lease_and_go_on(tmp_path: Path) -> None:
    """Their requests in flight take no effect any more, and they exit."""
    async with chaos_cluster(tmp_path) as s, s.running_replicas():
        for ended in (10, 90):
            await s.job_load.wait_finished(ended)
            for replica in (await s.failed_over(Replica.suspend)).values():
                replica.resume()
                assert await replica.wait_exit() == 1
                last_line = 'exiting immediately reason="lost lease volcano-system/'
                assert last_line in replica.log_text()
        await s.check_jobs()
        s.check_leaders(min_transitions=2)


@pytest.mark.soak
async def test_leaders_that_are_told_to_end_hand_over_at_once(tmp_path: Path) -> None:
    """No candidate waits for the Lease to expire, which would exceed the timeout of
    `failed_over`."""
    async with chaos_cluster(tmp_path, election=LONG) as s, s.running_replicas():
        for ended in (10, 90):
            await s.job_load.wait_finished(ended)
            for replica in (await s.failed_over(Replica.terminate)).values():
                assert await replica.wait_exit() == 0
                assert "lease released" in replica.log_text()
        await s.check_jobs()
        s.check_leaders(min_transitions=2)
        for component in COMPONENTS:
            # Independent of speed: without releasing the Lease it would take longer.
            assert max(s.handover_seconds(component)) < LONG.lease - LONG.renew
