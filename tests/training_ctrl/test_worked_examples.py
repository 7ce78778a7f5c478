"""The worked examples of training jobs against an in-process API server."""

from support.polling import wait_for
from support.running_controller import running
from support.training_harness import TrainingHarness, job, replica

from batholith.model.names import PODGROUPS

TF, PYTORCH = "TFJob", "PyTorchJob"


async def test_worked_example_1_worker_0_completes_a_tfjob(world: TrainingHarness) -> None:
    body = job(
        TF,
        run_policy={"cleanPodPolicy": "Running"},
        PS=replica(TF),
        Worker=replica(TF, 2, policy="Never"),
    )
    pods = ["j-ps-0", "j-worker-0", "j-worker-1"]
    async with running(world.controller()):
        await world.create(body)
        await wait_for(lambda: "startTime" in world.status(TF))
        assert world.pods == world.services == pods
        assert not world.is_true("Running", TF)
        await world.phase("Running")
        await wait_for(lambda: world.is_true("Running", TF))
        await world.phase("Succeeded", "j-worker-0", code=0)
        await wait_for(lambda: world.is_true("Succeeded", TF))
        await wait_for(lambda: world.pods == world.services == ["j-worker-0"])
    assert world.conditions(TF) == {
        "Created": ("True", "TFJobCreated"),
        "Running": ("False", "TFJobRunning"),
        "Succeeded": ("True", "TFJobSucceeded"),
    }
    assert "completionTime" in world.status(TF)


async def test_worked_example_2_all_workers_must_succeed(world: TrainingHarness) -> None:
    body = job(
        TF, successPolicy="AllWorkers", PS=replica(TF), Worker=replica(TF, 2, policy="Never")
    )
    async with running(world.controller()):
        await world.create(body)
        await wait_for(lambda: len(world.pods) == 3)
        await world.phase("Running")
        await world.phase("Succeeded", "j-worker-0")
        await wait_for(lambda: world.count(TF, "Worker", "succeeded") == 1)
        assert not world.is_true("Succeeded", TF)
        await world.phase("Succeeded", "j-worker-1")
        await wait_for(lambda: world.is_true("Succeeded", TF))


async def test_worked_example_3_exit_code_137_restarts_and_1_fails(world: TrainingHarness) -> None:
    body = job(TF, PS=replica(TF), Worker=replica(TF, 2, policy="ExitCode"))
    async with running(world.controller()):
        await world.create(body)
        await wait_for(lambda: len(world.pods) == 3)
        await world.phase("Running")
        await wait_for(lambda: world.is_true("Running", TF))
        old = world.uid("j-worker-1")
        await world.phase("Failed", "j-worker-1", code=137)
        await wait_for(lambda: "TFJobRestarting" in world.reasons())
        await wait_for(lambda: "j-worker-1" in world.pods and world.uid("j-worker-1") != old)
        await world.phase("Running", "j-worker-1")
        await wait_for(lambda: world.is_true("Running", TF))
        assert "Restarting" not in world.conditions(TF)
        await world.phase("Failed", "j-worker-1", code=1)
        await wait_for(lambda: world.is_true("Failed", TF))
    assert "completionTime" in world.status(TF)
    states = [
        each["type"]
        for change in world.api.changes
        if change.object["kind"] == TF
        for each in change.object.get("status", {}).get("conditions", [])[-1:]
    ]
    assert "Restarting" in states, "until worker 0, which runs, is counted again"
    assert world.reasons().count("TFJobRestarting") == 1
    assert world.reasons().count("ExitedWithCode") == 2


async def test_worked_example_4_world_size_and_ranks(world: TrainingHarness) -> None:
    body = job(PYTORCH, nprocPerNode="2", Master=replica(PYTORCH), Worker=replica(PYTORCH, 3))
    async with running(world.controller()):
        await world.create(body)
        await wait_for(lambda: len(world.pods) == 4)
    env = [world.env(pod) for pod in world.pods]
    assert [each["RANK"] for each in env] == ["0", "1", "2", "3"]
    assert {each["WORLD_SIZE"] for each in env} == {"8"}
    assert {each["PET_NNODES"] for each in env} == {"4"}
    assert {each["MASTER_ADDR"] for each in env} == {"j-master-0"}
    assert {each["MASTER_PORT"] for each in env} == {"23456"}


async def test_worked_example_5_workers_are_scaled(world: TrainingHarness) -> None:
    body = job(PYTORCH, Master=replica(PYTORCH), Worker=replica(PYTORCH, 3))
    field = "pytorchReplicaSpecs"
    async with running(world.controller(gang_scheduler_name="volcano")):
        await world.create_admitted(body)
        await wait_for(lambda: len(world.pods) == len(world.services) == 4)
        await world.phase("Running")
        await world.patch(PYTORCH, {field: {"Worker": {"replicas": 1}}})
        small = ["j-master-0", "j-worker-0"]
        await wait_for(lambda: world.pods == world.services == small)
        await wait_for(lambda: world.api.objects(PODGROUPS)["d/j"]["spec"]["minMember"] == 2)
        await world.patch(PYTORCH, {field: {"Worker": {"replicas": 3}}})
        await wait_for(lambda: len(world.pods) == len(world.services) == 4)
        await wait_for(lambda: world.api.objects(PODGROUPS)["d/j"]["spec"]["minMember"] == 4)


async def test_worked_example_6_pods_wait_for_the_gang(world: TrainingHarness) -> None:
    """INV-TJ-5: no pod before the PodGroup is Inqueue."""
    async with running(world.controller(gang_scheduler_name="volcano")):
        await world.create(job(PYTORCH, Master=replica(PYTORCH), Worker=replica(PYTORCH, 2)))
        await wait_for(lambda: world.names(PODGROUPS) == ["j"])
        world.admit(phase="Pending")
        await world.clock.advance(30)
        assert world.pods == world.services == []
        assert "startTime" not in world.status(PYTORCH)
        world.admit()
        await wait_for(lambda: len(world.pods) == 3)
        await wait_for(lambda: "startTime" in world.status(PYTORCH))
    for name in world.pods:
        pod = world.pod(name)
        assert pod["spec"]["schedulerName"] == "volcano"
        annotations = pod["metadata"]["annotations"]
        assert annotations["scheduling.k8s.io/group-name"] == "j"
        assert annotations["volcano.sh/task-spec"] == name.split("-")[1]
    group = world.api.objects(PODGROUPS)["d/j"]
    assert group["spec"]["minMember"] == 3
    assert group["spec"]["queue"] == "default"
    assert [each["controller"] for each in group["metadata"]["ownerReferences"]] == [True]


async def test_worked_example_7_suspended_job_is_resumed(world: TrainingHarness) -> None:
    body = job(PYTORCH, Master=replica(PYTORCH), Worker=replica(PYTORCH))
    async with running(world.controller(gang_scheduler_name="volcano")):
        await world.create_admitted(body)
        await wait_for(lambda: len(world.pods) == 2)
        await world.phase("Running")
        await wait_for(lambda: world.is_true("Running", PYTORCH))
        before = world.status(PYTORCH)["startTime"]
        await world.clock.advance(100)
        await world.patch(PYTORCH, {"runPolicy": {"suspend": True}})
        await wait_for(lambda: world.is_true("Suspended", PYTORCH))
        await wait_for(lambda: not (world.pods or world.services or world.names(PODGROUPS)))
        assert world.conditions(PYTORCH)["Running"] == ("False", "PyTorchJobSuspended")
        assert world.status(PYTORCH)["startTime"] == before
        await world.patch(PYTORCH, {"runPolicy": {"suspend": False}})
        await world.admitted()
        await wait_for(lambda: len(world.pods) == len(world.services) == 2)
        suspended = ("False", "PyTorchJobResumed")
        await wait_for(lambda: world.conditions(PYTORCH)["Suspended"] == suspended)
        assert world.status(PYTORCH)["startTime"] > before
    assert world.reasons().count("PyTorchJobSuspended") == 1
    assert world.reasons().count("PyTorchJobResumed") == 1


async def test_worked_example_8_deadline_passes_without_any_event(world: TrainingHarness) -> None:
    """INV-TJ-15: the deadline takes effect within a second."""
    body = job(PYTORCH, run_policy={"activeDeadlineSeconds": 60}, Master=replica(PYTORCH))
    async with running(world.controller()):
        await world.create(body)
        await wait_for(lambda: "startTime" in world.status(PYTORCH))
        await world.phase("Running")
        await wait_for(lambda: world.is_true("Running", PYTORCH))
        await world.clock.advance(59)
        assert not world.is_true("Failed", PYTORCH)
        await world.clock.advance(2)
        await wait_for(lambda: world.is_true("Failed", PYTORCH))
        await wait_for(lambda: world.pods == world.services == [])
    failed = world.status(PYTORCH)["conditions"][-1]
    assert failed["message"] == (
        "Job j has failed because it was active longer than specified deadline"
    )


async def test_worked_example_9_job_is_deleted_after_its_time_to_live(
    world: TrainingHarness,
) -> None:
    """INV-TJ-15: without any event."""
    async with running(world.controller()):
        for name, ttl in (("now", 0), ("later", 30)):
            policy = {"ttlSecondsAfterFinished": ttl}
            await world.create(job(PYTORCH, name, run_policy=policy, Master=replica(PYTORCH)))
        await wait_for(lambda: len(world.pods) == 2)
        await world.phase("Succeeded")
        await wait_for(lambda: "conditions" not in world.status(PYTORCH, "now"))
        await wait_for(lambda: world.is_true("Succeeded", PYTORCH, "later"))
        await world.clock.advance(29)
        assert world.is_true("Succeeded", PYTORCH, "later")
        await world.clock.advance(2)
        await wait_for(lambda: "conditions" not in world.status(PYTORCH, "later"))
    assert world.reasons().count("SuccessfulDeleteJob") == 2
    states = [
        change.object.get("status", {}).get("conditions", [{}])[-1].get("type")
        for change in world.api.changes
        if change.object["kind"] == PYTORCH and change.object["metadata"]["name"] == "now"
    ]
    assert states[-1] == "Succeeded"


async def test_worked_example_10_backoff_limit_counts_restarts(world: TrainingHarness) -> None:
    async with running(world.controller()):
        for name, limit in (("none", 0), ("three", 3)):
            policy = {"backoffLimit": limit}
            body = job(
                PYTORCH, name, run_policy=policy, Master=replica(PYTORCH, policy="OnFailure")
            )
            await world.create(body)
        await wait_for(lambda: len(world.pods) == 2)
        await world.phase("Running")
        await wait_for(lambda: world.is_true("Running", PYTORCH, "none"))
        await world.restarts("none-master-0", 1)
        await wait_for(lambda: world.is_true("Failed", PYTORCH, "none"))
        await world.restarts("three-master-0", 2)
        await wait_for(lambda: world.is_true("Running", PYTORCH, "three"))
        assert not world.is_true("Failed", PYTORCH, "three")
        await world.restarts("three-master-0", 3)
        await wait_for(lambda: world.is_true("Failed", PYTORCH, "three"))
