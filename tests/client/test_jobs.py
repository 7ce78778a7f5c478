"""Jobs through both clients, on a cluster with all components."""

from datetime import UTC, datetime
from typing import Any

import pytest
from support.sdk import FLAVOURS, LoseFirst, LossyTransport, RestCluster, Sdk, submitting

from batholith.client import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    Job,
    ManifestError,
    NotFoundError,
    PreconditionFailedError,
    UnauthorizedError,
)
from batholith.model.names import JOBS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


def train(name: str = "train", *, seconds: float = 600, replicas: int = 2) -> Job:
    command = ["sleep", str(seconds)]
    return Job(name).task("worker", image="busybox", replicas=replicas, command=command, cpu=1)


async def test_a_job_from_submission_to_its_end(sdk: Sdk, namespace: str) -> None:
    job = await sdk.call(lambda client: client.jobs.submit(train(seconds=0.1)))
    assert (job.name, job.namespace, job.kind) == ("train", namespace, "jobs")
    seen: list[str] = []
    waited = await sdk.call(
        lambda _: job.wait(timeout=60, on_change=lambda state: seen.append(state.phase))
    )
    assert waited is job
    assert (job.phase, job.is_finished, seen[-1]) == ("Completed", True, "Completed")
    assert job.info.finished_at <= datetime.now(UTC)
    assert not (await sdk.call(lambda _: job.why())).waiting
    timeline = await sdk.call(lambda _: job.timeline())
    assert timeline.phases[-1].phase == "Completed"
    assert {pod.task for pod in await sdk.call(lambda _: job.pods())} == {"worker"}
    assert await sdk.call(lambda _: job.events())


async def test_all_forms_of_a_job_are_accepted(sdk: Sdk, namespace: str) -> None:
    short = {"name": "short", "image": "busybox", "command": ["sleep", "600"], "cpu": 1}
    batch = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "batch"},
        "spec": {"template": train().manifest()["spec"]["tasks"][0]["template"]},
    }
    forms = (train("built"), train("manifest").manifest(), short, batch)
    jobs = [await sdk.call(submitting(form)) for form in forms]
    assert [(job.name, job.kind) for job in jobs] == [
        ("built", "jobs"),
        ("manifest", "jobs"),
        ("short", "jobs"),
        ("batch", "batchjobs"),
    ]
    await sdk.call(lambda _: jobs[3].refresh())
    listed = await sdk.call(lambda client: client.jobs.of_kind("batchjobs").list())
    assert [job.uid for job in listed] == [jobs[3].uid]
    manifest = await sdk.call(lambda _: jobs[0].manifest())
    assert manifest["spec"]["tasks"][0]["replicas"] == 2


async def test_mistakes_are_typed_errors(sdk: Sdk) -> None:
    await sdk.call(lambda client: client.jobs.submit(train()))
    for error, function in (
        (ConflictError, lambda client: client.jobs.submit(train())),
        (NotFoundError, lambda client: client.jobs.get("absent")),
        (NotFoundError, lambda client: client.jobs.wait("absent", timeout=5)),
        (InvalidError, lambda client: client.jobs.submit({"name": "x", "image": ""})),
        (InvalidError, lambda client: client.jobs.list(sort="colour")),
        (ManifestError, lambda client: client.jobs.submit({"apiVersion": "v1", "kind": "Pod"})),
        (ValueError, lambda client: client.jobs.get("a/b/c")),
        (ValueError, lambda client: client.jobs.get("..")),
    ):
        with pytest.raises(error):
            await sdk.call(function)
    with pytest.raises(InvalidError) as caught:
        await sdk.call(lambda client: client.jobs.submit({"name": "x", "image": "i", "cpu": "?"}))
    assert "cpu" in caught.value.fields


async def test_a_rejected_token(rest: RestCluster, sdk: Sdk) -> None:
    async with rest.sdk(sdk.flavour, token="wrong-token") as other:
        with pytest.raises(UnauthorizedError) as caught:
            await other.call(lambda client: client.jobs.get("x"))
    assert "wrong-token" not in repr(caught.value)
    assert not issubclass(UnauthorizedError, ForbiddenError)


async def test_validation_creates_nothing(sdk: Sdk) -> None:
    found = await sdk.call(lambda client: client.jobs.validate(train("never")))
    assert found.name == "never"
    assert await sdk.call(lambda client: client.jobs.list()) == []


async def test_lists_are_read_page_by_page(sdk: Sdk, rest: RestCluster, namespace: str) -> None:
    names = [f"job-{index}" for index in range(5)]
    for name in names:
        labels = {"odd": str(int(name[-1]) % 2)}
        job = Job(name, labels=labels, suspend=True).task("t", image="busybox")
        await sdk.call(submitting(job))
    listed = await sdk.call(lambda client: client.jobs.list(page_size=2))
    assert [job.name for job in listed] == names
    first = await sdk.first(lambda client: client.jobs.list(page_size=2, sort="-name"), 3)
    assert [job.name for job in first] == names[:1:-1]
    page = await sdk.call(lambda client: client.jobs.page(limit=3, label_selector="odd=0"))
    assert ([job.name for job in page.items], page.total) == (names[::2], 3)
    partial = await sdk.call(
        lambda client: client.jobs.list(all_namespaces=True, label_selector="odd=1", fields="uid")
    )
    assert {job.uid for job in partial} >= {job.uid for job in listed[1::2]}
    assert all(job.phase == "" for job in partial)
    since = datetime(2020, 1, 1, tzinfo=UTC)
    assert await sdk.call(lambda client: client.jobs.list(created_before=since)) == []
    with pytest.raises(ValueError, match="either a namespace or all"):
        await sdk.call(lambda client: client.jobs.list(namespace="a", all_namespaces=True))


async def test_a_job_is_scaled(sdk: Sdk) -> None:
    job = await sdk.call(lambda client: client.jobs.submit(train()))
    await sdk.call(lambda _: job.wait("Running", timeout=60))
    await sdk.call(lambda _: job.scale({"worker": 3}))
    assert job.info.replicas == 3
    with pytest.raises(PreconditionFailedError):
        await sdk.call(lambda _: job.scale({"worker": 2}, if_match="1"))
    scaled = await sdk.call(lambda client: client.jobs.scale(job, {"worker": 2}))
    assert scaled.replicas == 2


async def test_a_deleted_job_is_gone(sdk: Sdk, rest: RestCluster, namespace: str) -> None:
    job = await sdk.call(lambda client: client.jobs.submit(train()))
    assert (await sdk.call(lambda _: job.delete())).uid == job.uid
    await rest.cluster.wait_deleted(JOBS, "train", namespace=namespace)
    with pytest.raises(NotFoundError):
        await sdk.call(lambda _: job.refresh())


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_lost_response_creates_one_job(
    flavour: str, rest: RestCluster, namespace: str
) -> None:
    transport = LossyTransport(lose=LoseFirst("POST"))
    async with rest.sdk(flavour, namespace=namespace, transport=transport) as sdk:
        body: dict[str, Any] = {"image": "busybox", "command": ["sleep", "600"]}
        job = await sdk.call(lambda client: client.jobs.submit(body))
        listed = await sdk.call(lambda client: client.jobs.list())
    assert [each.uid for each in listed] == [job.uid]
    posts = [each for each in transport.requests if each.method == "POST"]
    assert len({each.headers["idempotency-key"] for each in posts}) == 1
    assert len(posts) >= 2


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_lost_response_deletes_no_other_job(
    flavour: str, rest: RestCluster, namespace: str
) -> None:
    transport = LossyTransport(lose=LoseFirst("DELETE"))
    async with rest.sdk(flavour, namespace=namespace, transport=transport) as sdk:
        job = await sdk.call(lambda client: client.jobs.submit(train()))
        deleted = await sdk.call(lambda _: job.delete())
        assert deleted is None or deleted.uid == job.uid
