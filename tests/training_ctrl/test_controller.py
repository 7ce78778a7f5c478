"""The training controller against an in-process API server."""

import asyncio
import tracemalloc
from typing import Any

import pytest
from support.polling import wait_for
from support.running_controller import FakeRecorder, running
from support.training_harness import (
    PYTORCHJOBS,
    RESOURCES,
    TrainingApi,
    TrainingHarness,
    definition,
    job,
    replica,
)
from support.training_manifests import REQUIRED

from batholith.model.names import CRDS, PODGROUPS, PODS, SERVICES
from batholith.testing import RequestMatcher
from batholith.training_ctrl.restarts import ANNOTATION
from batholith.training_ctrl.settings import UnknownKindError

PYTORCH, TF = "PyTorchJob", "TFJob"


def pytorch(name: str = "j", *, workers: int = 1, policy: str = "", **run_policy: Any) -> Any:
    return job(
        PYTORCH,
        name,
        run_policy=run_policy,
        Master=replica(PYTORCH, policy=policy),
        Worker=replica(PYTORCH, workers, policy=policy),
    )


# Who owns a job.


async def test_job_of_another_controller_is_not_written(world: TrainingHarness) -> None:
    """INV-TJ-11."""
    async with running(world.controller()):
        await world.create(pytorch("theirs", managedBy="kueue.x-k8s.io/multikueue"))
        await world.create(pytorch("ours", managedBy="kubeflow.org/training-operator"))
        await wait_for(lambda: world.is_true("Created", PYTORCH, "ours"))
    assert world.status(PYTORCH, "theirs") == {}
    assert not any("theirs" in name for name in world.pods)
    assert not [each for each in world.recorder.events if each[1] == "theirs"]


async def test_new_controller_writes_nothing_and_records_no_event(world: TrainingHarness) -> None:
    """INV-TJ-12."""
    async with running(world.controller()):
        await world.create(pytorch(policy="Never"))
        await wait_for(lambda: len(world.pods) == len(world.services) == 2)
        await world.phase("Running")
        await wait_for(lambda: world.count(PYTORCH, "Worker", "active") == 1)
    writes, world.recorder = world.api.writes(), FakeRecorder()
    async with running(world.controller(registry=None)):
        await world.clock.advance(30)
    assert world.api.writes() == writes
    assert world.recorder.events == []


async def test_terminating_job_gets_no_children(world: TrainingHarness) -> None:
    """INV-TJ-13."""
    body = pytorch()
    body["metadata"]["finalizers"] = ["example.com/wait"]
    await world.create(body)
    await world.api.delete(PYTORCHJOBS, "j", namespace="d")
    async with running(world.controller()):
        await world.create(pytorch("other"))
        await wait_for(lambda: len(world.pods) == 2)
    assert not any(name.startswith("j-") for name in world.pods + world.services)
    assert world.status(PYTORCH) == {}


async def test_children_of_a_deleted_job_are_collected() -> None:
    """INV-TJ-13: after background deletion."""
    async with TrainingApi(PYTORCHJOBS, collect_garbage=True) as api, api.client() as client:
        world = TrainingHarness(api, client)
        async with running(world.controller(gang_scheduler_name="volcano")):
            await world.create_admitted(pytorch())
            await wait_for(lambda: len(world.pods) == len(world.services) == 2)
            await api.delete(PYTORCHJOBS, "j", namespace="d")
            await wait_for(lambda: not (world.pods or world.services or world.names(PODGROUPS)))


# Kinds.


async def test_missing_definition_disables_its_kind_until_it_is_installed() -> None:
    async with TrainingApi(PYTORCHJOBS) as api, api.client() as client:
        world = TrainingHarness(api, client)
        async with running(world.controller()):
            await world.create(pytorch())
            await wait_for(lambda: len(world.pods) == 2)
            assert world.metric("batholith_training_kind_served", kind=PYTORCH) == 1
            assert world.metric("batholith_training_kind_served", kind=TF) == 0
            await api.create(CRDS, definition(RESOURCES[TF]), namespace="")
            await wait_for(lambda: _is_served(api, TF))
            await world.create(job(TF, "t", Worker=replica(TF)))
            await world.clock.advance(11)
            await wait_for(lambda: "t-worker-0" in world.pods)
            assert world.metric("batholith_training_kind_served", kind=TF) == 1
            await api.delete(CRDS, f"{RESOURCES[TF].plural}.kubeflow.org", namespace="")
            await wait_for(lambda: not _is_served(api, TF))
            await world.clock.advance(11)
            await wait_for(lambda: world.metric("batholith_training_kind_served", kind=TF) == 0)
            await world.create(pytorch("again"))
            await wait_for(lambda: "again-master-0" in world.pods)


def _is_served(api: TrainingApi, kind: str) -> bool:
    try:
        api.objects(RESOURCES[kind])
    except LookupError:
        return False
    return True


async def test_only_enabled_kinds_are_reconciled(world: TrainingHarness) -> None:
    with pytest.raises(UnknownKindError, match="nosuch"):
        world.controller(kinds=["nosuch"], registry=None)
    async with running(world.controller(kinds=["pytorchjob"])):
        await world.create(job(TF, "t", Worker=replica(TF)))
        await world.create(pytorch())
        await wait_for(lambda: len(world.pods) == 2)
    assert world.status(TF, "t") == {}


async def test_standby_writes_nothing_until_it_is_elected(world: TrainingHarness) -> None:
    ready, elected = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(world.controller().run(ready=ready, elected=elected))
    await ready.wait()
    await world.create(pytorch())
    await world.clock.advance(20)
    assert world.api.writes() == 0
    elected.set()
    await wait_for(lambda: len(world.pods) == 2)
    task.cancel()
    await asyncio.wait([task])


# Children.


async def test_matching_orphan_is_adopted_and_relabelled_pod_released(
    world: TrainingHarness,
) -> None:
    async with running(world.controller()):
        await world.create(pytorch())
        await wait_for(lambda: len(world.pods) == len(world.services) == 2)
        labels = world.pod("j-worker-0")["metadata"]["labels"]
        await world.api.patch(
            PODS, "j-worker-0", {"metadata": {"ownerReferences": None}}, namespace="d"
        )
        await wait_for(lambda: world.pod("j-worker-0")["metadata"].get("ownerReferences"))
        other = {"training.kubeflow.org/job-name": "another"}
        await world.api.patch(PODS, "j-worker-0", {"metadata": {"labels": other}}, namespace="d")
        await wait_for(lambda: not world.pod("j-worker-0")["metadata"].get("ownerReferences"))
        taken = "FailedCreatePod"
        await wait_for(lambda: taken in world.reasons())
        await world.api.delete(PODS, "j-worker-0", namespace="d")
        await world.advance_until(lambda: "j-worker-0" in world.pods)
    assert world.pod("j-worker-0")["metadata"]["labels"] == labels


async def test_a_pod_of_another_namespace_with_the_uid_of_the_job_is_not_its_own(
    world: TrainingHarness,
) -> None:
    """The API server stores owner references unchecked."""
    await world.create(pytorch())
    async with running(world.controller()):
        await wait_for(lambda: len(world.pods) == 2)
    meta = world.pod("j-worker-0")["metadata"]
    forged = {name: meta[name] for name in ("labels", "ownerReferences")}
    await world.api.delete(PODS, "j-worker-0", namespace="d")
    world.api.put(
        PODS,
        "j-worker-0",
        namespace="mallory",
        metadata={**forged, "uid": "forged"},
        status={"phase": "Failed"},
    )
    async with running(world.controller(registry=None)):
        await world.advance_until(lambda: "d/j-worker-0" in world.api.objects(PODS))
    assert world.count(PYTORCH, "Worker", "failed") == 0
    assert "mallory/j-worker-0" in world.api.objects(PODS)


async def test_pod_without_labels_is_released(world: TrainingHarness) -> None:
    """The informer does not report it, but it blocks the name."""
    async with running(world.controller()):
        await world.create(pytorch())
        await wait_for(lambda: len(world.pods) == 2)
        name = {"training.kubeflow.org/job-name": None}
        await world.api.patch(PODS, "j-worker-0", {"metadata": {"labels": name}}, namespace="d")
        await wait_for(lambda: not world.pod("j-worker-0")["metadata"].get("ownerReferences"))


async def test_deleted_objects_are_created_again_at_once(world: TrainingHarness) -> None:
    async with running(world.controller(gang_scheduler_name="volcano")):
        await world.create_admitted(pytorch())
        await wait_for(lambda: len(world.pods) == len(world.services) == 2)
        for resource, name in ((SERVICES, "j-worker-0"), (PODGROUPS, "j")):
            uid = world.api.objects(resource)[f"d/{name}"]["metadata"]["uid"]
            await world.api.delete(resource, name, namespace="d")
            await wait_for(lambda: f"d/{name}" in world.api.objects(resource))  # noqa: B023
            assert world.api.objects(resource)[f"d/{name}"]["metadata"]["uid"] != uid


async def test_pod_of_another_owner_has_the_name(world: TrainingHarness) -> None:
    container = {"name": "c", "image": "i"}
    world.api.put(PODS, "j-master-0", spec={"containers": [container]})
    async with running(world.controller()):
        await world.create(pytorch())
        await wait_for(lambda: "FailedCreatePod" in world.reasons())
        await wait_for(lambda: "j-worker-0" in world.pods, "other types are not affected")
        await wait_for(lambda: world.is_true("Created", PYTORCH))
        assert "startTime" not in world.status(PYTORCH), "the first pass is not complete"
        world.api.remove(PODS, "j-master-0")
        await world.advance_until(lambda: "startTime" in world.status(PYTORCH))
    assert world.pod("j-master-0")["metadata"]["ownerReferences"]


@pytest.mark.parametrize("path", ["/pods", "/services", "/status", "/podgroups"])
async def test_lost_responses_are_no_duplicates(world: TrainingHarness, path: str) -> None:
    """INV-TJ-2: a write that took effect without a response is not repeated."""
    matcher = RequestMatcher(path=path, count=2, where=lambda request: request.method != "GET")
    world.api.faults.lose_response(matcher)
    async with running(world.controller(gang_scheduler_name="volcano")):
        await world.create(pytorch())
        await world.advance_until(lambda: world.names(PODGROUPS) == ["j"])
        world.admit()
        await world.advance_until(lambda: "startTime" in world.status(PYTORCH))
    assert world.pods == world.services == ["j-master-0", "j-worker-0"]
    assert world.api.created(PODS) == world.api.created(SERVICES) == 2
    assert world.api.created(PODGROUPS) == 1


# Restarts and limits.


async def test_restarts_are_counted_across_controllers(world: TrainingHarness) -> None:
    """INV-TJ-7: as many recreations as retryable failures, the last of which ends the job."""
    await world.create(pytorch(policy="ExitCode", backoffLimit=3))
    for number in range(3):
        async with running(world.controller(registry=None)):
            await wait_for(lambda: "j-worker-0" in world.pods)
            await world.phase("Running", "j-worker-0")
            await wait_for(lambda: world.count(PYTORCH, "Worker", "active") == 1)
            await world.phase("Failed", "j-worker-0", code=143)
            await wait_for(lambda: _count(world) == number + 1)  # noqa: B023
            await wait_for(lambda: "j-worker-0" not in world.pods or _age(world, "j-worker-0"))
    async with running(world.controller(registry=None)):
        await wait_for(lambda: world.is_true("Failed", PYTORCH))
        await wait_for(lambda: world.pods == [])
    created = [
        change.object["metadata"]["uid"]
        for change in world.api.changes
        if change.type == "ADDED"
        and change.object["metadata"]["name"] == "j-worker-0"
        and change.resource == PODS
    ]
    assert len(created) == 3


def _count(world: TrainingHarness) -> int:
    annotations = world.job(PYTORCH)["metadata"].get("annotations", {})
    return int(annotations.get(ANNOTATION, '"count":0,').partition('"count":')[2].split(",")[0])


def _age(world: TrainingHarness, pod: str) -> bool:
    """Whether the pod has not failed: it was created again."""
    return bool(world.pod(pod).get("status", {}).get("phase") != "Failed")


async def test_deleted_pods_that_fail_a_job_are_deleted_by_the_next_controller(
    world: TrainingHarness,
) -> None:
    """The limit is recorded before the first deletion: later no pod shows it."""
    async with running(world.controller(registry=None)):
        await world.create(pytorch(policy="OnFailure", backoffLimit=1))
        await wait_for(lambda: len(world.pods) == 2)
        await world.phase("Running")
        await wait_for(lambda: world.is_true("Running", PYTORCH))
        lost = RequestMatcher("delete", PODS, name="j-worker-0", count=None)
        world.api.faults.error(lost, 500)
        await world.restarts("j-master-0", 1)
        await wait_for(lambda: world.pods == ["j-worker-0"])
    assert not world.is_true("Failed", PYTORCH)
    world.api.faults.clear()
    async with running(world.controller(registry=None)):
        await wait_for(lambda: world.is_true("Failed", PYTORCH))
    assert world.pods == world.services == []


# Events and metrics.


async def test_counts_alone_are_written_once_a_second(world: TrainingHarness) -> None:
    body = job(PYTORCH, Master=replica(PYTORCH), Worker=replica(PYTORCH, 8))
    async with running(world.controller(count_interval=1.0)):
        await world.create(body)
        await wait_for(lambda: len(world.pods) == 9 and "startTime" in world.status(PYTORCH))
        await world.phase("Running", "j-master-0")
        await wait_for(lambda: world.is_true("Running", PYTORCH))
        writes = world.api.writes("/status")
        await world.phase("Running", *(f"j-worker-{index}" for index in range(8)))
        await world.create(pytorch("other"))  # reconciled after the pods' events
        await wait_for(lambda: world.is_true("Created", PYTORCH, "other"))
        assert world.count(PYTORCH, "Worker", "active") == 0
        await world.advance_until(lambda: world.count(PYTORCH, "Worker", "active") == 8)
        written = [request for request in world.api.faults.requests if request.name == "j"]
        assert sum(each.subresource == "status" for each in written) <= writes + 1


async def test_invalid_job_is_reported_once(world: TrainingHarness) -> None:
    async with running(world.controller()):
        await world.create(job(PYTORCH, Master=replica(PYTORCH, 2)))
        await wait_for(lambda: "PyTorchJobFailedValidation" in world.reasons())
        await world.api.patch(PYTORCHJOBS, "j", {"metadata": {"labels": {"a": "b"}}}, namespace="d")
        await world.create(pytorch("valid"))
        await wait_for(lambda: world.is_true("Created", PYTORCH, "valid"))
        assert world.reasons().count("PyTorchJobFailedValidation") == 1
        assert world.status(PYTORCH) == {}
        await world.patch(PYTORCH, {"pytorchReplicaSpecs": {"Master": {"replicas": 1}}})
        await wait_for(lambda: "j-master-0" in world.pods)


async def test_events_and_metrics_of_a_job(world: TrainingHarness) -> None:
    body = pytorch(policy="OnFailure", cleanPodPolicy="All")
    body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["restartPolicy"] = "Always"
    async with running(world.controller(gang_scheduler_name="volcano")):
        await world.create_admitted(body)
        await wait_for(lambda: len(world.pods) == 2)
        await world.phase("Running")
        await world.phase("Failed", "j-worker-0", code=1)
        await wait_for(lambda: "PyTorchJobRestarting" in world.reasons())
        await wait_for(lambda: "j-worker-0" in world.pods and _age(world, "j-worker-0"))
        await world.phase("Running", "j-worker-0")
        await world.phase("Succeeded", "j-master-0")
        await wait_for(lambda: not (world.pods or world.services or world.names(PODGROUPS)))
    found = {(type_, reason) for _, _, type_, reason, _ in world.recorder.events}
    assert found == {
        ("Warning", "SetPodTemplateRestartPolicy"),
        ("Normal", "SuccessfulCreatePod"),
        ("Normal", "SuccessfulCreateService"),
        ("Normal", "ExitedWithCode"),
        ("Warning", "PyTorchJobRestarting"),
        ("Normal", "SuccessfulDeletePod"),
        ("Normal", "PyTorchJobSucceeded"),
        ("Normal", "SuccessfulDeleteService"),
        ("Normal", "JobTerminated"),
        ("Normal", "SuccessfulDeletePodGroup"),
    }
    messages = [message for *_, message in world.recorder.events]
    assert "Pod: d.j-worker-0 exited with code 1" in messages
    assert "Created pod: j-master-0" in messages
    labels = {"job_namespace": "d", "framework": "pytorch"}
    jobs = {
        name: world.metric(f"training_operator_jobs_{name}_total", **labels)
        for name in ("created", "successful", "failed", "restarted", "deleted")
    }
    assert jobs == {"created": 1, "successful": 1, "failed": 0, "restarted": 1, "deleted": 0}
    assert world.metric("created_pods_total") == 3
    assert world.metric("deleted_pods_total") == 3
    assert world.metric("failed_pods_total") == 1
    assert world.metric("succeeded_service_creation_total") == 2
    assert world.metric("created_pod_groups_total") == 1
    assert world.metric("deleted_pod_groups_total") == 1


async def test_abnormal_pod_is_reported_when_it_changes(world: TrainingHarness) -> None:
    async with running(world.controller()):
        await world.create(pytorch())
        await wait_for(lambda: len(world.pods) == 2)
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        status = {"name": "pytorch", "state": waiting, "image": "", "imageID": "", "ready": False}
        for restarts in (0, 1):
            body = {"containerStatuses": [{**status, "restartCount": restarts}]}
            await world.api.patch(
                PODS, "j-worker-0", {"status": body}, namespace="d", subresource="status"
            )
            await wait_for(lambda: "ImagePullBackOff" in world.reasons())
        await world.phase("Running")
        await wait_for(lambda: world.is_true("Running", PYTORCH))
    assert world.reasons().count("ImagePullBackOff") == 1


async def test_another_scheduler_in_a_template_is_reported(world: TrainingHarness) -> None:
    body = job(PYTORCH, Master=replica(PYTORCH, schedulerName="mine"))
    async with running(world.controller(gang_scheduler_name="volcano")):
        await world.create_admitted(body)
        await wait_for(lambda: world.pods == ["j-master-0"])
    assert world.pod("j-master-0")["spec"]["schedulerName"] == "mine"
    assert world.reasons().count("SetPodTemplateSchedulerName") == 1


@pytest.mark.parametrize("kind", sorted(RESOURCES))
async def test_a_stored_job_with_too_many_pods_fails_before_they_are_listed(kind: str) -> None:
    types: Any = {each: replica(kind) for each in REQUIRED.get(kind, ())}
    types["Worker"] = replica(kind, 2**31 - 1)
    async with TrainingApi(RESOURCES[kind]) as api, api.client() as client:
        world = TrainingHarness(api, client)
        await world.create(job(kind, **types))
        tracemalloc.start()
        try:
            async with running(world.controller(gang_scheduler_name="volcano")):
                await wait_for(lambda: world.is_true("Failed", kind))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 32 * 2**20
        assert "at most 100000" in world.status(kind)["conditions"][-1]["message"]
        assert world.pods == world.services == world.names(PODGROUPS) == []
