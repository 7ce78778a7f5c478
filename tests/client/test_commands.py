"""Commands through both clients: executed once, with their outcomes."""

from functools import partial
from typing import Any

import pytest
from support.sdk import FLAVOURS, LoseFirst, LossyTransport, RestCluster, Sdk

from batholith.client import ConflictError, InvalidError, Job, NotFoundError
from batholith.model.names import COMMANDS, JOBS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


def train(name: str = "train", **labels: str) -> Job:
    job = Job(name, labels=labels)
    for task in ("master", "worker"):
        job = job.task(task, image="busybox", command=["sleep", "600"], cpu="100m")
    return job


async def running(sdk: Sdk, rest: RestCluster, name: str = "train", **labels: str) -> object:
    """A job whose pods run."""
    job = await sdk.call(lambda client: client.jobs.submit(train(name, **labels)))
    await rest.cluster.wait_for_phase(JOBS, name, "Running", namespace=job.namespace)
    return job


async def test_a_job_is_suspended_resumed_restarted_and_completed(
    sdk: Sdk, rest: RestCluster
) -> None:
    await running(sdk, rest)
    job = await sdk.call(lambda client: client.jobs.get("train"))
    suspended = await sdk.call(lambda _: job.suspend(wait=60))
    assert (suspended.reached, suspended.command.state) == (True, "Executed")
    assert job.phase == suspended.phase
    assert (
        job.info.resource_version == (await sdk.call(lambda _: job.refresh())).info.resource_version
    )
    assert (await sdk.call(lambda _: job.resume(wait=60))).reached
    await rest.cluster.wait_for_phase(JOBS, "train", "Running", namespace=job.namespace)
    sent = await sdk.call(lambda _: job.restart(task="worker"))
    assert (sent.reached, sent.command.task) == (None, "worker")
    completed = await sdk.call(lambda client: client.jobs.complete(job, wait=60))
    assert completed.reached
    await rest.cluster.wait_for_phase(JOBS, "train", "Completed", namespace=job.namespace)
    listed = await sdk.call(lambda _: job.commands(page_size=2))
    assert [each.action for each in listed] == [
        "CompleteJob",
        "RestartTask",
        "ResumeJob",
        "AbortJob",
    ]
    one = await sdk.call(lambda _: job.get_command(sent.id))
    assert (one.id, one.who) == (sent.id, "admin")


async def test_commands_that_are_not_allowed(sdk: Sdk, rest: RestCluster) -> None:
    await running(sdk, rest)
    await sdk.call(lambda client: client.jobs.terminate("train", wait=60))
    await rest.cluster.wait_for_phase(JOBS, "train", "Terminated", namespace=sdk.client.namespace)
    with pytest.raises(ConflictError) as caught:
        await sdk.call(lambda client: client.jobs.suspend("train"))
    assert "Running" in caught.value.allowed_phases
    with pytest.raises(NotFoundError):
        await sdk.call(lambda client: client.jobs.suspend("absent"))
    with pytest.raises(InvalidError):
        await sdk.call(lambda client: client.jobs.restart("train", task="absent", pod="x"))
    with pytest.raises(ValueError, match="between 1 and 60"):
        await sdk.call(lambda client: client.jobs.suspend("train", wait=61))


def suspend_team(client: Any, *, dry_run: bool) -> Any:
    return client.jobs.bulk("suspend", label_selector="team=vision", dry_run=dry_run)


async def test_bulk_commands(sdk: Sdk, rest: RestCluster) -> None:
    for name in ("a", "b"):
        await running(sdk, rest, name, team="vision")
    await running(sdk, rest, "other")
    for dry_run in (True, False):
        suspend = partial(suspend_team, dry_run=dry_run)
        found = await sdk.call(suspend)
        assert [row.name for row in found.results] == ["a", "b"]
        assert {row.status for row in found.results} == ({200} if dry_run else {202})
        assert all((row.command is None) == dry_run for row in found.results)
    found = await sdk.call(lambda client: client.jobs.bulk("resume", names=["absent", "a"]))
    assert [row.name for row in found.results] == ["a"]


async def test_a_queue_is_closed_and_opened(sdk: Sdk) -> None:
    name = f"q-{sdk.client.namespace}"
    await sdk.call(lambda client: client.queues.create({"name": name}))
    closed = await sdk.call(lambda client: client.queues.close(name, wait=60))
    assert (closed.reached, closed.phase) == (True, "Closed")
    assert (await sdk.call(lambda client: client.queues.open(name, wait=60))).phase == "Open"
    listed = await sdk.call(lambda client: client.queues.commands(name))
    assert [each.action for each in listed] == ["OpenQueue", "CloseQueue"]


async def test_a_training_job_is_suspended(sdk: Sdk) -> None:
    template = train().manifest()["spec"]["tasks"][0]["template"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "batch"},
        "spec": {"template": template},
    }
    batch = await sdk.call(lambda client: client.jobs.submit(job))
    suspended = await sdk.call(lambda _: batch.suspend())
    assert suspended.command.kind == "batchjobs"
    assert (await sdk.call(lambda _: batch.refresh())).info.suspend
    with pytest.raises(InvalidError):
        await sdk.call(lambda _: batch.abort())


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_command_whose_response_is_lost_is_executed_once(
    flavour: str, rest: RestCluster, namespace: str
) -> None:
    transport = LossyTransport()
    async with rest.sdk(flavour, namespace=namespace, transport=transport) as sdk:
        await running(sdk, rest)
        before = rest.cluster.count("create", COMMANDS)
        transport.lose = LoseFirst("POST")
        await sdk.call(lambda client: client.jobs.suspend("train", wait=30))
        assert rest.cluster.count("create", COMMANDS) - before == 1
        assert len(await sdk.call(lambda client: client.jobs.commands("train"))) == 1
