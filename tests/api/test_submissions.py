"""Working directories of jobs over REST, on both API servers."""

import base64
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.api_servers import ServerFactory
from support.rest_jobs import JobsApi, jobs_api, volcano_job

from batholith.model.names import CONFIGMAPS, JOBS, SUBMISSION, SUBMISSION_INCOMPLETE
from batholith.model.workdirs import CHUNK, MAX_ARCHIVE

N = "namespaces/default"
CONFIGS = f"/api/v1/{N}/configmaps"


@pytest.fixture
async def api(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[JobsApi]:
    async with jobs_api(servers, tmp_path) as found:
        yield found


async def submit(api: JobsApi, name: str) -> str:
    """Create a job whose submission is incomplete; return its uid."""
    job = volcano_job(name, suspend=True)
    job["metadata"]["labels"] = {SUBMISSION: SUBMISSION_INCOMPLETE}
    uid: str = (await api.send("POST", f"{N}/jobs", job, status=201)).body["uid"]
    return uid


async def test_the_archive_is_stored_before_the_job_begins(api: JobsApi) -> None:
    archive = gzip.compress(os.urandom(CHUNK + 1), mtime=0)
    uid = await submit(api, "train")
    path = f"{N}/jobs/train/submission"
    no_archive = await api.refusal("PUT", path, b"not compressed")
    assert (no_archive["status"], no_archive["errors"][0]["field"]) == (422, "body")
    other = await api.refusal("PUT", f"{path}?uid=other", archive)
    assert (other["status"], "has the uid" in other["detail"]) == (409, True)
    assert (await api.refusal("PUT", path, b"\x1f\x8b" + bytes(MAX_ARCHIVE)))["status"] == 413
    assert (await api.refusal("PUT", f"{N}/jobs/absent/submission", archive))["status"] == 404
    stored = (await api.server.get(CONFIGS))["items"]
    assert [each for each in stored if "workdir" in each["metadata"]["name"]] == []

    # An attempt before this one, whose response was lost, has stored the first piece.
    owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "train", "uid": uid}
    first = {
        "metadata": {
            "name": "train-workdir-0",
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}],
        },
        "immutable": True,
        "binaryData": {"chunk": base64.b64encode(archive[:CHUNK]).decode()},
    }
    await api.server.create(CONFIGS, first)
    for _ in range(2):  # the second time, the response of the first was lost
        done = await api.send("PUT", f"{path}?uid={uid}", archive, status=200)
        assert (done.body["uid"], done.body["labels"].get(SUBMISSION)) == (uid, None)
    pieces = [
        await api.client.get(CONFIGMAPS, f"train-workdir-{number}", namespace="default", view=dict)
        for number in range(2)
    ]
    packed = [base64.b64decode(each["binaryData"]["chunk"]) for each in pieces]
    assert (b"".join(packed), len(packed[0])) == (archive, CHUNK)
    assert all(each["metadata"]["ownerReferences"][0]["uid"] == uid for each in pieces)
    manifest = await api.get(f"{N}/jobs/train/manifest")
    assert not manifest["spec"].get("suspend")

    changed = await api.refusal("PUT", path, archive + b"x")
    assert (changed["status"], "another ConfigMap" in changed["detail"]) == (409, True)


async def test_a_job_that_has_begun_gets_no_directory(api: JobsApi) -> None:
    await api.send("POST", f"{N}/jobs", volcano_job("other"), status=201)
    refused = await api.refusal("PUT", f"{N}/jobs/other/submission", gzip.compress(b"x"))
    assert (refused["status"], "has begun without" in refused["detail"]) == (409, True)


async def test_a_held_job_remains_suspended_and_a_repetition_does_not_resume_it(
    api: JobsApi,
) -> None:
    archive = gzip.compress(b"x", mtime=0)
    await submit(api, "held")
    for query in ("?hold=true", ""):
        await api.send("PUT", f"{N}/jobs/held/submission{query}", archive, status=200)
        manifest = await api.get(f"{N}/jobs/held/manifest")
        assert manifest["spec"]["suspend"] is True
        assert SUBMISSION not in manifest["metadata"].get("labels", {})
