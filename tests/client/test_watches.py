"""Watches through both clients, over connections that break."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest
from support.polling import wait_for
from support.sdk import FLAVOURS, LossyTransport, RestCluster, Sdk

from batholith.client import Job, NotFoundError, WaitTimeoutError
from batholith.model.names import JOBS, QUEUES

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

Seen = list[tuple[str, str, str]]
"""Type of change, name and phase."""


def suspended(name: str, **labels: str) -> dict[str, Any]:
    return Job(name, labels=labels, suspend=True).task("t", image="busybox").manifest()


@contextlib.asynccontextmanager
async def watching(sdk: Sdk, watch: Callable[[Any], Any], *, last: str) -> AsyncIterator[Seen]:
    """The changes that a watch reports, up to the deletion of the job *last*."""
    seen: Seen = []
    task = asyncio.create_task(sdk.call(lambda client: _read(watch(client), seen, last)))
    try:
        yield seen
        await task
    finally:
        task.cancel()


def has_aborted(seen: Seen, name: str) -> bool:
    return (name, "Aborted") in [row[1:] for row in seen]


def _read(changes: Any, seen: Seen, last: str) -> Any:
    if hasattr(changes, "__aiter__"):
        return _read_async(changes, seen, last)
    with contextlib.closing(changes):
        for change in changes:
            seen.append((str(change.type), change.object.name, change.object.phase))
            if seen[-1][:2] == ("deleted", last):
                return None
    return None


async def _read_async(changes: Any, seen: Seen, last: str) -> None:
    async with contextlib.aclosing(changes):
        async for change in changes:
            seen.append((str(change.type), change.object.name, change.object.phase))
            if seen[-1][:2] == ("deleted", last):
                return


async def test_changes_of_jobs_are_reported(sdk: Sdk, rest: RestCluster, namespace: str) -> None:
    await rest.cluster.create(JOBS, suspended("a", team="x"), namespace=namespace)
    await rest.cluster.create(JOBS, suspended("b"), namespace=namespace)
    async with watching(
        sdk, lambda client: client.jobs.watch(label_selector="team=x"), last="c"
    ) as seen:
        await rest.cluster.create(JOBS, suspended("c", team="x"), namespace=namespace)
        await wait_for(partial(has_aborted, seen, "c"))
        await rest.cluster.delete(JOBS, "c", namespace=namespace)
    assert {name for _, name, _ in seen} == {"a", "c"}
    assert next(type_ for type_, name, _ in seen if name == "c") == "added"


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_no_change_is_missed_while_connections_break(
    flavour: str, rest: RestCluster, namespace: str
) -> None:
    """Each connection ends after some bytes: first in the list, later in an event."""
    lengths = iter([1000, 2200])

    def cut(request: httpx.Request) -> int | None:
        return next(lengths, None) if "/watch/" in request.url.path else None

    transport = LossyTransport(cut=cut)
    names = [f"job-{index}" for index in range(4)]
    for name in names[:2]:
        await rest.cluster.create(JOBS, suspended(name), namespace=namespace)
    async with (
        rest.sdk(flavour, namespace=namespace, transport=transport) as sdk,
        watching(sdk, lambda client: client.jobs.watch(), last="job-0") as seen,
    ):
        for name in names[:2]:
            await wait_for(partial(has_aborted, seen, name))
        for name in names[2:]:
            await rest.cluster.create(JOBS, suspended(name), namespace=namespace)
        for name in names:
            await wait_for(partial(has_aborted, seen, name))
        await rest.cluster.delete(JOBS, "job-0", namespace=namespace)
    assert sorted(name for type_, name, _ in seen if type_ == "added") == names
    positions = [request.headers.get("last-event-id") for request in transport.requests]
    assert (len(positions), positions[0], positions[2] is None) == (3, None, False)


async def test_changes_of_one_job_and_of_queues(
    sdk: Sdk, rest: RestCluster, namespace: str
) -> None:
    await rest.cluster.create(JOBS, suspended("a"), namespace=namespace)
    job = await sdk.call(lambda client: client.jobs.get("a"))
    [change] = await sdk.first(lambda _: job.watch(), 1)
    assert (change.type, change.object.uid) == ("added", job.uid)
    name = f"q-{namespace}-{sdk.flavour}"
    await rest.cluster.create(QUEUES, {"metadata": {"name": name}, "spec": {"weight": 7}})
    [listed] = await sdk.first(lambda client: client.queues.watch(state="Open"), 1)
    assert listed.object.state == "Open"
    await rest.cluster.delete(JOBS, "a", namespace=namespace)
    await rest.cluster.wait_deleted(JOBS, "a", namespace=namespace)
    with pytest.raises(NotFoundError):
        await sdk.first(lambda _: job.watch(), 1)


async def test_a_wait_ends_with_its_timeout(sdk: Sdk, rest: RestCluster, namespace: str) -> None:
    await rest.cluster.create(JOBS, suspended("a"), namespace=namespace)
    with pytest.raises(WaitTimeoutError) as caught:
        await sdk.call(lambda client: client.jobs.wait("a", "Running", timeout=2))
    assert caught.value.job.name == "a"
