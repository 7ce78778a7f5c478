"""Array jobs: few of many pods at a time, and what each member gets."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.job_simulator import JobSimulator
from support.job_stateful import SETTLE_TIMEOUT, JobWorld
from support.jobs import job, task

from batholith.job_ctrl import pods
from batholith.job_ctrl.creation.placement import NotDescribedError, describe
from batholith.job_ctrl.plugins.errors import PluginError
from batholith.job_ctrl.plugins.registry import Registry
from batholith.model.job import Job, JobPhase
from batholith.model.names import JOB_ID, JOBS, MAX_PARALLEL, PODS
from batholith.model.pod import FINISHED, PodPhase


def array(replicas: int, limit: int | None, *, label: str = "", **spec: Any) -> Job:
    """An array job, which is complete when all members have succeeded."""
    members = task("t", replicas, minAvailable=1)
    created = job(members, **{"minAvailable": 1, "minSuccess": replicas, **spec})
    annotations = {} if limit is None else {MAX_PARALLEL: str(limit)}
    labels = {JOB_ID: label} if label else {}
    metadata = msgspec.structs.replace(created.metadata, annotations=annotations, labels=labels)
    return msgspec.structs.replace(created, metadata=metadata)


def started(replicas: int, limit: int | None) -> JobSimulator:
    world = JobSimulator(array(replicas, limit))
    world.run_until_stable()
    world.admit()
    return world


def unfinished(world: JobSimulator) -> list[str]:
    return [
        name for name, pod in world.pods.items() if pod.phase not in FINISHED or pod.terminating
    ]


@given(st.integers(1, 8), st.integers(1, 9), st.data())
def test_the_limit_is_never_exceeded_and_all_members_run(
    replicas: int, limit: int, data: st.DataObject
) -> None:
    world = started(replicas, limit)
    failed: set[str] = set()
    for _ in range(60):
        assert len(unfinished(world)) <= limit
        active = [name.removeprefix("j-") for name in unfinished(world)]
        if not active:
            break
        name = data.draw(st.sampled_from(active))
        match data.draw(st.sampled_from(["run", "succeed", "succeed", "fail", "evict", "crash"])):
            case "run":
                world.report_pod(name, PodPhase.RUNNING)
            case "succeed":
                world.report_pod(name, PodPhase.SUCCEEDED)
            case "fail":
                world.report_pod(name, PodPhase.FAILED)
                failed.add(name)
            case "evict":
                world.evict(name, settle=False)
            case "crash":
                world.crash()
        world.run_until_stable()
    while active := [name.removeprefix("j-") for name in unfinished(world)]:
        assert len(active) <= limit
        world.report_pod(active[0], PodPhase.SUCCEEDED)
        world.run_until_stable()
    assert {name for name, _ in world.created} == {f"t-{index}" for index in range(replicas)}
    assert world.status.state.phase == (JobPhase.FAILED if failed else JobPhase.COMPLETED)


STEPS = st.one_of(
    st.sampled_from(["kill", "slow", "fast", "broken watches", "settle"]),
    st.tuples(st.sampled_from([408, 500, "drop", "lost", "done 504"]), st.integers(1, 3)),
    st.tuples(st.sampled_from(["Running", "Succeeded", "Failed", "evict"]), st.integers(0, 5)),
    st.integers(0, 25),
)
"""What happens: faults of requests for pods, changes of a pod, or some iterations of the loop."""


@given(limit=st.integers(1, 3), steps=st.lists(STEPS, min_size=5, max_size=25))
@settings(max_examples=examples(25), deadline=None)
def test_the_limit_holds_on_the_server_whatever_happens_to_the_controller(
    limit: int, steps: list[Any]
) -> None:
    world = JobWorld()
    most: list[int] = [0]

    def on_event(prefix: str, change: str, new: Any, old: Any) -> None:
        world.transitions.on_event(prefix, change, new, old)
        found = [pod for pod in world.objects_by_key(PODS).values() if not is_finished(pod)]
        most.append(len(found))

    try:
        world.api.on_change = on_event
        spec = {"minAvailable": 1, "minSuccess": 6, "maxRetry": 3, "queue": "q"}
        annotations = {MAX_PARALLEL: str(limit)}
        tasks = [task("t", 6, minAvailable=1)]
        world.put(JOBS, "ns/j", metadata={"annotations": annotations}, spec=spec | {"tasks": tasks})
        world.run(world.run_until_quiet())
        world.admit(job="ns/j")
        for step in steps:
            take(world, step)
            assert max(most) <= limit
        world.api.clear_faults()
        for _ in range(12):
            world.run(world.run_until_quiet())
            world.run(world.pass_time(SETTLE_TIMEOUT))
            for name, pod in world.objects_by_key(PODS).items():
                if not is_finished(pod):
                    world.report_pod(name, "Succeeded")
        world.run(world.run_until_quiet())
        assert max(most) <= limit
        assert all(map(is_finished, world.objects_by_key(PODS).values()))
        job = world.objects_by_key(JOBS)["ns/j"]
        assert job["status"]["state"]["phase"] in ("Completed", "Failed")
        assert world.transitions.violations == []
    finally:
        world.close()


def is_finished(pod: dict[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def take(world: JobWorld, step: Any) -> None:  # noqa: C901 - one branch per step
    """Do one step; a controller that was killed starts again with the next one."""
    if world.controller is None:
        world.run(world.start())
    match step:
        case "kill":
            world.run(world.kill())
        case "slow" | "fast":
            world.api.response_lag = 15 if step == "slow" else 1
        case "broken watches":
            world.api.break_watches()
        case "settle":
            world.run(world.run_until_quiet())
        case (str(phase), int(which)) if phase in ("Running", "Succeeded", "Failed", "evict"):
            pods_ = world.objects_by_key(PODS)
            active = [name for name, pod in pods_.items() if not is_finished(pod)]
            if active and phase == "evict":
                world.evict(active[which % len(active)], force=True)
            elif active:
                world.report_pod(active[which % len(active)], phase)
        case (fault, int(times)):
            world.api.inject_fault(fault, times=times, method="POST", path="/pods")
        case int(iterations):
            world.run(world.run_iterations(iterations))


def test_a_pod_that_is_being_deleted_still_counts() -> None:
    world = started(3, 2)
    for name in unfinished(world):
        world.report_pod(name.removeprefix("j-"), PodPhase.RUNNING)
    world.run_until_stable()
    world.send_command("RestartTask", task="t")
    assert sorted(unfinished(world)) == ["j-t-0", "j-t-1"]
    world.finish_deletions()
    assert sorted(unfinished(world)) == ["j-t-0", "j-t-1"]


def test_a_job_without_the_annotation_has_all_its_pods_at_once() -> None:
    assert len(unfinished(started(5, None))) == 5


def test_a_malformed_limit_that_was_stored_without_admission_limits_nothing() -> None:
    created = array(3, None)
    metadata = msgspec.structs.replace(created.metadata, annotations={MAX_PARALLEL: "few"})
    world = JobSimulator(msgspec.structs.replace(created, metadata=metadata))
    world.run_until_stable()
    world.admit()
    assert len(unfinished(world)) == 3


def test_no_nodes_are_reserved_for_members_that_do_not_exist_yet() -> None:
    limited, other = array(3, 1), array(3, None)
    plugins = Registry().for_job(limited)
    describe(other, plugins, priority_of=lambda _: None)
    with pytest.raises(NotDescribedError):
        describe(limited, plugins, priority_of=lambda _: None)


def variables(created: Job, index: int) -> dict[str, str]:
    pod = pods.build(created, created.spec.tasks[0], index)
    Registry().for_job(created).mutate_pod(pod, created)
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}


def test_members_have_their_index() -> None:
    created = array(4, None, label="100", plugins={"array": ["--indices=1,5-9:2"]})
    assert variables(created, 2) == {
        "SLURM_ARRAY_TASK_ID": "7",
        "SLURM_ARRAY_TASK_COUNT": "4",
        "SLURM_ARRAY_TASK_MIN": "1",
        "SLURM_ARRAY_TASK_MAX": "9",
        "SLURM_ARRAY_TASK_STEP": "1",
        "SLURM_ARRAY_JOB_ID": "100",
        "SLURM_JOB_ID": "102",
        "SLURM_JOBID": "102",
    }


def test_each_combination_of_parameters_is_one_member() -> None:
    arguments = ["--param=lr=0.1,$x", "--param=seed=1..3"]
    created = array(6, None, plugins={"array": arguments})
    found = [variables(created, index) for index in range(6)]
    assert [(each["BATHOLITH_PARAM_lr"], each["BATHOLITH_PARAM_seed"]) for each in found] == [
        ("0.1", "1"), ("0.1", "2"), ("0.1", "3"), ("$$x", "1"), ("$$x", "2"), ("$$x", "3"),
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [[], ["--indices=x"], ["--indices=1", "--param=a=1"]])
def test_malformed_arguments_are_an_error_of_the_plugin(arguments: list[str]) -> None:
    with pytest.raises(PluginError, match="array"):
        variables(array(1, None, plugins={"array": arguments}), 0)
    with pytest.raises(PluginError, match="no member 1"):
        variables(array(2, None, plugins={"array": ["--indices=0"]}), 1)
