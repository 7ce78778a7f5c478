"""A cluster for the tests of the commands for jobs."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.sdk import RestCluster, rest_cluster
from support.shell import Shell

from batholith.model.names import NAMESPACES


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RestCluster]:
    async with rest_cluster(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def shell(
    rest: RestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shell]:
    """Commands that are called in an empty directory."""
    work = tmp_path / "cwd"
    work.mkdir()
    monkeypatch.chdir(work)
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    await rest.cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
    token = tmp_path / "token"
    token.write_text(rest.token)
    token.chmod(0o600)
    found = Shell(rest, namespace, token)
    try:
        yield found
    finally:
        found.client.close()
