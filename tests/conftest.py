"""The servers that tests of behaviour run on, each test on both."""

from collections.abc import Iterator

import pytest
from support_servers import EmbeddedServers, Servers, real_servers


@pytest.fixture(scope="session", params=["embedded", "real"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """Where a test gets its API server from."""
    if request.param == "embedded":
        yield EmbeddedServers()
    else:
        with real_servers(tmp_path_factory.mktemp("real")) as started:
            yield started
