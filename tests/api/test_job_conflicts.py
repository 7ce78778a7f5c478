"""Writes on jobs that others change at the same time, or whose responses are lost."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from support.controller_api import NAMESPACE, ControllerApi
from support.rest_jobs import volcano_job

from batholith.api.http.preconditions import EntityTags, Preconditions
from batholith.api.jobs.kinds import VOLCANO
from batholith.api.jobs.summaries import JobSummary
from batholith.api.jobs.views import LAST_APPLIED, CachedJob, without_manifest
from batholith.api.problems import ProblemError
from batholith.api.schemas.jobs import ScaleIn
from batholith.api.writes import jobs as job_writes
from batholith.api.writes.manifests import build_job
from batholith.kube.client.client import Client
from batholith.kube.errors import ConnectionLostError, InvalidError
from batholith.model.meta import ObjectMeta
from batholith.model.names import JOBS
from batholith.testing import RequestMatcher

CHANGE = ScaleIn(tasks={"worker": 3})


@pytest.fixture
async def api() -> AsyncIterator[ControllerApi]:
    async with ControllerApi(JOBS) as found:
        found.put(JOBS, "train", spec=volcano_job()["spec"])
        yield found


async def scale(client: Client, preconditions: Preconditions) -> JobSummary:
    return await job_writes.scale(
        client, VOLCANO, "train", CHANGE, namespace=NAMESPACE, preconditions=preconditions
    )


async def delete(client: Client, preconditions: Preconditions) -> JobSummary:
    return await job_writes.delete(
        client,
        VOLCANO,
        "train",
        namespace=NAMESPACE,
        propagation="Background",
        uid="",
        preconditions=preconditions,
    )


async def version(client: Client) -> Preconditions:
    """The precondition of the version that exists."""
    job = await client.get(JOBS, "train", namespace=NAMESPACE, view=CachedJob)
    return Preconditions(EntityTags((f'"{job.metadata.resource_version}"',)))


@pytest.mark.parametrize(("write", "method"), [(scale, "PATCH"), (delete, "DELETE")])
async def test_a_conflict_is_retried_without_if_match_alone(
    api: ControllerApi, write: Any, method: str
) -> None:
    async with api.client() as client:
        known = await version(client)
        api.fail(409, method, JOBS.plural)
        with pytest.raises(ProblemError) as caught:
            await write(client, known)
        assert caught.value.status == 412
        api.fail(409, method, JOBS.plural, count=job_writes.MAX_ATTEMPTS)
        with pytest.raises(ProblemError) as caught:
            await write(client, Preconditions())
        assert caught.value.status == 409
        api.fail(409, method, JOBS.plural)
        assert (await write(client, Preconditions())).name == "train"


@pytest.mark.parametrize("tasks", [["worker", "master"], ["worker"]])
async def test_a_scaling_does_not_undo_another_change(api: ControllerApi, tasks: list[str]) -> None:
    """The patch holds for the version that was read, so the index of the task is right."""
    async with api.client() as client:
        held = api.faults.hold(RequestMatcher("PATCH", path=JOBS.plural))
        scaling = asyncio.create_task(scale(client, Preconditions()))
        await held.wait_held()
        spec = volcano_job()["spec"]
        by_name = {task["name"]: task for task in spec["tasks"]}
        api.put(JOBS, "train", spec={**spec, "tasks": [by_name[name] for name in tasks]})
        held.release()
        scaled = await scaling
        expected = {"worker": 3, "master": 2}
        assert [(each.name, each.replicas) for each in scaled.tasks] == [
            (name, expected[name]) for name in tasks
        ]


async def test_an_invalid_scaling_is_sent_once(api: ControllerApi) -> None:
    async with api.client() as client:
        api.fail(422, "PATCH", JOBS.plural)
        with pytest.raises(InvalidError):
            await scale(client, Preconditions())
        assert api.count("PATCH", JOBS) == 1


async def test_a_lost_response_is_no_failure_and_the_operation_may_be_repeated(
    api: ControllerApi,
) -> None:
    operation = uuid.uuid4()
    body = build_job(
        {"image": "busybox"}, VOLCANO, namespace=NAMESPACE, operation=operation, user="ann"
    )

    async def create(client: Client) -> JobSummary:
        summary, _ = await job_writes.create(
            client, VOLCANO, body, namespace=NAMESPACE, operation=operation, dry_run=False
        )
        return summary

    async with api.client() as client:
        api.faults.lose_response(RequestMatcher("POST", path=JOBS.plural))
        with pytest.raises(ConnectionLostError):
            await create(client)
        repeated = await create(client)
        assert (repeated.user, repeated.name) == ("ann", body["metadata"]["name"])
        assert api.created(JOBS) == 2


def test_caches_do_not_keep_whole_manifests() -> None:
    meta = ObjectMeta(name="a", annotations={LAST_APPLIED: "{}", "a": "b"})
    job = CachedJob(metadata=meta)
    assert without_manifest(job).metadata == msgspec.structs.replace(meta, annotations={"a": "b"})
    other = CachedJob(metadata=ObjectMeta(name="a"))
    assert without_manifest(other) is other
