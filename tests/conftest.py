"""The servers that tests of behaviour run on, each test on both."""

from collections.abc import Iterator

import pytest
from support_servers import EmbeddedServers, RealServers, Servers, real_servers


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServers]:
    """Where a test that needs a real server gets it from."""
    with real_servers(tmp_path_factory.mktemp("real")) as started:
        yield started


@pytest.fixture(scope="session", params=["embedded", "real"])
def servers(request: pytest.FixtureRequest) -> Servers:
    """Where a test gets its API server from: it runs once on each."""
    if request.param == "embedded":
        return EmbeddedServers()
    started: Servers = request.getfixturevalue("real")
    return started
