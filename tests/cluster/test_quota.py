"""Jobs in a namespace whose quota is used up."""

from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, merge_patch
from support.embedded_apiserver import embedded_server, pod
from support.jobs import task
from support.polling import wait_for, wait_until_true
from support.quotas import NAMESPACE, QuotaServer
from support.running_controller import FakeRecorder, running
from support.workload_cluster import running_workloads

from batholith.batch_ctrl.controller import BatchJobController
from batholith.batch_ctrl.settings import ALL_JOBS, BatchJobSettings
from batholith.job_ctrl.controller import JobController
from batholith.model import crds
from batholith.model.names import BATCH_JOBS, JOBS, PODGROUPS, PODS, REPLICASETS

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


async def test_a_batch_job_waits_for_its_quota(tmp_path: Path) -> None:
    recorder = FakeRecorder()
    async with embedded_server(tmp_path) as server, server.client() as client:
        limited = QuotaServer(server)
        await limited.prepare()
        await limited.limit("few", {"pods": "1"})
        settings = BatchJobSettings(managed_by=ALL_JOBS, batch_delay=0.01)
        async with running(BatchJobController(client, settings=settings, recorder=recorder)):
            template = {"spec": {**pod("p")["spec"], "restartPolicy": "Never"}}
            body = {
                "metadata": {"name": "j"},
                "spec": {"parallelism": 2, "completions": 2, "template": template},
            }
            await server.create(BATCH_JOBS.path(NAMESPACE), body)

            def is_reported() -> bool:
                return any(
                    reason == "FailedCreate" and "exceeded quota: few" in message
                    for _, _, _, reason, message in recorder.events
                )

            await wait_for(is_reported)
            await limited.wait_used("few", pods="1")
            (first,) = (await server.get(limited.pods))["items"]
            done = {"status": {"phase": "Succeeded"}}
            await merge_patch(server, f"{limited.pods}/{first['metadata']['name']}/status", done)

            async def has_second() -> bool:
                return len((await server.get(limited.pods))["items"]) == 2

            await wait_until_true(has_second)


async def test_a_replica_set_waits_for_its_quota(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded_server(tmp_path) as server:
        limited = QuotaServer(server)
        await limited.prepare()
        await limited.limit("few", {"pods": "1"})
        async with running_workloads(server, only=["replicaset-controller"]):
            labels = {"app": "x"}
            template = {"metadata": {"labels": labels}, "spec": pod("p")["spec"]}
            spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
            path = REPLICASETS.path(NAMESPACE)
            await server.create(path, {"metadata": {"name": "r"}, "spec": spec})

            async def failure() -> str:
                conditions = (await server.get(f"{path}/r"))["status"].get("conditions") or ()
                return "".join(
                    each["message"] for each in conditions if each["type"] == "ReplicaFailure"
                )

            async def is_refused() -> bool:
                return "exceeded quota: few" in await failure()

            async def is_whole() -> bool:
                replicas = (await server.get(f"{path}/r"))["status"].get("replicas")
                return replicas == 2 and not await failure()

            await wait_until_true(is_refused)
            await limited.limit("few", {"pods": "2"})
            await wait_until_true(is_whole)
    # What the quota refuses is no defect of the controller: no traceback, nor counted as one.
    failed = [each for each in caplog.records if each.message == "reconcile failed, requeuing"]
    assert failed
    assert [each for each in failed if each.exc_info] == []
