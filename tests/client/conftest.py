"""A cluster with its REST API for each module that asks for one, and both clients of it."""

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.sdk import FLAVOURS, RestCluster, Sdk, rest_cluster

from batholith.model.names import NAMESPACES


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RestCluster]:
    async with rest_cluster(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(rest: RestCluster) -> str:
    name = f"test-{uuid.uuid4().hex[:8]}"
    await rest.cluster.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest_asyncio.fixture(loop_scope="module", params=FLAVOURS)
async def sdk(
    rest: RestCluster, namespace: str, request: pytest.FixtureRequest
) -> AsyncIterator[Sdk]:
    async with rest.sdk(request.param, namespace=namespace) as found:
        yield found
