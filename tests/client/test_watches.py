"""Watches through both clients, over connections that break."""

import asyncio
from typing import Any

import httpx
import pytest
from support.sdk import FLAVOURS, LossyTransport, RestCluster, Sdk

from batholith.client import Job, NotFoundError, WaitTimeoutError
from batholith.model.names import JOBS, QUEUES

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


def suspended(name: str, **labels: str) -> dict[str, Any]:
    return Job(name, labels=labels, suspend=True).task("t", image="busybox").manifest()


async def test_changes_of_jobs_are_reported(sdk: Sdk, rest: RestCluster, namespace: str) -> None:
    await rest.cluster.create(JOBS, suspended("a", team="x"), namespace=namespace)
    await rest.cluster.create(JOBS, suspended("b"), namespace=namespace)
    reading = asyncio.create_task(
        sdk.first(lambda client: client.jobs.watch(label_selector="team=x"), 4)
    )
    await rest.cluster.wait_for_phase(JOBS, "a", "Aborted", namespace=namespace)
    await rest.cluster.create(JOBS, suspended("c", team="x"), namespace=namespace)
    await rest.cluster.wait_for_phase(JOBS, "c", "Aborted", namespace=namespace)
    await rest.cluster.delete(JOBS, "a", namespace=namespace)
    found = await reading
    names = [change.object.name for change in found]
    assert names[0] == "a"
    assert "b" not in names
    assert found[0].type == "added"


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_no_change_is_missed_while_connections_break(
    flavour: str, rest: RestCluster, namespace: str
) -> None:
    """Each connection ends after some bytes, in the list or in an event."""
    lengths = iter([10, 700, 900, 1200, 1500, *[2500] * 1000])

    def cut(request: httpx.Request) -> int | None:
        return next(lengths) if "/watch/" in request.url.path else None

    transport = LossyTransport(cut=cut)
    names = [f"job-{index}" for index in range(4)]
    for name in names[:2]:
        await rest.cluster.create(JOBS, suspended(name), namespace=namespace)
    async with rest.sdk(flavour, namespace=namespace, transport=transport) as sdk:
        reading = asyncio.create_task(
            sdk.call(lambda client: until_deleted(client.jobs.watch(), "job-0"))
        )
        for name in names[2:]:
            await rest.cluster.create(JOBS, suspended(name), namespace=namespace)
        for name in names:
            await rest.cluster.wait_for_phase(JOBS, name, "Aborted", namespace=namespace)
        await rest.cluster.delete(JOBS, "job-0", namespace=namespace)
        events = await reading
    assert [name for type_, name, _ in events if type_ == "added"] == names or sorted(
        name for type_, name, _ in events if type_ == "added"
    ) == names
    last = {name: phase for _, name, phase in events}
    assert last["job-3"] == "Aborted"


def until_deleted(changes: Any, name: str) -> Any:
    """All changes up to the deletion of a job."""
    if hasattr(changes, "__aiter__"):
        return _until_deleted_async(changes, name)
    found = []
    for change in changes:
        found.append((str(change.type), change.object.name, change.object.phase))
        if found[-1][:2] == ("deleted", name):
            break
    changes.close()
    return found


async def _until_deleted_async(changes: Any, name: str) -> list[tuple[str, str, str]]:
    found = []
    async for change in changes:
        found.append((str(change.type), change.object.name, change.object.phase))
        if found[-1][:2] == ("deleted", name):
            break
    await changes.aclose()
    return found


async def test_changes_of_one_job_and_of_queues(
    sdk: Sdk, rest: RestCluster, namespace: str
) -> None:
    await rest.cluster.create(JOBS, suspended("a"), namespace=namespace)
    job = await sdk.call(lambda client: client.jobs.get("a"))
    [change] = await sdk.first(lambda _: job.watch(), 1)
    assert (change.type, change.object.uid) == ("added", job.uid)
    name = f"q-{namespace}"
    await rest.cluster.create(QUEUES, {"metadata": {"name": name}, "spec": {"weight": 7}})
    queues = await sdk.first(lambda client: client.queues.watch(), 3)
    assert {name, "default", "root"} <= {change.object.name for change in queues}
    await rest.cluster.delete(JOBS, "a", namespace=namespace)
    await rest.cluster.wait_deleted(JOBS, "a", namespace=namespace)
    with pytest.raises(NotFoundError):
        await sdk.first(lambda _: job.watch(), 1)


async def test_a_wait_ends_with_its_timeout(sdk: Sdk, rest: RestCluster, namespace: str) -> None:
    await rest.cluster.create(JOBS, suspended("a"), namespace=namespace)
    with pytest.raises(WaitTimeoutError) as caught:
        await sdk.call(lambda client: client.jobs.wait("a", "Running", timeout=0.3))
    assert caught.value.job.name == "a"
