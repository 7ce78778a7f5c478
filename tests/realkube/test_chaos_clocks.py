"""Wall clocks that jump, of the leader and of those who wait."""

import os
import sys
from pathlib import Path

import pytest
from support import skewed_clock
from support.chaos_cluster import COMPONENTS, chaos_cluster
from support.replicas import ElectionTiming, Replica

pytestmark = pytest.mark.timeout(900)  # for a loaded machine

STEADY = ElectionTiming(lease=45, renew=40, retry=2)
"""Not lost because the machine is busy: here it may only be lost because of a clock."""

HOUR, YEAR = 3600, 365 * 86400
JUMPS = ((HOUR, -HOUR, 0), (-YEAR, YEAR, HOUR), (0, -HOUR, YEAR))
"""Clock skew of a component's replicas, in seconds."""


@pytest.mark.soak
async def test_who_leads_does_not_depend_on_wall_clocks(tmp_path: Path) -> None:
    async with chaos_cluster(tmp_path, election=STEADY) as s:
        clocks = {user: tmp_path / f"{user}.clock" for user in s.users}
        for user, clock in clocks.items():
            clock.write_text("0")
            s.program[user] = (sys.executable, skewed_clock.__file__, str(clock))
        async with s.running_replicas():
            for ended, jumps in zip((10, 40, 70), JUMPS, strict=True):
                await s.job_load.wait_finished(ended)
                for number, clock in enumerate(clocks.values()):
                    wrong = clock.with_suffix(".next")
                    wrong.write_text(str(jumps[number % len(jumps)]))
                    os.replace(wrong, clock)
            await s.job_load.wait_finished(100)
            assert [len(s.leaderships(component)) for component in COMPONENTS] == [1, 1]
            await s.failed_over(Replica.kill)
            await s.check_jobs()
        s.check_leaders(min_transitions=1)
