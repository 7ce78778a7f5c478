"""All parts together live through what the recordings saw the reference do."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from support_differences import ALLOWED, LEFT_OUT
from support_lives import Json, differences
from support_recorded import Replay, Theatre, recorded, theatre

SCENARIOS: dict[str, Json] = {each["name"]: each for each in recorded("scenarios.jsonl")}
ALONE = frozenset({
    "command-abort-pending", "depends-on-any", "gang-elastic-partly", "gang-too-big",
    "policy-pending-timeout", "policy-unknown", "unknown-no-policy",
})  # fmt: skip
"""Scenarios that need the nodes for themselves."""

AT_ONCE = 12
"""Of the others so many run at the same time."""

SETTLING = 20.0
"""Seconds that a life may take, after its steps, to become the recorded one."""

Found = dict[str, list[str]]


async def live(it: Theatre, name: str) -> list[str]:
    """Replay a scenario; what differs when it has had its time."""
    replay = Replay(it, SCENARIOS[name])
    stuck: list[str] = []
    try:
        await replay.run()
    except AssertionError as error:
        stuck = [str(error)]
    found = unforeseen(replay)
    try:
        async with asyncio.timeout(0 if stuck else SETTLING):
            while found:
                await asyncio.sleep(0.2)
                found = unforeseen(replay)
    except TimeoutError:
        pass  # then these are the differences
    return stuck + found


def unforeseen(replay: Replay) -> list[str]:
    """The differences that nobody has allowed."""
    scenario = replay.scenario
    return [
        f"{place}: {text}"
        for place, text in differences(scenario["life"], replay.life)
        if not any(each.covers(scenario["name"], place) for each in ALLOWED)
    ]


async def side_by_side(folder: Path, names: Iterable[str]) -> Found:
    """Replay scenarios at the same time on one cluster."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> list[str]:
        async with room:
            return await live(it, name)

    async with theatre(folder) as it, asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(one(name)) for name in names}
    return {name: task.result() for name, task in tasks.items()}


async def one_by_one(folder: Path, names: Iterable[str]) -> Found:
    """Replay scenarios each with an empty cluster."""
    found: Found = {}
    async with theatre(folder) as it:
        for name in names:
            found[name] = await live(it, name)
            await Replay(it, SCENARIOS[name]).clear()
    return found


@pytest.fixture(scope="module")
def lives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What differs, by scenario; only those that are asked for are replayed."""
    asked = {
        str(item.callspec.params["scenario"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and "scenario" in item.fixturenames
    }

    async def both() -> Found:
        folder = tmp_path_factory.mktemp("recorded")
        crowd, single = await asyncio.gather(
            side_by_side(folder / "crowd", sorted(asked - ALONE)),
            one_by_one(folder / "single", sorted(asked & ALONE)),
        )
        return crowd | single

    return asyncio.run(both())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_lives_as_recorded(lives: Found, scenario: str) -> None:
    assert not lives[scenario], "\n".join(lives[scenario])


def test_each_recorded_scenario_is_replayed_or_left_out_for_a_reason() -> None:
    assert not SCENARIOS.keys() & LEFT_OUT.keys()
    assert len(SCENARIOS) + len(LEFT_OUT) == 99


def test_users_are_told_of_each_difference() -> None:
    table = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()
    for each in ALLOWED:
        assert f"| {each.what} |" in table
