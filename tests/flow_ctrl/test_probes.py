"""Probes of JobFlows on their targets, in a simulated cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.flow_stateful import SETTINGS, TASKS, FlowWorld

from batholith.model.names import JOB_NAME, JOBS, PODS, TASK_SPEC

Json = dict[str, Any]

TCP = {"tcpSocketList": [{"taskName": "t", "port": 80}]}
HTTP = {"httpGetList": [{"port": 80, "path": "/ready"}]}


@pytest.fixture
def world() -> Iterator[FlowWorld]:
    world = FlowWorld()
    for name in "abc":
        world.put_template(name)
    yield world
    world.close()
    assert world.violations == []


def put_flow(world: FlowWorld, probe: Json, *, targets: str = "a") -> None:
    """A flow whose Job b waits for the probe of *targets*."""
    first = [{"name": name} for name in targets]
    waiting = {"name": "b", "dependsOn": {"targets": [*targets], "probe": probe}}
    world.put_flow("f", [*first, waiting])
    settle(world)


def settle(world: FlowWorld) -> None:
    world.run(world.pass_time(2 * SETTINGS.probe_interval + 1))
    world.run(world.run_until_quiet())


def job(world: FlowWorld, name: str) -> Json:
    return world.api.objects(JOBS)[f"d/{name}"]


def exists(world: FlowWorld, name: str) -> bool:
    return f"d/{name}" in world.api.objects(JOBS)


def set_phase(world: FlowWorld, name: str, phase: str, **status: Any) -> None:
    world.set_phase(job(world, name), phase, **status)
    settle(world)


@pytest.mark.parametrize("probe", [TCP, HTTP])
def test_quirk_f1_a_job_is_created_once_the_pods_of_its_targets_respond(
    world: FlowWorld, probe: Json
) -> None:
    """INV-JF-2: the target need not complete."""
    put_flow(world, probe)
    set_phase(world, "f-a", "Running")
    world.put_pod(job(world, "f-a"), "f-a")
    settle(world)
    assert world.network.requests["f-a"] > 1
    assert not exists(world, "f-b")
    world.network.listening.add("f-a")
    settle(world)
    assert exists(world, "f-b")
    assert world.passed(world.flows["f"], "b", "a")
    sent = world.network.requests.total()
    settle(world)
    assert world.network.requests.total() == sent, "no flow waits any more"


def test_requests_go_only_to_running_pods_of_the_job_and_the_task(world: FlowWorld) -> None:
    """INV-JF-5."""
    put_flow(world, TCP)
    target = job(world, "f-a")
    foreign = {"metadata": {"name": "f-a", "uid": "another"}}
    world.put_pod(foreign, "of-another-uid")
    world.put_pod(target, "of-another-task", labels={JOB_NAME: "f-a", TASK_SPEC: "other"})
    world.put_pod(target, "of-no-job", ownerReferences=[])
    world.put_pod(target, "terminating", deletionTimestamp="2026-01-01T00:00:00Z")
    world.api.put(PODS, "f-a-pending", metadata={"labels": {JOB_NAME: "f-a"}}, status={})
    settle(world)
    assert not world.network.requests
    world.put_pod(target, "f-a")
    settle(world)
    assert set(world.network.requests) == {"f-a"}


def test_as_many_pods_answer_as_the_task_requires(world: FlowWorld) -> None:
    world.put_template("a", tasks=[{**TASKS[0], "replicas": 3, "minAvailable": 2}])
    put_flow(world, TCP)
    for address in ("1", "2", "3"):
        world.put_pod(job(world, "f-a"), address)
    world.network.listening.add("2")
    settle(world)
    assert not exists(world, "f-b")
    world.network.listening.add("3")
    world.network.answered.add("f-a")  # for the check of the invariant
    settle(world)
    assert exists(world, "f-b")


def test_a_passed_probe_counts_after_a_restart_and_the_end_of_the_target(world: FlowWorld) -> None:
    put_flow(world, TCP, targets="ac")
    world.put_pod(job(world, "f-a"), "f-a")
    world.network.listening |= {"f-a", "f-c"}
    settle(world)
    assert world.passed(world.flows["f"], "b", "a")
    world.run(world.kill())
    world.api.force_delete(PODS, "f-a-f-a")
    set_phase(world, "f-a", "Completed")
    assert (exists(world, "f-b"), world.phase("f")) == (False, "Running")
    world.put_pod(job(world, "f-c"), "f-c")
    settle(world)
    assert exists(world, "f-b")


def test_a_target_that_completes_before_its_probe_passes_fails_the_flow(world: FlowWorld) -> None:
    put_flow(world, TCP)
    set_phase(world, "f-a", "Completed")
    assert (exists(world, "f-b"), world.phase("f")) == (False, "Failed")
    text = "job f-a completed before the probe of b passed"
    assert world.events("ProbeNotPassed") == [text]
    assert world.flows["f"]["status"]["conditions"]["f-a"]["message"] == text


def test_targets_without_the_named_task_must_complete(world: FlowWorld) -> None:
    world.put_template("c", tasks=[{**TASKS[0], "name": "other"}])
    put_flow(world, TCP, targets="ac")
    world.put_pod(job(world, "f-a"), "f-a")
    world.network.listening.add("f-a")
    settle(world)
    assert not exists(world, "f-b")
    world.network.answered.add("f-c")  # for the check of the invariant
    set_phase(world, "f-c", "Completed")
    assert exists(world, "f-b")


def test_a_task_that_no_target_has_is_reported(world: FlowWorld) -> None:
    put_flow(world, {"tcpSocketList": [{"taskName": "absent", "port": 80}]})
    assert world.events("ProbeTaskNotFound") == ["flow b: no target has a task absent"]
    world.network.answered.add("f-a")
    set_phase(world, "f-a", "Completed")
    assert (exists(world, "f-b"), world.phase("f")) == (False, "Running")


def counts(**phases: int) -> Json:
    return {"t": {"phase": phases}}


@pytest.mark.parametrize(
    ("phase", "waits_with", "passes_with"),
    [
        ("Running", counts(Pending=1, Running=1), counts(Running=2)),
        ("Running", counts(Failed=1, Running=1), counts(Running=1, Succeeded=1)),
        ("Succeeded", counts(Running=1, Succeeded=1), counts(Succeeded=2)),
        ("Completed", counts(Running=1, Succeeded=1), counts(Succeeded=2)),
        ("Failed", counts(Running=2), counts(Failed=2)),
    ],
)
def test_a_task_status_is_read_from_the_job(
    world: FlowWorld, phase: str, waits_with: Json, passes_with: Json
) -> None:
    world.put_template("a", tasks=[{**TASKS[0], "replicas": 2}])
    put_flow(world, {"taskStatusList": [{"taskName": "t", "phase": phase}]})
    world.network.answered.add("f-a")  # for the check of the invariant
    set_phase(world, "f-a", "Running", taskStatusCount=waits_with)
    assert not exists(world, "f-b")
    set_phase(world, "f-a", "Running", taskStatusCount=passes_with)
    assert exists(world, "f-b")
    assert not world.network.requests


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Completed"])
@pytest.mark.parametrize("deleted", [False, True])
def test_the_pods_of_a_completed_job_have_run_and_succeeded(
    world: FlowWorld, phase: str, deleted: bool
) -> None:
    put_flow(world, {"taskStatusList": [{"phase": phase}]})
    world.network.answered.add("f-a")
    world.set_phase(job(world, "f-a"), "Completed")
    if deleted:
        world.remove_job(job(world, "f-a"))
    settle(world)
    assert exists(world, "f-b")


def test_all_conditions_on_a_target_are_required(world: FlowWorld) -> None:
    put_flow(world, TCP | {"taskStatusList": [{"phase": "Running"}]})
    world.put_pod(job(world, "f-a"), "f-a")
    world.network.listening.add("f-a")
    settle(world)
    assert not exists(world, "f-b")
    world.network.listening.clear()
    set_phase(world, "f-a", "Running", taskStatusCount=counts(Running=1))
    assert exists(world, "f-b"), "the request has passed before"


def test_requests_end_with_the_flow(world: FlowWorld) -> None:
    put_flow(world, TCP)
    world.put_pod(job(world, "f-a"), "f-a")
    settle(world)
    assert world.network.requests
    world.remove_flow("f")
    settle(world)
    sent = world.network.requests.total()
    settle(world)
    assert world.network.requests.total() == sent
