"""Kubernetes' own workloads are gangs as recorded, where there are controllers for them."""

import asyncio

import pytest
from support.api_servers import real_servers
from support.realkube import CONTROLLERS
from support.recordings import load_recordings
from support.replay_runner import DifferencesByScenario, replay_concurrently

SCENARIOS = {each["name"]: each for each in load_recordings("workloads.jsonl")}

CONTROLLING = (*CONTROLLERS, "replicaset", "deployment", "statefulset", "job")
"""Controllers that the embedded cluster lacks; other tests simulate them."""

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # one set-up runs all of them


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> DifferencesByScenario:
    """What differs, by scenario."""
    directory = tmp_path_factory.mktemp("own")
    with real_servers(directory / "kube", controllers=CONTROLLING) as servers:
        return asyncio.run(replay_concurrently(servers, directory, SCENARIOS.values()))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_lives_as_recorded(results: DifferencesByScenario, scenario: str) -> None:
    assert not results[scenario], "\n".join(results[scenario])
