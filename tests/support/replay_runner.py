"""Runs recorded scenarios, several at a time or one by one, and tells what differs."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from support.allowed_differences import ALLOWED
from support.api_servers import Servers
from support.recordings import Replay, Theatre, theatre
from support.scenario_results import Json, differences, ending

from batholith.admission import WEBHOOKS
from batholith.model.admission import Webhook

AT_ONCE = 12
"""Scenarios that run at the same time."""

SETTLING = 60.0
"""Recorded seconds that a life may take, after its steps, to become the recorded one."""

Found = dict[str, list[str]]
"""What differs, by scenario."""


async def live(it: Theatre, scenario: Json) -> list[str]:
    """Replay a scenario; what differs when it has had its time."""
    replay = Replay(it, scenario)
    stuck: list[str] = []
    try:
        await replay.run()
    except AssertionError as error:
        stuck = [str(error)]
    found = unforeseen(replay)
    clock = it.time.stage
    limit = clock.monotonic() + (0 if stuck else SETTLING)
    while found and clock.monotonic() < limit:
        await asyncio.sleep(0.2)
        found = unforeseen(replay)
    return stuck + found


def unforeseen(replay: Replay) -> list[str]:
    """The differences that nobody has allowed."""
    scenario = replay.scenario
    if "life" in scenario:
        expected, got = scenario["life"], replay.life
    else:
        expected, got = scenario["ending"], ending(replay.life)
    return [
        f"{place}: {text}"
        for place, text in differences(expected, got)
        if not any(each.covers(scenario["name"], place) for each in ALLOWED)
    ]


async def side_by_side(
    servers: Servers,
    folder: Path,
    scenarios: Iterable[Json],
    *,
    least_run: float = 0.0,
    webhooks: Sequence[Webhook] = WEBHOOKS,
) -> Found:
    """Replay scenarios at the same time on one cluster."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(scenario: Json) -> list[str]:
        async with room:
            return await live(it, scenario)

    cluster = theatre(servers, folder, least_run=least_run, webhooks=webhooks)
    async with cluster as it, asyncio.TaskGroup() as group:
        tasks = {each["name"]: group.create_task(one(each)) for each in scenarios}
    return {name: task.result() for name, task in tasks.items()}


async def one_by_one(servers: Servers, folder: Path, scenarios: Iterable[Json]) -> Found:
    """Replay scenarios each with an empty cluster."""
    found: Found = {}
    async with theatre(servers, folder) as it:
        for each in scenarios:
            found[each["name"]] = await live(it, each)
            await Replay(it, each).clear()
    return found
