"""All components together reproduce the recorded scenarios of the reference."""

import asyncio
from collections import ChainMap
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.allowed_differences import ALLOWED, LEFT_OUT
from support.api_servers import ServerFactory
from support.recordings import load_recordings
from support.replay_runner import DifferencesByScenario, replay_concurrently, replay_sequentially
from support.scenario_results import Json

from batholith.scheduler import conf

pytestmark = pytest.mark.timeout(900)  # one set-up runs all of them

SCENARIOS: dict[str, Json] = {each["name"]: each for each in load_recordings("scenarios.jsonl")}
EXCLUSIVE_SCENARIOS = frozenset({
    "command-abort-pending", "depends-on-any", "gang-elastic-partly", "gang-too-big",
    "policy-pending-timeout", "policy-unknown", "unknown-no-policy",
})  # fmt: skip
"""Scenarios that need the nodes for themselves."""

EVICTING_SCENARIOS = frozenset({"preempt", "reclaim"})
"""Scenarios in which pods are evicted for others."""

EVICTING = conf.DEFAULT.replace("backfill", "backfill, reclaim, preempt")
"""The configuration of the recordings, as far as it is significant."""


def called(names: Iterable[str]) -> list[Json]:
    """The scenarios with these names."""
    return [SCENARIOS[name] for name in sorted(names)]


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> DifferencesByScenario:
    """What differs, by scenario; only those that are asked for are replayed."""
    asked = {
        str(item.callspec.params["scenario"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and "scenario" in item.fixturenames
    }
    directory = tmp_path_factory.mktemp("recorded")

    async def all_of_them() -> DifferencesByScenario:
        crowd = replay_concurrently(
            servers,
            directory / "crowd",
            called(asked - EXCLUSIVE_SCENARIOS - EVICTING_SCENARIOS),
        )
        evicting = replay_sequentially(
            servers,
            directory / "evicting",
            called(asked & EVICTING_SCENARIOS),
            scheduler_conf=EVICTING,
        )
        single = replay_sequentially(
            servers, directory / "single", called(asked & EXCLUSIVE_SCENARIOS)
        )
        if servers.concurrent:
            return dict(ChainMap(*await asyncio.gather(crowd, single, evicting)))
        return await crowd | await single | await evicting

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_lives_as_recorded(results: DifferencesByScenario, scenario: str) -> None:
    assert not results[scenario], "\n".join(results[scenario])


def test_each_recorded_scenario_is_replayed_or_left_out_for_a_reason() -> None:
    assert not SCENARIOS.keys() & LEFT_OUT.keys()
    others = [*load_recordings("cronjobs.jsonl"), *load_recordings("workloads.jsonl")]
    scenarios = [each for each in others if "--" not in each["name"]]  # the rest are manifests
    assert len(SCENARIOS) + len(scenarios) + len(LEFT_OUT) == 99


def test_users_are_told_of_each_difference() -> None:
    table = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()
    for each in ALLOWED:
        assert f"| {each.reason} |" in table
