"""The real API server that tests start: it is what it should be, and can be used again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.embedded_apiserver import MAPS, config_map
from support.polling import wait_until_true
from support.realkube import (
    CONTROLLERS,
    MASTERS,
    RealKube,
    RealKubeOptions,
    RealServer,
    real_server,
    server_view,
)

from batholith.kube.errors import ConnectionLostError
from batholith.model import crds
from batholith.model.names import NAMESPACES, QUEUES

QUEUE = {
    "apiVersion": QUEUES.api_version,
    "kind": "Queue",
    "metadata": {"name": "q"},
    "spec": {"weight": 1},
}


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKube]:
    """A server with two users and an audit log, for several tests."""
    options = RealKubeOptions(users={"admin": MASTERS, "unprivileged": ()}, audit=True)
    with RealKube(tmp_path_factory.mktemp("kube"), options) as started:
        yield started


@pytest.fixture
async def server(kube: RealKube) -> AsyncIterator[RealServer]:
    async with server_view(kube) as view:
        yield view


async def test_it_is_the_version_that_the_module_names(server: RealServer) -> None:
    assert (await server.get("/version"))["gitVersion"] == "v1.36.3"


async def test_several_run_at_a_time_each_with_a_store_of_its_own(
    server: RealServer, tmp_path: Path
) -> None:
    async with real_server(tmp_path) as other:
        await server.create(MAPS, config_map("here-alone"))
        assert (await other.request("GET", f"{MAPS}/here-alone")).status == 404


async def test_users_have_the_rights_of_their_groups_and_stand_in_the_audit_log(
    server: RealServer,
) -> None:
    await server.create(MAPS, config_map("audited"))
    refused = await server.request("GET", MAPS, token=server.tokens["unprivileged"])
    assert refused.status == 403
    result = [
        (line["user"]["username"], line["verb"], line["responseStatus"]["code"])
        for line in server.kube.audit()
        if line.get("objectRef", {}).get("resource") == "configmaps"
    ]
    assert ("admin", "create", 201) in result
    assert ("unprivileged", "list", 403) in result


async def test_it_comes_back_on_its_port_with_its_store(server: RealServer) -> None:
    async with server.client() as client:
        await server.create(MAPS, config_map("kept"))
        server.kube.kill_api()
        with pytest.raises(ConnectionLostError):
            await client.get(QUEUES, "q", view=dict)
        server.kube.start_api()  # not in a thread of this test's loop, with which it would end
        assert (await server.get(f"{MAPS}/kept"))["data"] == {"k": "v"}


async def test_a_program_can_be_hung(server: RealServer) -> None:
    server.kube.suspend("kube-apiserver")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await server.get("/version")
    server.kube.resume("kube-apiserver")
    assert await server.get("/version")


async def test_one_server_serves_many_tests(tmp_path: Path) -> None:
    with RealKube(tmp_path, RealKubeOptions(controllers=CONTROLLERS)) as kube:
        async with server_view(kube) as first:
            await first.install_crds(*crds.load())
            kube.snapshot()
            await first.create(MAPS, config_map("left"))
            await first.create(NAMESPACES.path(), {"metadata": {"name": "mine"}})
            await first.create(QUEUES.path(), QUEUE)
            assert (await first.request("DELETE", f"{MAPS}/kube-root-ca.crt")).status == 200
            kube.restore()

            async def is_deleted() -> bool:
                return (await first.request("GET", f"{MAPS}/left")).status == 404

            await wait_until_true(is_deleted)
        async with server_view(kube) as second:
            assert (await second.get(QUEUES.path()))["items"] == []
            names = [
                one["metadata"]["name"] for one in (await second.get(NAMESPACES.path()))["items"]
            ]
            assert "mine" not in names
            await second.create(QUEUES.path(), QUEUE)
