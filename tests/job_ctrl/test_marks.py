"""Executed Commands and restart targets are marks in the status, independent of its message."""

import msgspec
import pytest
from support.job_simulator import JobSimulator, running_world
from support.jobs import job, job_view, make_command, pod_info, task

from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.effects import DeleteCommand, SetStatus
from batholith.model.controlled_resources import (
    COMMAND_PHASE,
    COMMAND_UID,
    RESTART_TARGET,
)
from batholith.model.job import JobState, JobStatus
from batholith.model.pod import PodPhase

RUNNING = JobStatus(state=JobState(phase="Running"), min_available=2)
CUT = {"totalPartitions": 2, "partitionSize": 1}


def with_message(world: JobSimulator, message: str) -> None:
    """Change the message of the status, as a later version or another language may."""
    assert world.job is not None
    state = msgspec.structs.replace(world.job.status.state, message=message)
    status = msgspec.structs.replace(world.job.status, state=state)
    world.job = msgspec.structs.replace(world.job, status=status)


def test_mark_of_a_command_is_in_the_write_that_executes_it() -> None:
    """INV-VC-1."""
    seen = job_view(job(status=RUNNING), pod_info("t-0"), pod_info("t-1"))
    written, *_ = decide(seen, make_command("AbortJob"))
    assert isinstance(written, SetStatus)
    assert written.status.state.phase == "Aborting"
    assert written.status.controlled_resources == {
        COMMAND_UID: "uid-c",
        COMMAND_PHASE: "Aborting",
    }


def test_executed_command_is_only_deleted_whatever_the_message_is() -> None:
    """INV-VC-1: a controller that stops between the write and the deletion."""
    world = running_world(job())
    world.send_command("RestartJob", settle=False)
    (command,) = world.commands
    (written, *_) = decide(world.job_view(), command)
    assert isinstance(written, SetStatus) and world.job is not None
    world.job = msgspec.structs.replace(world.job, status=written.status)
    with_message(world, "Befehl ausgeführt")
    world.crash()
    assert decide(world.job_view(), command) == [DeleteCommand()]
    world.run_until_stable()
    assert world.status.version == 1


def test_uid_in_another_text_is_not_an_executed_command() -> None:
    state = JobState(phase="Running", message="PodFailed of j-uid-c")
    seen = job_view(job(status=msgspec.structs.replace(RUNNING, state=state)))
    effects = decide(seen, make_command("AbortJob"))
    assert isinstance(effects[0], SetStatus)


def test_marks_do_not_accumulate() -> None:
    world = running_world(job())
    for action in ("AbortJob", "ResumeJob") * 5:
        world.send_command(action)
        world.finish_deletions()
        assert world.status.controlled_resources.keys() == {COMMAND_UID, COMMAND_PHASE}


@pytest.mark.parametrize(
    ("action", "mark"),
    [
        ("RestartTask", "task/t"),
        ("RestartPod", "pod/j-t-1"),
        ("RestartPartition", "partition/t/1"),
        ("RestartJob", None),
    ],
)
def test_mark_of_a_restart_target_lasts_until_the_job_runs(action: str, mark: str | None) -> None:
    tasks = (task("t", 2, partitionPolicy=CUT), task("u", 1))
    world = running_world(job(*tasks, policies=[{"action": action, "event": "PodFailed"}]))
    world.report_pod("t-1", PodPhase.FAILED)
    world.step()
    assert world.status.state.phase == "Restarting"
    assert world.status.controlled_resources.get(RESTART_TARGET) == mark
    with_message(world, "PodFailed")
    world.crash()  # a new leader continues the same restart
    world.run_until_stable()
    deleted = {name for name, pod in world.pods.items() if pod.terminating}
    assert ("j-u-0" in deleted) == (action == "RestartJob")
    assert "j-t-1" in deleted
    assert ("j-t-0" in deleted) == (action in ("RestartTask", "RestartJob"))
    world.finish_deletions(settle=False)
    for _ in range(3):
        world.run_until_stable()
        if world.podgroup is not None:
            world.admit(settle=False)
    world.run_until_stable()
    assert world.status.state.phase == "Pending"
    assert world.status.controlled_resources.get(RESTART_TARGET) == mark
    for name in list(world.pods):
        world.report_pod(name.removeprefix("j-"), PodPhase.RUNNING)
    world.run_until_stable()
    assert world.status.state.phase == "Running"
    assert RESTART_TARGET not in world.status.controlled_resources


def test_other_cause_of_a_phase_replaces_the_restart_target() -> None:
    world = running_world(
        job(task("t", 2), policies=[{"action": "RestartPod", "event": "PodFailed"}])
    )
    world.report_pod("t-1", PodPhase.FAILED)
    world.step()
    assert RESTART_TARGET in world.status.controlled_resources
    world.send_command("AbortJob", settle=False)
    world.step()
    assert world.status.state.phase == "Aborting"
    assert RESTART_TARGET not in world.status.controlled_resources
