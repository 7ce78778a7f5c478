"""The REST API on a cluster with one job, or one for all tests of a module."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.api_servers import ServerFactory
from support.job_pods import RestSession, objects_cluster
from support.rest import RestClient, rest_api


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestClient]:
    async with rest_api(tmp_path) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_rest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RestClient]:
    """As `rest`, but one for all tests of a module."""
    async with rest_api(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RestSession]:
    """One server and REST API for all tests of a module, with the first queues."""
    async with objects_cluster(servers, tmp_path_factory.mktemp("world")) as created:
        for name in ("root", "default"):
            status, body = await created.call("POST", "/v1/queues", {"name": name})
            assert status == 201, body
            await created.set_queue_state(name, "Open")
        yield created
