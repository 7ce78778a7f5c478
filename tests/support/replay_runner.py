"""Runs recorded scenarios, concurrently or one by one, and reports differences."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from support.allowed_differences import ALLOWED
from support.api_servers import ServerFactory
from support.realkube import RealServer
from support.recordings import RecordedCluster, Replay, recorded_cluster
from support.scenario_results import Json, differences, final_result

from batholith.admission import WEBHOOKS
from batholith.model.admission import Webhook
from batholith.scheduler import conf

MAX_CONCURRENT = 12
"""Scenarios that run at the same time."""

SETTLE_TIME = 60.0
"""Recorded seconds that a life may take, after its steps, to become the recorded one."""

DifferencesByScenario = dict[str, list[str]]
"""What differs, by scenario."""


async def replay_scenario(cluster: RecordedCluster, scenario: Json) -> list[str]:
    """Replay a scenario; what differs when it has had its time."""
    replay = Replay(cluster, scenario)
    try:
        await replay.run()
    except AssertionError as error:
        return [str(error), *unexpected_differences(replay)]
    return await differences_when_settled(replay)


async def differences_when_settled(replay: Replay) -> list[str]:
    """What differs once a life has become the recorded one, or its time is over."""
    cluster = replay.cluster
    clock = cluster.time.scenario_clock
    limit = clock.monotonic() + SETTLE_TIME
    count = cluster.change_count(replay.namespace)
    found = unexpected_differences(replay)
    while found and clock.monotonic() < limit:
        await asyncio.sleep(0.2)
        before, count = count, cluster.change_count(replay.namespace)
        if count != before:
            found = unexpected_differences(replay)
    return found


def unexpected_differences(replay: Replay) -> list[str]:
    """The differences that are not allowed."""
    scenario = replay.scenario
    embedded = not isinstance(replay.cluster.server, RealServer)
    if "life" in scenario:
        expected, got = scenario["life"], replay.result
    else:
        expected, got = scenario["ending"], final_result(replay.result)
    return [
        f"{path}: {text}"
        for path, text in differences(expected, got)
        if not any(each.covers(scenario["name"], path, embedded=embedded) for each in ALLOWED)
    ]


async def replay_concurrently(
    servers: ServerFactory,
    directory: Path,
    scenarios: Iterable[Json],
    *,
    least_run: float = 0.0,
    webhooks: Sequence[Webhook] = WEBHOOKS,
) -> DifferencesByScenario:
    """Replay scenarios at the same time on one cluster."""
    limit = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(scenario: Json) -> list[str]:
        async with limit:
            return await replay_scenario(it, scenario)

    cluster = recorded_cluster(servers, directory, least_run=least_run, webhooks=webhooks)
    async with cluster as it, asyncio.TaskGroup() as group:
        tasks = {each["name"]: group.create_task(one(each)) for each in scenarios}
    return {name: task.result() for name, task in tasks.items()}


async def replay_sequentially(
    servers: ServerFactory,
    directory: Path,
    scenarios: Iterable[Json],
    *,
    scheduler_conf: str = conf.DEFAULT,
) -> DifferencesByScenario:
    """Replay scenarios each with an empty cluster."""
    found: DifferencesByScenario = {}
    async with recorded_cluster(servers, directory, scheduler_conf=scheduler_conf) as it:
        for each in scenarios:
            found[each["name"]] = await replay_scenario(it, each)
            await Replay(it, each).delete_jobs()
    return found
