"""Examples that users of the reference have are taken, refused, and run as it was seen to do."""

import asyncio

import pytest
from support.api_servers import Servers
from support.recordings import recorded
from support.replay_runner import Found, side_by_side

pytestmark = pytest.mark.timeout(900)  # all are played in the set-up of the first

RUN = 5.0
"""Seconds for which a program ran in the recordings that they knew nothing about."""

MANIFESTS = {each["name"]: each for each in recorded("manifests.jsonl")}


@pytest.fixture(scope="module")
def endings(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What differs, by manifest."""
    folder = tmp_path_factory.mktemp("manifests")
    return asyncio.run(side_by_side(servers, folder, MANIFESTS.values(), least_run=RUN))


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_it_ends_as_recorded(endings: Found, manifest: str) -> None:
    assert not endings[manifest], "\n".join(endings[manifest])
