"""Example manifests of the reference are accepted, denied, and run as recorded."""

import asyncio

import pytest
from support.api_servers import ServerFactory
from support.recordings import load_recordings
from support.replay_runner import DifferencesByScenario, replay_concurrently

pytestmark = pytest.mark.timeout(900)  # one set-up runs all of them

RUN = 5.0
"""Seconds for which a program ran in the recordings that they knew nothing about."""

MANIFESTS = {each["name"]: each for each in load_recordings("manifests.jsonl")}


@pytest.fixture(scope="module")
def results(
    servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> DifferencesByScenario:
    """What differs, by manifest."""
    directory = tmp_path_factory.mktemp("manifests")
    return asyncio.run(replay_concurrently(servers, directory, MANIFESTS.values(), least_run=RUN))


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_it_ends_as_recorded(results: DifferencesByScenario, manifest: str) -> None:
    assert not results[manifest], "\n".join(results[manifest])
