"""One server and one agent for all tests of a module, each test in another namespace."""

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from support.agent_cluster import AgentCluster, agent_cluster
from support.api_servers import ServerFactory, add_namespace
from support.sandbox import detected_isolation

from batholith.local.agent import real_node


def pytest_itemcollected(item: pytest.Item) -> None:
    """Each value of each parameter is tested by default, e.g. each user and both API servers.

    A module whose parameters depend on each other has the marker itself.
    """
    if item.get_closest_marker("combinations") is None:
        item.add_marker(pytest.mark.combinations(1))


@pytest.fixture(scope="session", autouse=True)
def _isolation_is_detected_once() -> Iterator[None]:
    """Let agents in the process of the tests use what the first one has detected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_node, "detect_isolation", detected_isolation)
        yield


@pytest.fixture(scope="module")
def agent_options() -> dict[str, Any]:
    """Settings of the agent; a module overrides this fixture to change them."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    servers: ServerFactory,
    tmp_path_factory: pytest.TempPathFactory,
    agent_options: dict[str, Any],
) -> AsyncIterator[AgentCluster]:
    """One server and one agent for all tests of a module."""
    directory = tmp_path_factory.mktemp("world")
    async with agent_cluster(servers, directory, **agent_options) as created, created.agent():
        yield created


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: AgentCluster) -> AgentCluster:
    """The shared cluster, in a namespace for this test."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await add_namespace(shared.server, name)
    return replace(shared, namespace=name)
