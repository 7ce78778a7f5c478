"""Deletion of Jobs and CronJobs whose pods carry the finalizer of the Job controller.

No controller runs here, so that the finalizer stays until the test removes it.
"""

import asyncio
from pathlib import Path
from typing import Any

from support.api_servers import add_namespace, merge_patch
from support.batch_writes import POD, Write, cron, job
from support.embedded_apiserver import (
    PODS,
    Server,
    embedded_server,
    wait_deleted,
    wait_owners_observed,
)
from support.polling import wait_until_true

from batholith.model.names import BATCH_CRONJOBS, BATCH_JOBS, NAMESPACES
from batholith.model.names import PODS as POD_KIND

Json = dict[str, Any]

JOBS, CRONS = BATCH_JOBS.path("default"), BATCH_CRONJOBS.path("default")
TRACKING = "batch.kubernetes.io/job-tracking"
KEEPS_PODS = (
    "child pods are preserved by default when jobs are deleted; set "
    "propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this "
    "warning"
)


def owner_of(resource: Any, obj: Json) -> Json:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


async def create_job(server: Server, name: str = "work", *, owner: Json | None = None) -> Json:
    """A Job, and two pods as its controller creates them."""
    metadata: Json = {"ownerReferences": [owner]} if owner else {}
    created = await server.create(JOBS, Write(spec=job(), metadata=metadata).body(name))
    for index in range(2):
        metadata = {
            "name": f"{name}-{index}",
            "finalizers": [TRACKING],
            "ownerReferences": [owner_of(BATCH_JOBS, created)],
        }
        await server.create(PODS, {"metadata": metadata, "spec": POD})
    return created


async def pods_of(server: Server, name: str = "work") -> list[Json]:
    items = (await server.get(PODS))["items"]
    return [each["metadata"] for each in items if each["metadata"]["name"].startswith(f"{name}-")]


async def wait_pods_deleting(server: Server) -> None:
    async def are_deleting() -> bool:
        return all("deletionTimestamp" in each for each in await pods_of(server))

    await wait_until_true(are_deleting)


async def release(server: Server, name: str = "work") -> None:
    """Remove the finalizer from the pods, as the Job controller does with those of a lost Job."""
    for index in range(2):
        await merge_patch(server, f"{PODS}/{name}-{index}", {"metadata": {"finalizers": None}})


async def test_without_a_policy_the_pods_stay(server: Server) -> None:
    await create_job(server)
    await wait_owners_observed(server, PODS, {"spec": POD})
    response = await server.request("DELETE", f"{JOBS}/work")
    assert (response.status, response.warnings) == (200, [KEEPS_PODS])
    assert response.body["metadata"]["finalizers"] == ["orphan"]
    await wait_deleted(server, JOBS, "work")
    pods = await pods_of(server)
    assert [each["finalizers"] for each in pods] == [[TRACKING], [TRACKING]]
    assert not any("ownerReferences" in each or "deletionTimestamp" in each for each in pods)


async def test_with_background_the_pods_are_deleted_after_the_job(server: Server) -> None:
    await create_job(server)
    query = "propagationPolicy=Background"
    response = await server.request("DELETE", f"{JOBS}/work?{query}")
    assert (response.status, response.body["status"], response.warnings) == (200, "Success", [])
    assert (await server.request("GET", f"{JOBS}/work")).status == 404
    await wait_pods_deleting(server)
    assert len(await pods_of(server)) == 2, "the finalizer keeps them"
    await release(server)
    assert await pods_of(server) == []


async def test_with_foreground_the_job_stays_as_long_as_its_pods(server: Server) -> None:
    await create_job(server)
    await wait_owners_observed(server, PODS, {"spec": POD})
    response = await server.request("DELETE", f"{JOBS}/work?propagationPolicy=Foreground")
    assert response.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    await wait_pods_deleting(server)
    assert "deletionTimestamp" in (await server.get(f"{JOBS}/work"))["metadata"]
    await release(server)
    await wait_deleted(server, JOBS, "work")
    assert await pods_of(server) == []


async def test_a_finalizer_of_the_job_decides_if_no_policy_is_given(server: Server) -> None:
    await create_job(server)
    await merge_patch(server, f"{JOBS}/work", {"metadata": {"finalizers": ["foregroundDeletion"]}})
    response = await server.request("DELETE", f"{JOBS}/work")
    assert response.warnings == [KEEPS_PODS], "kube-apiserver checks only the options"
    assert response.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    await release(server)
    await wait_deleted(server, JOBS, "work")


async def test_a_cron_job_takes_its_jobs_and_their_pods_along(server: Server) -> None:
    created = await server.create(CRONS, Write(resource=BATCH_CRONJOBS, spec=cron()).body("often"))
    await create_job(server, owner=owner_of(BATCH_CRONJOBS, created))
    response = await server.request("DELETE", f"{CRONS}/often")
    assert (response.body["status"], response.warnings) == ("Success", [])
    await wait_deleted(server, JOBS, "work")
    await wait_pods_deleting(server)
    await release(server)
    assert await pods_of(server) == []


async def test_all_jobs_are_deleted_with_one_warning(server: Server) -> None:
    await asyncio.gather(*(create_job(server, name) for name in ("one", "other")))
    await wait_owners_observed(server, PODS, {"spec": POD})
    response = await server.request("DELETE", JOBS)
    assert response.warnings == [KEEPS_PODS]
    for name in ("one", "other"):
        await wait_deleted(server, JOBS, name)
        assert not any("ownerReferences" in each for each in await pods_of(server, name))


async def test_a_namespace_takes_its_jobs_and_their_pods_along(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await add_namespace(server, "team")
        body = Write(spec=job()).body("work")
        created = await server.create(BATCH_JOBS.path("team"), body)
        metadata = {"name": "work-0", "ownerReferences": [owner_of(BATCH_JOBS, created)]}
        await server.create(POD_KIND.path("team"), {"metadata": metadata, "spec": POD})
        await server.request("DELETE", NAMESPACES.path(name="team"))
        await wait_deleted(server, NAMESPACES.path(), "team")


async def test_a_foreground_deletion_continues_after_a_restart(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await create_job(server)
        await server.request("DELETE", f"{JOBS}/work?propagationPolicy=Foreground")
    async with embedded_server(tmp_path) as restarted:
        await wait_pods_deleting(restarted)
        await release(restarted)
        await wait_deleted(restarted, JOBS, "work")
