"""Three replicas of the controllers and the scheduler, of which the leaders die, stop or are ended.

Whatever happens: 200 jobs come to their right ends, no pod is made twice, and nobody writes who
does not lead. `Stage.check` and `Stage.check_leaders` say so.
"""

from pathlib import Path

import pytest
from support.chaos_cluster import PARTS, stage
from support.replicas import Election, Replica

pytestmark = pytest.mark.timeout(900)  # for a machine that has much else to do


LONG = Election(lease=120, renew=80, retry=2)


async def test_leaders_are_killed_again_and_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, s.replicas():
        for ended in (10, 70, 130):
            await s.work.until_ended(ended)
            for replica in (await s.fell(Replica.kill)).values():
                assert await replica.end() == -9
        await s.check()
        s.check_leaders(least=3)


async def test_leaders_are_stopped_for_longer_than_the_lease_and_go_on(tmp_path: Path) -> None:
    """What they had in hand takes no effect any more, and they end."""
    async with stage(tmp_path) as s, s.replicas():
        for ended in (10, 90):
            await s.work.until_ended(ended)
            for replica in (await s.fell(Replica.pause)).values():
                replica.go_on()
                assert await replica.end() == 1
                assert 'ended at once why="lost the Lease volcano-system/' in replica.said()
        await s.check()
        s.check_leaders(least=2)


async def test_leaders_that_are_told_to_end_hand_over_at_once(tmp_path: Path) -> None:
    """Nobody waits for the Lease to run out, which would take longer than `fell` is patient."""
    async with stage(tmp_path, election=LONG) as s, s.replicas():
        for ended in (10, 90):
            await s.work.until_ended(ended)
            for replica in (await s.fell(Replica.terminate)).values():
                assert await replica.end() == 0
                assert "lease released" in replica.said()
        await s.check()
        s.check_leaders(least=2)
        for part in PARTS:
            # No matter of speed: by a Lease that was not given back it would be longer than this.
            assert max(s.handovers(part)) < LONG.lease - LONG.renew
