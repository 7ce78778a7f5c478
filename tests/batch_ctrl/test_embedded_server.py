"""The controller on the embedded API server: its patches, finalizers and preconditions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.batch_ctrl.controller import BatchJobController
from batholith.batch_ctrl.settings import ALL_JOBS, BatchJobSettings
from batholith.model.names import BATCH_JOBS, PODS
from batholith.testing import ApiServer

Object = dict[str, Any]

UID = "00000000-0000-4000-8000-000000000001"
LABELS = {"batch.kubernetes.io/controller-uid": UID, "batch.kubernetes.io/job-name": "j"}


def _job(**spec: Any) -> Object:
    containers = [{"name": "main", "image": "busybox"}]
    template = {
        "metadata": {"labels": LABELS},
        "spec": {"restartPolicy": "Never", "containers": containers},
    }
    defaults: Object = {
        "parallelism": 1,
        "completionMode": "NonIndexed",
        "backoffLimit": 6,
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": UID}},
        "template": template,
    }
    return {"metadata": {"uid": UID, "generation": 1}, "spec": defaults | spec}


@asynccontextmanager
async def _cluster(registry: CollectorRegistry | None = None) -> AsyncIterator[ApiServer]:
    """An API server with a running controller that does not wait for more events."""
    settings = BatchJobSettings(
        managed_by=ALL_JOBS, batch_delay=0.01, delete_finished=True, registry=registry
    )
    async with ApiServer() as api, api.client() as client:
        controller = BatchJobController(client, settings=settings, recorder=FakeRecorder())
        async with running(controller):
            yield api


def _pods(api: ApiServer) -> list[Object]:
    return sorted(api.objects(PODS).values(), key=lambda pod: str(pod["metadata"]["name"]))


def _status(api: ApiServer) -> Object:
    status: Object = api.objects(BATCH_JOBS).get("default/j", {}).get("status", {})
    return status


def _conditions(api: ApiServer) -> list[str]:
    return [one["type"] for one in _status(api).get("conditions", ()) if one["status"] == "True"]


async def _end(api: ApiServer, phase: str = "Succeeded", *, number: int = 1) -> None:
    """Wait for this number of pods and end them."""

    def unfinished() -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in _pods(api)
            if pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    await wait_for(lambda: len(unfinished()) >= number)
    for name in unfinished():
        api.put(PODS, name, status={"phase": phase})


async def test_job_runs_to_completion() -> None:
    registry = CollectorRegistry()
    async with _cluster(registry) as api:
        api.put(BATCH_JOBS, "j", **_job(completions=2, parallelism=2))
        await _end(api, number=2)
        await wait_for(lambda: "Complete" in _conditions(api))
        assert _status(api)["succeeded"] == 2
        assert _status(api)["uncountedTerminatedPods"] == {}
        finalizers = [pod["metadata"].get("finalizers", []) for pod in _pods(api)]
        assert finalizers == [[], []]
    text = generate_latest(registry).decode()
    assert 'job_controller_job_pods_finished_total{completion_mode="NonIndexed"' in text
    assert 'jobs_finished_total{completion_mode="NonIndexed",reason="CompletionsReached"' in text
    assert 'job_controller_job_pods_creation_total{reason="new",status="succeeded"} 2.0' in text
    assert 'action="pods_created",completion_mode="NonIndexed",result="success"' in text


async def test_failed_job_ends_with_its_pods_released() -> None:
    async with _cluster() as api:
        api.put(BATCH_JOBS, "j", **_job(completions=3, parallelism=3, backoffLimit=0))
        await wait_for(lambda: len(_pods(api)) == 3)
        api.put(PODS, _pods(api)[0]["metadata"]["name"], status={"phase": "Failed"})
        await wait_for(lambda: "Failed" in _conditions(api))
        assert _conditions(api) == ["FailureTarget", "Failed"]
        assert _status(api)["failed"] == 3 and len(_pods(api)) == 1


async def test_deleted_job_leaves_no_pods() -> None:
    """INV-BJ-2."""
    async with _cluster() as api:
        api.put(BATCH_JOBS, "j", **_job(completions=2, parallelism=2))
        await wait_for(lambda: len(_pods(api)) == 2)
        async with api.client() as client:
            await client.delete(BATCH_JOBS, "j", namespace="default", propagation="Foreground")
        await wait_for(lambda: not api.objects(BATCH_JOBS) and not _pods(api))


async def test_expired_job_is_deleted_with_its_pods() -> None:
    """INV-BJ-13."""
    async with _cluster() as api:
        api.put(BATCH_JOBS, "j", **_job(completions=1, ttlSecondsAfterFinished=0))
        await _end(api)
        await wait_for(lambda: not api.objects(BATCH_JOBS) and not _pods(api))


async def test_orphan_is_adopted_and_released_again() -> None:
    async with _cluster() as api:
        api.put(BATCH_JOBS, "j", **_job(completions=1))
        await wait_for(lambda: len(_pods(api)) == 1)
        name = _pods(api)[0]["metadata"]["name"]
        await api.patch(PODS, name, {"metadata": {"ownerReferences": None}})
        await wait_for(lambda: bool(_pods(api)[0]["metadata"].get("ownerReferences")))
        assert _pods(api)[0]["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
        label = {"batch.kubernetes.io/controller-uid": "other"}
        await api.patch(PODS, name, {"metadata": {"labels": label}})
        await wait_for(lambda: len(_pods(api)) == 2)
        released = api.objects(PODS)[f"default/{name}"]["metadata"]
        assert not released.get("ownerReferences") and not released.get("finalizers")


async def test_suspended_job_has_no_pods_until_it_is_resumed() -> None:
    """INV-BJ-8."""
    async with _cluster() as api:
        manual = {"manualSelector": True, "selector": {"matchLabels": LABELS}}
        await api.create(
            BATCH_JOBS, {"metadata": {"name": "j"}, "spec": _job(completions=1)["spec"] | manual}
        )
        await wait_for(lambda: len(_pods(api)) == 1)
        await api.patch(BATCH_JOBS, "j", {"spec": {"suspend": True}})
        await wait_for(lambda: not _pods(api) and "Suspended" in _conditions(api))
        assert "failed" not in _status(api)
        await api.patch(BATCH_JOBS, "j", {"spec": {"suspend": False}})
        await wait_for(lambda: len(_pods(api)) == 1)
