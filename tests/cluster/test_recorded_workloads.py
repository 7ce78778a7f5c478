"""Kubernetes' own workloads are gangs as recorded, where there are controllers for them."""

import asyncio

import pytest
from support.api_servers import real_servers
from support.realkube import CONTROLLERS
from support.recordings import recorded
from support.replay_runner import Found, side_by_side

SCENARIOS = {each["name"]: each for each in recorded("workloads.jsonl")}

CONTROLLING = (*CONTROLLERS, "replicaset", "deployment", "statefulset", "job")
"""The controllers that the embedded cluster has not; other tests play their parts themselves."""

pytestmark = pytest.mark.timeout(900)  # all are played in the set-up of the first


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What differs, by scenario."""
    folder = tmp_path_factory.mktemp("own")
    with real_servers(folder / "kube", controllers=CONTROLLING) as servers:
        return asyncio.run(side_by_side(servers, folder, SCENARIOS.values()))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_lives_as_recorded(lives: Found, scenario: str) -> None:
    assert not lives[scenario], "\n".join(lives[scenario])
