"""Fixtures of the agent: containers without one, and one server and one agent for all tests of a
module, each test in another namespace."""

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.agent_cluster import AgentCluster, agent_cluster
from support.api_servers import ServerFactory, add_namespace
from support.kubectl import Kubectl, needs_kubectl
from support.sandbox import SANDBOXES, Sandbox, detected_isolation

from batholith.local.agent import real_node
from batholith.local.agent.runtime.runs import IsolationLevel


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


@pytest.fixture(params=list(IsolationLevel))
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    """Containers at each level that this machine permits."""
    return Sandbox(tmp_path, request.param)


@pytest.fixture
def plain(tmp_path: Path) -> Sandbox:
    """Containers without a sandbox."""
    return Sandbox(tmp_path, IsolationLevel.PLAIN)


@pytest.fixture(params=SANDBOXES)
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    """Containers at each level with a sandbox that this machine permits."""
    return Sandbox(tmp_path, request.param)


@pytest.fixture(params=["websocket", "spdy"])
def kubectl(request: pytest.FixtureRequest, cluster: AgentCluster, tmp_path: Path) -> Kubectl:
    """kubectl with each of its protocols."""
    needs_kubectl()
    websockets = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": str(request.param == "websocket").lower()}
    return Kubectl(cluster.server, tmp_path, environment=websockets)
