"""Kubernetes' own workloads are gangs as recorded, where there are controllers for them."""

import asyncio

import pytest
from support_recorded import recorded
from support_replays import Found, side_by_side
from support_servers import Servers

SCENARIOS = {each["name"]: each for each in recorded("workloads.jsonl")}

pytestmark = [
    pytest.mark.timeout(400),  # all are played in the set-up of the first
    # The embedded cluster has no controllers for workloads other than ours.
    pytest.mark.parametrize("servers", ["real"], indirect=True),
]


@pytest.fixture(scope="module")
def lives(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What differs, by scenario."""
    return asyncio.run(side_by_side(servers, tmp_path_factory.mktemp("own"), SCENARIOS.values()))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_lives_as_recorded(lives: Found, scenario: str) -> None:
    assert not lives[scenario], "\n".join(lives[scenario])
