"""History and usage through both clients."""

from typing import Any

import pytest
from support.polling import wait_until_true
from support.sdk import RestCluster, Sdk

from batholith.client import Job, NotFoundError
from batholith.model.names import JOBS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


async def recorded(sdk: Sdk, name: str) -> Any:
    """The record of a job, once its deletion is recorded."""
    found: list[Any] = []

    async def is_recorded() -> bool:
        found[:] = await sdk.call(lambda client: client.history.list(name=name))
        return bool(found) and found[0].deleted_at is not None

    await wait_until_true(is_recorded)
    return found[0]


async def test_a_deleted_job_is_in_the_history(sdk: Sdk, rest: RestCluster, namespace: str) -> None:
    task = Job("train").task("t", image="busybox", command=["sleep", "1.2"], cpu=1)
    job = await sdk.call(lambda client: client.jobs.submit(task))
    await sdk.call(lambda _: job.suspend(wait=60))
    await sdk.call(lambda _: job.resume(wait=60))
    await rest.cluster.wait_for_phase(JOBS, "train", "Completed", namespace=namespace)
    await sdk.call(lambda _: job.delete())
    await rest.cluster.wait_deleted(JOBS, "train", namespace=namespace)
    record = await recorded(sdk, "train")
    assert (record.uid, record.phase, record.kind) == (job.uid, "Completed", "jobs")
    [named] = await sdk.call(lambda client: client.jobs.history("train"))
    assert named.uid == job.uid
    details = await sdk.call(lambda client: client.history.get(job.uid))
    assert details.spec["tasks"][0]["name"] == "t"
    assert details.phases[-1].phase == "Completed"
    assert [each.action for each in details.commands] == ["ResumeJob", "AbortJob"]
    assert details.resource_seconds["cpu"] > 0
    usage = await sdk.call(lambda client: client.history.usage("namespace", namespace=namespace))
    assert usage.totals()[namespace]["cpu"] > 0
    with pytest.raises(NotFoundError):
        await sdk.call(lambda client: client.history.get("00000000-0000-0000-0000-000000000000"))
