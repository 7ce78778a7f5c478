"""Jobs in a namespace whose quota is used up, where a server watches over quotas."""

from pathlib import Path
from typing import Any

from support.api_servers import RealServerFactory, add_namespace, merge_patch
from support.embedded_apiserver import Server, pod
from support.jobs import task
from support.polling import wait_until_true
from support.running_controller import running

from batholith.job_ctrl.controller import JobController
from batholith.model import crds
from batholith.model.names import JOBS, PODGROUPS, PODS

Json = dict[str, Any]
NAMESPACE = "few"
"""A separate namespace: a server applies a quota for a while after its deletion."""

QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"


async def allow(server: Server, pods: int, *, used: int) -> None:
    """Set the quota, and what its controller would write, which does not run here."""
    hard = {"hard": {"pods": str(pods)}}
    await merge_patch(server, f"{QUOTAS}/few", {"spec": hard})
    await merge_patch(
        server, f"{QUOTAS}/few/status", {"status": {**hard, "used": {"pods": str(used)}}}
    )


async def test_a_quota_is_told_in_the_status_and_waited_for(
    real: RealServerFactory, tmp_path: Path
) -> None:
    async with real.start(tmp_path, crds=crds.load()) as server, server.client() as client:

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

        async def takes_pods() -> bool:
            probe = {"apiVersion": "v1", "kind": "Pod", **pod("probe")}
            path = f"{PODS.path(NAMESPACE)}?dryRun=All"
            return (await server.request("POST", path, probe)).status == 201

        async def takes_none() -> bool:
            return not await takes_pods()

        await add_namespace(server, NAMESPACE)
        await server.create(QUOTAS, {"metadata": {"name": "few"}, "spec": {}})
        # The server applies a quota by its cache, which may be stale.
        await allow(server, 0, used=0)
        await wait_until_true(takes_none)
        await allow(server, 2, used=0)
        await wait_until_true(takes_pods)
        async with running(JobController(client)):
            spec = {"schedulerName": "volcano", "minAvailable": 1, "tasks": [task(replicas=3)]}
            body = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": "j"}}
            await server.create(JOBS.path(NAMESPACE), body | {"spec": spec})
            await wait_until_true(has_group)
            path = PODGROUPS.path(NAMESPACE, await group())
            await merge_patch(server, path, {"status": {"phase": "Inqueue"}})
            await wait_until_true(refused)
            await allow(server, 3, used=2)
            await wait_until_true(whole)
