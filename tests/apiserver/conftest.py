"""API servers for one test each, and an unmodified kubectl."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import EmbeddedServer, Server, definition, embedded_server
from support.kubectl import Kubectl, needs_kubectl


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl for a new server, which has the custom kind Foo."""
    needs_kubectl()
    home = tmp_path / "home"
    home.mkdir()
    async with embedded_server(tmp_path / "data", crds=[definition()]) as server:
        yield Kubectl(server, home)


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    """An API server of each kind; a module overrides this fixture for another one."""
    async with servers.start(tmp_path) as started:
        yield started


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """An embedded API server."""
    async with embedded_server(tmp_path) as started:
        yield started
