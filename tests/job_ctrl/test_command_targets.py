"""Commands that restart a task, a pod or a partition, and the results of operations."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.job_simulator import JobSimulator
from support.jobs import job, make_command, task

from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.effects import DeleteCommand, SetStatus
from batholith.machinery.reconcile.events import Event
from batholith.model.controlled_resources import (
    MAX_OPERATIONS,
    OPERATIONS,
    OperationResult,
    operation_results,
)
from batholith.model.job import JobStatus
from batholith.model.pod import PodPhase

PARTITIONS = {"totalPartitions": 2, "partitionSize": 1}


def running_world(**spec: Any) -> JobSimulator:
    tasks = (task("t", 2, partitionPolicy=PARTITIONS), task("u", 1))
    world = JobSimulator(job(*tasks, **spec))
    world.run_until_stable()
    world.admit(settle=False)
    run_all(world)
    return world


def run_all(world: JobSimulator) -> None:
    """Let the job restart until all its pods run."""
    for _ in range(3):
        world.run_until_stable()
        world.finish_deletions(settle=False)
    for name, pod in list(world.pods.items()):
        if pod.phase is PodPhase.PENDING:
            world.report_pod(name.removeprefix("j-"), PodPhase.RUNNING)
    world.run_until_stable()


def generations(world: JobSimulator) -> dict[str, int]:
    """How often each pod was created."""
    return {name: number for (name, _), number in sorted(world.created.items())}


@pytest.mark.parametrize(
    ("action", "target", "restarted"),
    [
        ("RestartTask", {"task": "t"}, {"t-0", "t-1"}),
        ("RestartPod", {"pod": "j-t-1"}, {"t-1"}),
        ("RestartPartition", {"task": "t", "partition": "1"}, {"t-1"}),
    ],
)
def test_command_restarts_its_target_alone(
    action: str, target: dict[str, str], restarted: set[str]
) -> None:
    world = running_world()
    world.send_command(action, operation="op", **target, settle=False)
    world.crash()
    world.step()
    world.crash()  # the new leader continues from the status
    run_all(world)
    assert generations(world) == {
        name: 2 if name in restarted else 1 for name in ("t-0", "t-1", "u-0")
    }
    status = world.status
    assert (status.state.phase, status.retry_count, status.version) == ("Running", 1, 0)
    assert operation_results(status) == (OperationResult("op", True, "Restarting"),)


@pytest.mark.parametrize(
    ("action", "target", "reason"),
    [
        ("RestartTask", {}, "it names no task (annotation batholith.io/task)"),
        ("RestartPod", {}, "it names no pod (annotation batholith.io/pod)"),
        ("RestartPartition", {"task": "t"}, "it names no partition (annotation"),
        ("RestartPartition", {"partition": "1"}, "it names no task (annotation"),
        ("RestartTask", {"task": "x"}, "the job has no pods of task x"),
        ("RestartPod", {"pod": "j-t-7"}, "the job has no pods of pod j-t-7"),
        ("RestartPartition", {"task": "t", "partition": "9"}, "the job has no pods of partition"),
        ("RestartPartition", {"task": "u", "partition": "0"}, "the job has no pods of partition"),
        ("RestartPod", {"task": "t", "pod": "j-t-1"}, "it must not name a task"),
        ("RestartJob", {"pod": "j-t-1"}, "it must not name a pod"),
        ("AbortJob", {"task": "t"}, "it must not name a task"),
        ("AbortJob", {"job_uid": "other"}, "it is for an earlier job of this name"),
        ("ResumeJob", {}, "it changes nothing in phase Running"),
    ],
)
def test_quirk_11_command_that_cannot_be_executed_reports_why(
    action: str, target: dict[str, str], reason: str
) -> None:
    world = running_world()
    before = world.status
    world.send_command(action, operation="op", **target, settle=False)
    (command,) = world.commands
    written, event, _, last = decide(world.job_view(), command)
    assert isinstance(event, Event) and reason in event.message
    assert last == DeleteCommand()
    assert isinstance(written, SetStatus)
    (result,) = operation_results(written.status)
    assert not result.executed and reason in result.text
    world.run_until_stable()
    kept = {**world.status.controlled_resources}
    del kept[OPERATIONS]
    assert msgspec.structs.replace(world.status, controlled_resources=kept) == before
    assert generations(world) == {"t-0": 1, "t-1": 1, "u-0": 1}


def test_partial_restarts_in_quick_succession_replace_all_their_pods() -> None:
    """The second one replaces the target of the first, whose pods are deleted before."""
    world = running_world(maxRetry=9)
    for pod in ("j-t-0", "j-t-1", "j-u-0"):
        world.send_command("RestartPod", pod=pod, operation=pod, settle=False)
    run_all(world)
    assert generations(world) == {"t-0": 2, "t-1": 2, "u-0": 2}
    assert [each.executed for each in operation_results(world.status)] == [True] * 3


def test_restart_of_a_pod_during_a_restart_of_the_job_is_not_executed() -> None:
    world = running_world()
    world.send_command("RestartJob", settle=False)
    world.send_command("RestartPod", pod="j-t-0", operation="op")
    (result,) = operation_results(world.status)
    assert not result.executed and "being deleted" in result.text


@pytest.mark.parametrize("action", ["RestartJob", "ResumeJob"])
def test_command_that_is_created_again_for_an_operation_is_only_deleted(action: str) -> None:
    """The REST API creates it again if it crashed before it knew of the first one."""
    world = running_world()
    world.send_command(action, operation="op", settle=False)
    run_all(world)
    before = world.status
    world.crash()
    again = make_command(action, "another", operation="op")
    assert decide(world.job_view(), again) == [DeleteCommand()]
    assert world.status == before


@given(st.lists(st.sampled_from(["RestartJob", "AbortJob", "ResumeJob"]), max_size=12))
@settings(max_examples=examples(20))
def test_the_last_results_are_kept_in_order(actions: list[str]) -> None:
    world = running_world(maxRetry=99)
    for number, action in enumerate(actions):
        world.send_command(action, operation=str(number))
        world.finish_deletions(settle=False)
    kept = [each.operation for each in operation_results(world.status)]
    assert kept == [str(number) for number in range(len(actions))][-MAX_OPERATIONS:]


@pytest.mark.parametrize("mark", ["", "no JSON", "[1]", '[["a"]]', "{}"])
def test_results_that_another_client_wrote_count_as_none(mark: str) -> None:
    assert operation_results(JobStatus(controlled_resources={OPERATIONS: mark})) == ()
