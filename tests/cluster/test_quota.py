"""Jobs in a namespace whose quota is used up."""

from pathlib import Path
from typing import Any

from support.api_servers import ServerFactory, merge_patch
from support.jobs import task
from support.polling import wait_until_true
from support.quotas import NAMESPACE, QuotaServer
from support.running_controller import running

from batholith.job_ctrl.controller import JobController
from batholith.model import crds
from batholith.model.names import JOBS, PODGROUPS, PODS

Json = dict[str, Any]


async def test_a_quota_is_told_in_the_status_and_waited_for(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server, server.client() as client:

        async def state() -> Json:
            found: Json = (await server.get(JOBS.path(NAMESPACE, "j")))["status"]["state"]
            return found

        async def pods() -> int:
            return len((await server.get(PODS.path(NAMESPACE)))["items"])

        async def refused() -> bool:
            result = await state()
            reported = "exceeded quota: few" in result.get("message", "")
            return result.get("reason") == "FailedCreate" and reported and await pods() == 2

        async def whole() -> bool:
            return await pods() == 3 and "reason" not in await state()

        async def group() -> str:
            found = (await server.get(PODGROUPS.path(NAMESPACE)))["items"]
            return str(found[0]["metadata"]["name"]) if found else ""

        async def has_group() -> bool:
            return bool(await group())

        limited = QuotaServer(server)
        await limited.prepare()
        await limited.limit("few", {"pods": "2"})
        async with running(JobController(client)):
            spec = {"schedulerName": "volcano", "minAvailable": 1, "tasks": [task(replicas=3)]}
            body = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": "j"}}
            await server.create(JOBS.path(NAMESPACE), body | {"spec": spec})
            await wait_until_true(has_group)
            path = PODGROUPS.path(NAMESPACE, await group())
            await merge_patch(server, path, {"status": {"phase": "Inqueue"}})
            await wait_until_true(refused)
            await limited.limit("few", {"pods": "3"})
            await wait_until_true(whole)
