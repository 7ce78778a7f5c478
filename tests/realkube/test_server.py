"""The real API server that tests start: it is what it should be, and can be used again."""

import asyncio
from pathlib import Path

import pytest
from support.embedded_apiserver import MAPS, config_map
from support.polling import wait_until_true
from support.realkube import (
    CONTROLLERS,
    MASTERS,
    RealKube,
    RealKubeOptions,
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


async def test_it_is_the_version_that_the_module_names(tmp_path: Path) -> None:
    async with real_server(tmp_path) as server:
        assert (await server.get("/version"))["gitVersion"] == "v1.36.3"


async def test_several_run_at_a_time_each_with_a_store_of_its_own(tmp_path: Path) -> None:
    async with real_server(tmp_path / "a") as one, real_server(tmp_path / "b") as other:
        await one.create(MAPS, config_map("here"))
        assert (await other.request("GET", f"{MAPS}/here")).status == 404


async def test_users_have_the_rights_of_their_groups_and_stand_in_the_audit_log(
    tmp_path: Path,
) -> None:
    options = RealKubeOptions(users={"admin": MASTERS, "unprivileged": ()}, audit=True)
    async with real_server(tmp_path, options) as server:
        await server.create(MAPS, config_map("here"))
        refused = await server.request("GET", MAPS, token=server.tokens["unprivileged"])
        assert refused.status == 403
        result = [
            (line["user"]["username"], line["verb"], line["responseStatus"]["code"])
            for line in server.kube.audit()
            if line.get("objectRef", {}).get("resource") == "configmaps"
        ]
        assert ("admin", "create", 201) in result
        assert ("unprivileged", "list", 403) in result


async def test_it_comes_back_on_its_port_with_its_store(tmp_path: Path) -> None:
    async with real_server(tmp_path) as server, server.client() as client:
        await server.create(MAPS, config_map("here"))
        server.kube.kill_api()
        with pytest.raises(ConnectionLostError):
            await client.get(QUEUES, "q", view=dict)
        await asyncio.to_thread(server.kube.start_api)
        assert (await server.get(f"{MAPS}/here"))["data"] == {"k": "v"}


async def test_a_program_can_be_hung(tmp_path: Path) -> None:
    async with real_server(tmp_path) as server:
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
