"""CronJobs live as recorded: from their time to the end of the Job, or denied."""

from datetime import timedelta
from pathlib import Path

from support.api_servers import ServerFactory
from support.recordings import RecordedCluster, Replay, load_recordings, recorded_cluster
from support.replay_runner import differences_when_settled
from support.scenario_results import Json

from batholith.model import times
from batholith.model.names import CRONJOBS

RECORDINGS: dict[str, Json] = {each["name"]: each for each in load_recordings("cronjobs.jsonl")}


async def replay_a_minute(cluster: RecordedCluster, recording: Json) -> list[str]:
    """Replay all but the waiting, then let the next minute begin for the CronJobs."""
    steps = [step for step in recording["steps"] if "sleep" not in step]
    replay = Replay(cluster, recording | {"steps": steps})
    await replay.run()
    stored = (await cluster.server.get(CRONJOBS.path(replay.namespace)))["items"]
    created = max(times.parse(each["metadata"]["creationTimestamp"]) for each in stored)
    if len(steps) < len(recording["steps"]):
        clock = cluster.time.schedule_clock
        minute = created.replace(second=0) + timedelta(minutes=1, seconds=0.2)
        await clock.advance((minute - clock.now()).total_seconds())
    return await differences_when_settled(replay)


async def test_they_live_as_recorded(servers: ServerFactory, tmp_path: Path) -> None:
    async with recorded_cluster(servers, tmp_path) as cluster:
        for name, recording in RECORDINGS.items():
            found = await replay_a_minute(cluster, recording)
            assert not found, "\n".join((name, *found))
