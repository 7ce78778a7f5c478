"""Jobs of all kinds over REST, on both API servers: create, get, delete, scale."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_servers import ServerFactory
from support.polling import wait_until_true
from support.rest_jobs import JobsApi, batch_job, jobs_api, template, volcano_job

from batholith.admission.webhooks import WEBHOOKS
from batholith.model.names import BATCH_JOBS, JOBS, OPERATION, QUEUES, SUBMITTED_BY
from batholith.wire.jobs import JobSummary

N = "namespaces/default"


@pytest.fixture
async def api(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[JobsApi]:
    async with jobs_api(servers, tmp_path) as found:
        yield found


async def test_a_job_lives_from_its_creation_to_its_deletion(api: JobsApi) -> None:
    created = await api.send("POST", f"{N}/jobs", volcano_job("train"), status=201)
    job = msgspec.convert(created.body, JobSummary)
    assert (job.namespace, job.name, job.kind, job.phase) == ("default", "train", "jobs", "Pending")
    assert (job.user, job.replicas, job.queue, job.deleting) == ("admin", 4, "default", False)
    assert created.headers["Location"] == f"/v1/{N}/jobs/train"
    path = f"{N}/jobs/train"
    found = await api.send("GET", path, status=200)
    assert found.body == created.body
    tag = found.headers["ETag"]
    assert tag == created.headers["ETag"] == f'"{job.resource_version}"'
    manifest = await api.send("GET", f"{path}/manifest", status=200)
    assert manifest.headers["ETag"] == tag
    assert manifest.body["kind"] == "Job"
    assert manifest.body["metadata"]["annotations"][SUBMITTED_BY] == "admin"
    assert [task["name"] for task in manifest.body["spec"]["tasks"]] == ["master", "worker"]
    for known in (tag, f"W/{tag}", f'"1", {tag}', "*"):
        for each in (path, f"{path}/manifest"):
            reply = await api.send("GET", each, headers={"If-None-Match": known}, status=304)
            assert (reply.headers["ETag"], reply.content) == (tag, b"")
    await api.send("GET", path, headers={"If-None-Match": '"1"'}, status=200)
    deleted = await api.send("DELETE", path, status=202)
    assert (deleted.body["uid"], deleted.body["deleting"]) == (job.uid, False)
    problem = await api.refusal("GET", path)
    assert problem["status"] == 404
    assert "'train' not found in namespace 'default'" in problem["detail"]
    assert (await api.refusal("DELETE", path))["status"] == 404
    assert (await api.refusal("GET", f"{path}/manifest"))["status"] == 404
    assert (await api.refusal("PUT", f"{path}/scale", {"min_available": 1}))["status"] == 404


async def test_a_job_of_batch_v1_lives_likewise(api: JobsApi) -> None:
    body = batch_job("count", parallelism=2, completions=6, suspend=True)
    created = await api.send("POST", f"{N}/batchjobs", body, status=201)
    assert created.headers["Location"] == f"/v1/{N}/batchjobs/count"
    job = created.body
    assert (job["kind"], job["phase"], job["suspend"]) == ("batchjobs", "Suspended", True)
    assert (job["replicas"], job["completions"], job["queue"]) == (2, 6, "")
    scaled = await api.send("PUT", f"{N}/batchjobs/count/scale", {"parallelism": 3}, status=200)
    assert scaled.body["replicas"] == 3
    stored = await api.client.get(BATCH_JOBS, "count", namespace="default", view=dict[str, Any])
    assert stored["spec"]["parallelism"] == 3
    # A Job of batch/v1 with another path's kind, and the other way round.
    for kind, other in (("jobs", body), ("batchjobs", volcano_job("other"))):
        problem = await api.refusal("POST", f"{N}/{kind}", other)
        assert (problem["status"], problem["errors"][0]["field"]) == (422, "apiVersion")
    await api.send("DELETE", f"{N}/batchjobs/count?propagation=background", status=202)
    assert (await api.refusal("GET", f"{N}/batchjobs/count"))["status"] == 404


async def test_a_job_that_finalizers_hold_is_being_deleted(api: JobsApi) -> None:
    body = volcano_job("held")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await api.send("POST", f"{N}/jobs", body, status=201)
    assert (await api.send("DELETE", f"{N}/jobs/held", status=202)).body["deleting"]
    assert (await api.get(f"{N}/jobs/held"))["deleting"]
    assert (await api.send("DELETE", f"{N}/jobs/held", status=202)).body["deleting"]
    await api.client.patch(JOBS, "held", {"metadata": {"finalizers": None}}, namespace="default")
    assert (await api.refusal("GET", f"{N}/jobs/held"))["status"] == 404


async def test_foreground_deletion_waits_for_what_the_job_owns(api: JobsApi) -> None:
    job = (await api.send("POST", f"{N}/jobs", volcano_job("owner"), status=201)).body
    owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "owner", "uid": job["uid"]}
    reference = {**owner, "blockOwnerDeletion": True}
    for name, finalizers in (("held", ["example.com/hold"]),):
        metadata = {"name": name, "ownerReferences": [reference], "finalizers": finalizers}
        await api.server.create("/api/v1/namespaces/default/configmaps", {"metadata": metadata})
    path = f"{N}/jobs/owner"
    assert (await api.send("DELETE", f"{path}?propagation=foreground", status=202)).body["deleting"]
    assert (await api.get(path))["deleting"]
    await api.server.request(
        "PATCH",
        "/api/v1/namespaces/default/configmaps/held",
        {"metadata": {"finalizers": None}},
        content_type="application/merge-patch+json",
    )

    async def is_absent() -> bool:
        return (await api.send("GET", path)).status == 404

    await wait_until_true(is_absent)


async def test_orphans_stay(api: JobsApi) -> None:
    job = (await api.send("POST", f"{N}/jobs", volcano_job("owner"), status=201)).body
    owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "owner", "uid": job["uid"]}
    maps = "/api/v1/namespaces/default/configmaps"
    metadata = {"name": "orphan", "ownerReferences": [owner]}
    await api.server.create(maps, {"metadata": metadata})
    await api.send("DELETE", f"{N}/jobs/owner?propagation=orphan", status=202)

    async def is_orphan() -> bool:
        found = await api.server.get(f"{maps}/orphan")
        return "ownerReferences" not in found["metadata"]

    await wait_until_true(is_orphan)


async def test_writes_honour_if_match_and_uid(api: JobsApi) -> None:
    first = await api.send("POST", f"{N}/jobs", volcano_job("train"), status=201)
    path, old = f"{N}/jobs/train", first.headers["ETag"]
    change = {"tasks": {"worker": 3}}
    scaled = await api.send("PUT", f"{path}/scale", change, headers={"If-Match": old}, status=200)
    new = scaled.headers["ETag"]
    assert new != old
    for method, where, body in (("PUT", f"{path}/scale", change), ("DELETE", path, None)):
        for tag in (old, f"W/{new}"):
            problem = await api.refusal(method, where, body, **{"If-Match": tag})
            assert (problem["status"], problem["title"]) == (412, "Precondition Failed")
        malformed = await api.refusal(method, where, body, **{"If-Match": "4711"})
        assert (malformed["status"], malformed["errors"][0]["field"]) == (422, "If-Match")
    problem = await api.refusal("DELETE", f"{path}?uid=another")
    assert (problem["status"], "has the uid" in problem["detail"]) == (409, True)
    await api.send(
        "PUT", f"{path}/scale", {"tasks": {"worker": 4}}, headers={"If-Match": "*"}, status=200
    )
    current = await api.send("GET", path)
    headers = {"If-Match": f'"1", {current.headers["ETag"]}'}
    await api.send("DELETE", f"{path}?uid={first.body['uid']}", headers=headers, status=202)


async def test_a_scaling_changes_nothing_else(api: JobsApi) -> None:
    body = volcano_job("train", policies=[{"event": "PodFailed", "action": "RestartJob"}])
    body["spec"]["tasks"][1]["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    await api.send("POST", f"{N}/jobs", body, status=201)
    before = await api.get(f"{N}/jobs/train/manifest")
    change = {"tasks": {"worker": 0}, "min_available": 2}
    scaled = await api.send("PUT", f"{N}/jobs/train/scale", change, status=200)
    assert [each["replicas"] for each in scaled.body["tasks"]] == [2, 0]
    after = await api.get(f"{N}/jobs/train/manifest")
    expected = before["spec"] | {"minAvailable": 2}
    # Its own minimum follows; else the controller would wait for more pods than there are.
    expected["tasks"][1] |= {"replicas": 0, "minAvailable": 0}
    assert after["spec"] == expected


IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("jobs", {"tasks": {"chief": 1}}, "tasks.chief"),
    ("jobs", {"parallelism": 1}, "parallelism"),
    ("jobs", {}, "body"),
    ("jobs", {"tasks": {"worker": -1}}, "tasks.worker"),
    ("jobs", {"tasks": {"worker": "1"}}, "tasks.worker"),
    ("jobs", {"tasks": {"worker": 2**31}}, "tasks.worker"),
    ("jobs", {"replicas": 1}, "replicas"),
    ("batchjobs", {"tasks": {"worker": 1}}, "tasks"),
    ("batchjobs", {"parallelism": 1, "min_available": 1}, "min_available"),
]


async def test_a_scaling_that_cannot_be_honoured_is_rejected(api: JobsApi) -> None:
    for kind, body in (("jobs", volcano_job("train")), ("batchjobs", batch_job("train"))):
        await api.send("POST", f"{N}/{kind}", body, status=201)
    for kind, change, field in IMPOSSIBLE:
        problem = await api.refusal("PUT", f"{N}/{kind}/train/scale", change)
        assert (problem["status"], problem["errors"][0]["field"]) == (422, field)


async def test_a_dry_run_validates_and_stores_nothing(api: JobsApi) -> None:
    path = f"{N}/jobs?dry_run=true"
    reply = await api.send("POST", path, volcano_job("train"), status=200)
    assert (reply.body["name"], reply.body["user"]) == ("train", "admin")
    assert "Location" not in reply.headers
    assert (await api.refusal("GET", f"{N}/jobs/train"))["status"] == 404
    assert (await api.refusal("POST", path, volcano_job("UPPER")))["status"] == 422
    problem = await api.refusal("POST", f"{N}/jobs?dry_run=yes", volcano_job("train"))
    assert (problem["status"], problem["errors"][0]["field"]) == (422, "dry_run")
    await api.send("POST", f"{N}/jobs", volcano_job("train"), status=201)
    assert (await api.refusal("POST", path, volcano_job("train")))["status"] == 409


async def test_an_unknown_field_is_rejected(api: JobsApi) -> None:
    problem = await api.refusal("POST", f"{N}/jobs", volcano_job("train", minAvailabel=1))
    assert (problem["status"], "minAvailabel" in problem["detail"]) == (422, True)
    problem = await api.refusal("POST", f"{N}/batchjobs", batch_job("train", paralelism=1))
    assert (problem["status"], "paralelism" in problem["detail"]) == (422, True)


async def test_an_invalid_value_is_rejected_with_its_field(api: JobsApi) -> None:
    problem = await api.refusal("POST", f"{N}/batchjobs", batch_job("train", parallelism=-1))
    assert (problem["status"], problem["errors"][0]["field"]) == (422, "spec.parallelism")


async def test_warnings_of_the_api_server_are_passed_on(api: JobsApi) -> None:
    # Two variables of one name: a warning of both servers.
    env = [{"name": "A", "value": value} for value in "12"]
    container = {"name": "main", "image": "busybox", "env": env}
    body = batch_job("warned")
    body["spec"]["template"] = template(containers=[container])
    reply = await api.send("POST", f"{N}/batchjobs", body, status=201)
    found = reply.headers.getall("Warning", [])
    assert found
    assert all(each.startswith('299 - "') for each in found)
    reply = await api.send("POST", f"{N}/batchjobs", batch_job("quiet"), status=201)
    assert reply.headers.getall("Warning", []) == []


async def test_a_job_exists_once_per_name(api: JobsApi) -> None:
    await api.send("POST", f"{N}/jobs", volcano_job("train"), status=201)
    problem = await api.refusal("POST", f"{N}/jobs", volcano_job("train"))
    assert (problem["status"], "'train' exists" in problem["detail"]) == (409, True)


async def test_a_nameless_job_is_named_by_its_operation(api: JobsApi) -> None:
    body = volcano_job()
    for metadata, prefix in (({}, "job-"), ({"generateName": "train-"}, "train-")):
        created = await api.send("POST", f"{N}/jobs", {**body, "metadata": metadata}, status=201)
        name = created.body["name"]
        manifest = await api.get(f"{N}/jobs/{name}/manifest")
        operation = uuid.UUID(manifest["metadata"]["annotations"][OPERATION])
        assert name == prefix + operation.hex[:10]


async def test_the_short_form_becomes_a_volcano_job(servers: ServerFactory, tmp_path: Path) -> None:
    """It also passes the admission of jobs."""
    short = {
        "name": "train",
        "queue": "default",
        "image": "busybox",
        "command": ["sleep", "60"],
        "replicas": 3,
        "min_available": 2,
        "cpu": "500m",
        "memory": "64Mi",
        "gpus": 1,
        "env": {"MODE": "fast"},
        "labels": {"tier": "test"},
        "max_retry": 5,
        "ttl_seconds_after_finished": 60,
    }
    async with jobs_api(servers, tmp_path, webhooks=WEBHOOKS) as api:
        await api.client.create(QUEUES, {"metadata": {"name": "default"}, "spec": {"weight": 1}})
        state = {"status": {"state": "Open"}}
        await api.client.patch(QUEUES, "default", state, subresource="status")
        created = (await api.send("POST", f"{N}/jobs", short, status=201)).body
        assert (created["min_available"], created["replicas"]) == (2, 3)
        assert (created["labels"], created["queue"]) == ({"tier": "test"}, "default")
        spec = (await api.get(f"{N}/jobs/train/manifest"))["spec"]
        [task] = spec["tasks"]
        [container] = task["template"]["spec"]["containers"]
        assert container["command"] == ["sleep", "60"]
        assert container["env"] == [{"name": "MODE", "value": "fast"}]
        assert container["resources"] == {
            "requests": {"cpu": "500m", "memory": "64Mi", "nvidia.com/gpu": "1"},
            "limits": {"memory": "64Mi", "nvidia.com/gpu": "1"},
        }
        assert (spec["maxRetry"], spec["ttlSecondsAfterFinished"]) == (5, 60)
        assert spec["policies"] == [{"event": "PodFailed", "action": "RestartJob"}]
        # What admission denies is the caller's mistake.
        problem = await api.refusal(
            "PUT", f"{N}/jobs/train/scale", {"tasks": {"main": 1}, "min_available": 2}
        )
        assert (problem["status"], "minAvailable" in problem["detail"]) == (422, True)
        await api.send("PUT", f"{N}/jobs/train/scale", {"tasks": {"main": 2}}, status=200)
        named = (await api.send("POST", f"{N}/jobs", {"image": "busybox"}, status=201)).body
        assert (named["name"].startswith("job-"), named["replicas"]) == (True, 1)
        problem = await api.refusal("POST", f"{N}/jobs", {"image": "busybox", "queue": "absent"})
        assert problem["status"] == 422
