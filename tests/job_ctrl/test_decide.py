"""Decisions step by step, and whole lives of jobs without a server."""

import dataclasses
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.job_simulator import JobSimulator, running_world
from support.jobs import NOW, job, job_view, make_command, pod_info, task

from batholith.job_ctrl import podgroups
from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.effects import (
    CreatePodGroup,
    CreatePods,
    DeleteCommand,
    DeleteJob,
    DeletePodGroup,
    DeletePods,
    DropLifecycleEvents,
    Effect,
    SetStatus,
)
from batholith.job_ctrl.status import next_status
from batholith.job_ctrl.tracker.pod_tracker import PodTracker
from batholith.machinery.reconcile.controller import RequeueAfter
from batholith.machinery.reconcile.events import Event
from batholith.model import times
from batholith.model.command import Command
from batholith.model.controlled_resources import COMMAND_PHASE, COMMAND_UID
from batholith.model.job import Action, Job, JobPhase, JobState, JobStatus
from batholith.model.job_podgroup import desired_spec
from batholith.model.job_reasons import Reason
from batholith.model.pod import PodPhase
from batholith.model.podgroup import PodGroupCondition, PodGroupStatus
from batholith.model.recorded import RECORDED

P = PodPhase
RUN = JobStatus(state=JobState(phase="Running"), min_available=2)


def policy(action: str, *events: str, **fields: object) -> dict[str, object]:
    return {"action": action, "events": events, **fields}


def test_new_job_is_pending_before_anything_is_created() -> None:
    (effect,) = decide(job_view(job(), podgroup=None))
    assert isinstance(effect, SetStatus)
    assert effect.immediate
    assert effect.status.state.phase == "Pending"
    assert [one.status for one in effect.status.conditions] == ["Pending"]


def test_in_a_burst_a_new_job_gets_its_podgroup_before_its_status() -> None:
    seen = job_view(job(), podgroup=None, defer_first_status=True)
    written, created = decide(seen)
    assert created == CreatePodGroup(seen.podgroup_spec)
    assert isinstance(written, SetStatus)
    assert not written.immediate
    assert written.status == next_status.initial_status(seen)


@pytest.mark.parametrize(
    ("new", "command"),
    [
        (job(suspend=True), None),
        (job(plugins={"svc": []}), None),
        (job(), make_command("AbortJob")),
    ],
)
def test_in_a_burst_the_status_is_written_first_if_more_depends_on_it(
    new: Job, command: Command | None
) -> None:
    (effect,) = decide(job_view(new, podgroup=None, defer_first_status=True), command)
    assert isinstance(effect, SetStatus)
    assert effect.immediate
    assert effect.status.state.phase == "Pending"


def test_a_job_is_pending_since_its_creation() -> None:
    created = times.format(NOW - timedelta(minutes=5))
    meta = msgspec.structs.replace(job().metadata, creation_timestamp=created)
    new = msgspec.structs.replace(job(), metadata=meta)
    assert next_status.initial_status(job_view(new)).state.last_transition_time == created


def test_a_pending_job_gets_a_podgroup_and_no_pods() -> None:
    pending = job(status=JobStatus(state=JobState(phase="Pending"), min_available=2))
    seen = job_view(pending, podgroup=None)
    assert decide(seen) == [CreatePodGroup(seen.podgroup_spec)]


@pytest.mark.parametrize("phase", ["", "Pending"])
def test_no_pod_before_the_gang_is_admitted(phase: str) -> None:
    """INV-VC-6."""
    pending = job(status=JobStatus(state=JobState(phase="Pending"), min_available=2))
    assert decide(job_view(pending, podgroup=phase)) == []
    assert decide(job_view(pending, podgroup=None, podgroup_terminating=True))
    (create,) = decide(job_view(pending, podgroup="Inqueue"))
    assert create == CreatePods({"t": (0, 1)})


def test_lost_pod_of_an_admitted_gang_is_recreated() -> None:
    seen = job_view(job(status=RUN), pod_info("t-1"), podgroup="Pending")
    assert CreatePods({"t": (0,)}) in decide(seen)


def test_pods_of_older_versions_and_beyond_the_replicas_are_removed_and_not_counted() -> None:
    new = msgspec.structs.replace(RUN, version=1)
    old, kept, over = pod_info("t-0"), pod_info("t-1", version=1), pod_info("t-5", version=1)
    effects = decide(job_view(job(status=new), old, kept, over))
    assert DeletePods((old, over)) in effects
    (written,) = [effect.status for effect in effects if isinstance(effect, SetStatus)]
    assert (written.running, written.terminating) == (1, 2)


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    """INV-OW-4."""
    of = job()
    deleted = msgspec.structs.replace(of.metadata, deletion_timestamp="2026-05-04T12:00:00Z")
    of = msgspec.structs.replace(of, metadata=deleted)
    assert decide(job_view(of)) == []
    order = make_command("AbortJob")
    assert decide(job_view(of), order) == [DeleteCommand()]


def test_a_command_is_carried_out_then_deleted_and_named_in_the_status() -> None:
    seen = job_view(job(status=RUN), pod_info("t-0"), pod_info("t-1"))
    order = make_command("AbortJob")
    written, issued, execute, delete = decide(seen, order)
    assert isinstance(written, SetStatus)
    state = written.status.state
    assert (state.phase, state.reason) == ("Aborting", "AbortJob")
    assert "uid-c" in state.message
    assert [type(issued), type(execute), type(delete)] == [Event, Event, DeleteCommand]


def test_a_command_that_the_status_names_is_only_deleted() -> None:
    """INV-VC-1."""
    world = running_world(job())
    world.send_command("RestartJob", settle=False)
    world.step()
    version = world.status.version
    name = world.status.controlled_resources[COMMAND_UID].removeprefix("uid-")
    done = make_command("AbortJob", name)
    assert decide(world.job_view(), done) == [DeleteCommand()]
    assert world.status.version == version


def test_executed_command_is_deleted_before_the_next_transition() -> None:
    """INV-VC-1: with the mark lost it would be executed again."""
    state = JobState(phase="Aborting", reason="AbortJob")
    marks = {COMMAND_UID: "uid-c", COMMAND_PHASE: "Aborting"}
    status = JobStatus(state=state, version=1, controlled_resources=marks)
    seen = job_view(job(suspend=True, status=status))
    order = make_command("AbortJob")
    assert decide(seen, order) == [DeleteCommand()]


@pytest.mark.parametrize("action", ["DanceJob", "", "ResumeJob", "RestartPod", "SyncQueue"])
def test_command_without_effect_changes_nothing(action: str) -> None:
    effects = decide(job_view(job(status=RUN)), make_command(action))
    assert [type(effect) for effect in effects] == [Event, Event, DeleteCommand]


def test_a_job_runs_through() -> None:
    world = running_world(job())
    for name in ("t-0", "t-1"):
        world.report_pod(name, P.SUCCEEDED)
    world.run_until_stable()
    assert world.phases == ["Pending", "Running", "Completed"]
    status = world.status
    assert (status.succeeded, status.version, status.retry_count) == (2, 1, 0)
    assert status.task_status_count["t"].phase == {"Succeeded": 2}
    assert world.podgroup is None
    assert status.running_duration == "1h0m0s"


def test_counts_are_kept_when_finished_pods_are_deleted() -> None:
    world = running_world(job())
    for name in ("t-0", "t-1"):
        world.report_pod(name, P.SUCCEEDED)
    world.run_until_stable()
    world.evict("t-0")
    assert world.status.succeeded == 2
    assert world.created.total() == 2


@pytest.mark.parametrize(
    ("action", "phases"),
    [
        ("AbortJob", ["Aborting", "Aborted"]),
        ("TerminateJob", ["Terminating", "Terminated"]),
        ("CompleteJob", ["Completing", "Completed"]),
        ("RestartJob", ["Restarting", "Pending", "Running"]),
    ],
)
@pytest.mark.parametrize("how", ["command", "PodFailed", "PodEvicted"])
def test_actions_on_a_running_job(action: str, phases: list[str], how: str) -> None:
    world = running_world(job(policies=[policy(action, how)] if how != "command" else []))
    before = len(world.phases)
    if how == "command":
        world.send_command(action, settle=False)
    elif how == "PodFailed":
        world.report_pod("t-0", P.FAILED, exit_code=1)
    else:
        world.evict("t-0", settle=False)
    world.run_until_stable()
    world.finish_deletions()
    if action == "RestartJob":
        assert world.podgroup is not None
        world.admit()
        for name in ("t-0", "t-1"):
            world.report_pod(name, P.RUNNING)
        world.run_until_stable()
    assert world.phases[before:] == phases
    status = world.status
    assert (status.version, status.retry_count) == (1, int(action == "RestartJob"))
    assert status.state.reason == ("" if action == "RestartJob" else action)
    assert "ExecuteAction" in world.events
    if action != "RestartJob":
        assert world.podgroup is None
        assert len(world.created) == 2
        assert set(world.created.values()) == {1}


def test_an_aborted_job_is_resumed_with_its_finished_pods() -> None:
    world = running_world(job())
    world.report_pod("t-0", P.SUCCEEDED)
    world.run_until_stable()
    world.send_command("AbortJob")
    world.finish_deletions()
    assert world.status.succeeded == 1
    world.send_command("ResumeJob")
    world.admit()
    world.report_pod("t-1", P.RUNNING)
    world.run_until_stable()
    assert world.phases[-5:] == ["Aborting", "Aborted", "Restarting", "Pending", "Running"]
    status = world.status
    assert (status.succeeded, status.running, status.retry_count) == (1, 1, 0)
    assert world.created == {("t-0", 0): 1, ("t-1", 0): 1, ("t-1", 1): 1}


@pytest.mark.parametrize("action", ["RestartPod", "RestartTask"])
def test_partial_restart_keeps_the_other_pods(action: str) -> None:
    tasks = task("bad", 2, policies=[policy(action, "PodFailed")]), task("good", 1)
    world = running_world(job(*tasks, plugins={"svc": []}))
    podgroup = world.podgroup
    world.report_pod("bad-0", P.FAILED, exit_code=1)
    world.run_until_stable()
    world.finish_deletions()
    assert world.phases[-2:] == ["Restarting", "Pending"]
    bad = {"RestartPod": 1, "RestartTask": 2}[action]
    assert world.created == {("bad-0", 0): 2, ("bad-1", 0): bad, ("good-0", 0): 1}
    assert world.podgroup == podgroup
    assert world.has_plugin_objects
    assert (world.status.version, world.status.retry_count) == (0, 1)


def test_restart_of_a_partition_keeps_the_other_partitions() -> None:
    cut = {"totalPartitions": 2, "partitionSize": 2}
    restart = policy("RestartPartition", "PodFailed", "PodEvicted")
    world = running_world(
        job(task("w", 4, partitionPolicy=cut, policies=[restart]), task("other", 1))
    )
    world.report_pod("w-2", P.FAILED, exit_code=1)
    world.run_until_stable()
    world.crash()
    world.finish_deletions()
    assert world.phases[-2:] == ["Restarting", "Pending"]
    assert {name: count for (name, _), count in world.created.items()} == {
        "w-0": 1, "w-1": 1, "w-2": 2, "w-3": 2, "other-0": 1,
    }  # fmt: skip


def test_a_partition_that_a_task_does_not_have_is_not_restarted() -> None:
    world = running_world(job(task("w", 2, policies=[policy("RestartPartition", "PodFailed")])))
    world.report_pod("w-1", P.FAILED, exit_code=1)
    world.run_until_stable()
    assert (world.phases[-1], world.status.retry_count) == ("Running", 0)


def test_job_created_suspended_has_no_pods_until_it_is_resumed() -> None:
    world = JobSimulator(job(suspend=True))
    world.run_until_stable()
    assert world.phases[-1] == "Aborted"
    assert world.status.state.reason == "Suspended"
    assert not world.created and world.podgroup is None
    world.suspend(False)
    world.admit()
    assert world.phases[-2:] == ["Restarting", "Pending"]
    assert sorted(world.pods) == ["j-t-0", "j-t-1"]
    assert world.status.retry_count == 0


@pytest.mark.parametrize("dies", [False, True])
def test_setting_suspend_stops_a_job_and_clearing_it_resumes(dies: bool) -> None:
    world = running_world(job(task("t", 2)))
    world.report_pod("t-0", P.SUCCEEDED)
    world.run_until_stable()
    for wanted in (True, False):
        world.suspend(wanted, settle=False)
        world.step()
        if dies:
            world.crash()
        world.run_until_stable()
        world.finish_deletions()
    assert world.phases[-4:] == ["Aborting", "Aborted", "Restarting", "Pending"]
    world.admit()
    assert {name: count for (name, _), count in world.created.items()} == {"t-0": 1, "t-1": 1}
    assert (world.status.succeeded, world.status.retry_count) == (1, 0)


def test_a_command_does_not_resume_what_is_suspended() -> None:
    world = running_world(job())
    world.send_command("AbortJob")
    world.finish_deletions()
    world.suspend()
    assert (world.phases[-1], world.status.state.reason) == ("Aborted", "Suspended")
    world.send_command("ResumeJob")
    assert world.phases[-1] == "Aborted"
    world.suspend(False)
    assert world.phases[-1] == "Pending"


def test_a_job_that_is_over_is_not_suspended() -> None:
    world = running_world(job())
    for name in ("t-0", "t-1"):
        world.report_pod(name, P.SUCCEEDED)
    world.run_until_stable()
    for wanted in (True, False):
        world.suspend(wanted)
        assert world.phases[-1] == "Completed"


def test_last_restart_fails_the_job_before_anything_is_created() -> None:
    world = running_world(job(maxRetry=1, policies=[policy("RestartPod", "PodFailed")]))
    world.report_pod("t-0", P.FAILED, exit_code=1)
    world.run_until_stable()
    world.finish_deletions()
    assert world.phases[-2:] == ["Restarting", "Failed"]
    state = world.status.state
    assert state.reason == "MaxRetryReached"
    assert state.message.endswith("; retries used up: 1 of 1")
    assert "PodFailed of j-t-0" in state.message
    status = world.status
    assert (status.retry_count, status.failed, world.created.total()) == (1, 1, 2)


def test_lost_pod_without_a_policy_is_recreated() -> None:
    world = running_world(job())
    world.evict("t-0")
    assert world.created["t-0", 0] == 2
    assert world.status.state.phase == "Pending"
    assert world.status.retry_count == 0


def test_pod_deleted_while_no_controller_ran_counts_as_evicted() -> None:
    world = running_world(job(policies=[policy("RestartJob", "PodEvicted")]))
    del world.pods["j-t-0"]
    world.crash()
    world.run_until_stable()
    assert world.phases[-1] == "Restarting"
    assert world.status.retry_count == 1


def test_pod_failed_while_no_controller_ran_matches_policies() -> None:
    world = running_world(job(policies=[policy("AbortJob", "PodFailed")]))
    world.report_pod("t-0", P.FAILED)
    world.crash()
    world.run_until_stable()
    assert world.phases[-1] == "Aborting"


def test_a_completed_task_completes_the_job() -> None:
    tasks = task("a", 2, policies=[policy("CompleteJob", "TaskCompleted")]), task("b", 1)
    world = running_world(job(*tasks))
    world.report_pod("a-0", P.SUCCEEDED)
    world.run_until_stable()
    assert world.phases[-1] == "Running"
    world.report_pod("a-1", P.SUCCEEDED)
    world.run_until_stable()
    assert world.phases[-1] == "Completing"


def test_a_task_whose_containers_are_restarted_too_often_has_failed() -> None:
    tasks = task("a", 2, policies=[policy("AbortJob", "TaskFailed")], maxRetry=3)
    world = running_world(job(tasks))
    for name, restarts in (("a-0", 2), ("a-1", 1)):
        assert world.phases[-1] == "Running"
        world.pods[f"j-{name}"] = dataclasses.replace(world.pods[f"j-{name}"], restarts=restarts)
        world.pod_tracker.update(world.pods[f"j-{name}"])
        world.run_until_stable()
    assert world.phases[-1] == "Aborting"


def test_quirk_44_what_the_scheduler_finds_is_passed_on() -> None:
    def found(kind: str, at: str) -> PodGroupCondition:
        return PodGroupCondition(
            type=kind, status="True", message="no capacity", last_transition_time=at
        )

    world = running_world(job())
    assert world.podgroup is not None
    for conditions, warned in (
        ((found("Unschedulable", "2026-05-04T12:00:01Z"),), True),
        ((found("Unschedulable", "2026-05-04T12:00:01Z"),
          found("Scheduled", "2026-05-04T12:00:02Z")), False),
    ):  # fmt: skip
        status = PodGroupStatus(phase="Running", conditions=conditions)
        world.podgroup = msgspec.structs.replace(world.podgroup, status=status)
        world.events.clear()
        world.run_until_stable()
        assert ("PodGroupPending" in world.events) == warned
        assert world.status.state.reason == "", "it runs"


def test_quirk_44_status_has_the_blocking_reason_until_the_job_runs() -> None:
    world = JobSimulator(job())
    world.run_until_stable()
    world.admit("Pending", settle=False)
    assert world.podgroup is not None
    found = PodGroupCondition(type="Unschedulable", status="True", message="no capacity")
    status = PodGroupStatus(phase="Pending", conditions=(found,))
    world.podgroup = msgspec.structs.replace(world.podgroup, status=status)
    world.run_until_stable()
    state = world.status.state
    assert (state.reason, state.message) == ("PodGroupPending", "no capacity")
    assert state.last_transition_time == world.status.conditions[0].last_transition_time
    world.admit()
    assert (world.status.state.reason, world.status.state.message) == ("", "")


@pytest.mark.parametrize(
    ("action", "result"),
    [
        ("Frobnicate", "there is no such action"),
        ("RestartTask", "it names no task (annotation batholith.io/task)"),
        ("ResumeJob", "it changes nothing in phase Pending"),
        ("SyncJob", "it changes nothing in phase Pending"),
    ],
)
def test_event_explains_why_a_command_has_no_effect(action: str, result: str) -> None:
    world = JobSimulator(job())
    world.run_until_stable()
    assert world.job is not None
    effects = decide(world.job_view(), make_command(action))
    assert effects[0] == Event(Reason.COMMAND_ISSUED, f"Command {action} received: {result}")
    assert effects[-1] == DeleteCommand()


def test_message_of_a_failed_job_names_the_failed_pod() -> None:
    world = running_world(job(task("t", 12)))
    for index in range(12):
        phase = P.FAILED if index in (2, 10) else P.SUCCEEDED
        world.report_pod(f"t-{index}", phase, failure="OOMKilled (exit code 137)")
    world.run_until_stable()
    state = world.status.state
    assert (state.phase, state.reason) == ("Failed", "PodsFailed")
    assert state.message == "2 of 12 pods failed: the first is j-t-2: OOMKilled (exit code 137)"
    world = running_world(job(task("t", 2), minSuccess=3))
    for name in ("t-0", "t-1"):
        world.report_pod(name, P.SUCCEEDED)
    world.run_until_stable()
    assert world.status.state.message == "2 of 2 pods succeeded, which are too few"


def test_unsatisfiable_gang_is_reported_in_status_and_event() -> None:
    world = running_world(job())
    world.report_pod("t-0", P.FAILED)
    world.run_until_stable()
    world.evict("t-1")
    assert world.status.pending == 1
    assert "NotEnoughPods" in world.events
    assert world.status.state.reason == "NotEnoughPods"
    assert "only 1 of 2 pods can still run" in world.status.state.message


def test_one_pods_event_costs_no_walk_over_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running_world(job())

    def refuse(tracker: PodTracker) -> None:
        raise AssertionError("all pods were walked over")

    for walk in ("active", "finished"):
        monkeypatch.setattr(PodTracker, walk, refuse)
    world.report_pod("t-0", P.FAILED)
    assert [type(effect) for effect in decide(world.job_view())] == [DropLifecycleEvents, SetStatus]


def test_policy_with_a_timeout_acts_after_it() -> None:
    world = running_world(job(policies=[policy("TerminateJob", "PodFailed", timeout="5s")]))
    world.report_pod("t-0", P.FAILED)
    world.run_until_stable()
    assert world.phases[-1] == "Running"
    assert world.requeue_after == [5.0]
    world.monotonic_now = 5.0
    world.run_until_stable()
    world.finish_deletions()
    assert world.phases[-2:] == ["Terminating", "Terminated"]
    assert world.created.total() == 2


def test_a_pod_that_starts_in_time_cancels_the_policy_for_pending_ones() -> None:
    """INV-VC-7."""
    world = JobSimulator(
        job(task(replicas=1), policies=[policy("AbortJob", "PodPending", timeout="3s")])
    )
    world.run_until_stable()
    world.admit()
    assert world.requeue_after == [3.0]
    world.report_pod("t-0", P.RUNNING)
    world.monotonic_now = 10.0
    world.run_until_stable()
    assert world.phases == ["Pending", "Running"]


def test_task_starts_after_the_tasks_that_it_depends_on() -> None:
    world = JobSimulator(job(task("a", 1), task("b", 2, dependsOn={"name": ["a"]}), minAvailable=1))
    world.run_until_stable()
    world.admit()
    assert set(world.pods) == {"j-a-0"}
    world.report_pod("a-0", P.RUNNING)
    world.pods["j-a-0"] = pod_info("a-0", uid=world.pods["j-a-0"].uid)
    world.pod_tracker.update(world.pods["j-a-0"])
    world.run_until_stable()
    assert set(world.pods) == {"j-a-0", "j-b-0", "j-b-1"}


def test_min_member_counts_tasks_without_dependencies() -> None:
    """The other pods are created after those run, so they cannot be scheduled together."""

    def gang(*tasks: dict[str, Any], **spec: Any) -> int:
        return desired_spec(job(*tasks, **spec), priorities={}).min_member

    first, then = task("a", 2), task("b", 3, dependsOn={"name": ["a"]})
    assert gang(first, then, minAvailable=5) == 2
    assert gang(first, then, minAvailable=1) == 1
    assert gang(task("a", 2, minAvailable=1), then, minAvailable=4) == 1
    assert gang(task("a", 2, minAvailable=0), then, minAvailable=3) == 3, (
        "it has no dependency to wait for"
    )
    assert gang(first, task("b", 3, dependsOn={"name": ["unknown"]}), minAvailable=5) == 5


def test_scaling_makes_and_removes_the_highest_indices() -> None:
    def scaled(replicas: int) -> Job:
        assert world.job is not None
        spec = job(task(replicas=replicas, minAvailable=1), minAvailable=1).spec
        return msgspec.structs.replace(world.job, spec=spec)

    world = running_world(job(task(replicas=2, minAvailable=1), minAvailable=1))
    world.job = scaled(3)
    world.run_until_stable()
    assert set(world.pods) == {"j-t-0", "j-t-1", "j-t-2"}
    world.job = scaled(1)
    world.run_until_stable()
    world.finish_deletions()
    assert set(world.pods) == {"j-t-0"}
    assert world.phases == ["Pending", "Running"]
    assert world.status.version == 0


def test_deleted_podgroup_is_recreated_and_the_job_continues() -> None:
    world = running_world(job())
    world.podgroup = None
    world.run_until_stable()
    assert world.podgroup is not None
    assert world.phases[-1] == "Running"


def test_a_finished_job_is_removed_when_its_time_is_over() -> None:
    world = running_world(job(ttlSecondsAfterFinished=30))
    for name in ("t-0", "t-1"):
        world.report_pod(name, P.SUCCEEDED)
    world.run_until_stable()
    assert world.requeue_after == [30.0]
    world = running_world(job(ttlSecondsAfterFinished=0))
    for name in ("t-0", "t-1"):
        world.report_pod(name, P.SUCCEEDED)
    world.run_until_stable()
    assert world.job is None


@pytest.mark.parametrize(
    ("recorded", "age", "expected"),
    [
        ("", 30, [RequeueAfter(600)]),
        ("", 0, [RequeueAfter(630)]),
        ("", 630, [DeleteJob()]),
        ("Completed {} 7", 30, [DeleteJob()]),
        ("Completed {} 7", 29, [RequeueAfter(1)]),
        ("Completed 2020-01-01T00:00:00Z 7", 30, [RequeueAfter(600)]),
        ("{}", 30, [RequeueAfter(600)]),
    ],
)
def test_an_expired_job_waits_for_its_record_ten_minutes(
    recorded: str, age: int, expected: list[Effect]
) -> None:
    """An annotation of another end, or one copied from another job, does not count."""
    finished = times.format(NOW - timedelta(seconds=age))
    state = JobState(phase="Completed", last_transition_time=finished)
    ended = job(status=JobStatus(state=state), ttlSecondsAfterFinished=30)
    annotations = {RECORDED: recorded.format(finished)}
    meta = msgspec.structs.replace(ended.metadata, annotations=annotations)
    found = msgspec.structs.replace(ended, metadata=meta)
    waits = decide(job_view(found, podgroup=None, ttl_waits_for_history=True))
    assert [each for each in waits if isinstance(each, RequeueAfter | DeleteJob)] == expected
    if age >= 30:
        assert DeleteJob() in decide(job_view(found, podgroup=None))


def test_quirk_27_old_podgroup_is_deleted_before_a_restarted_job_creates_a_new_one() -> None:
    world = running_world(job())
    world.send_command("RestartJob", settle=False)
    world.step()
    effects = [effect for _ in range(2) for effect in _step(world)]
    kinds = [type(effect) for effect in effects]
    assert kinds.index(DeletePods) < kinds.index(DeletePodGroup)


def _step(world: JobSimulator) -> list[Effect]:
    effects = decide(world.job_view())
    world.step()
    return effects


P_ENDED = {P.SUCCEEDED, P.FAILED}
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "fail",
                "succeed",
                "run",
                "evict",
                "reap",
                "admit",
                "crash",
                "suspend",
                "go on",
                *Action,
            ]
        ),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    max_size=30,
)
POLICIES = st.lists(
    st.builds(
        policy,
        st.sampled_from(
            [
                "AbortJob",
                "RestartJob",
                "RestartPod",
                "RestartTask",
                "RestartPartition",
                "CompleteJob",
                "ResumeJob",
            ]
        ),
        st.sampled_from(["PodFailed", "PodEvicted", "TaskCompleted", "*"]),
    ),
    max_size=2,
)


def cause_event(world: JobSimulator, what: str, which: int) -> None:
    names = sorted(world.pods)
    name = names[which % len(names)].removeprefix("j-") if names else ""
    moves = {"fail": P.FAILED, "succeed": P.SUCCEEDED, "run": P.RUNNING}
    if what in moves and name and world.pods[f"j-{name}"].phase in (P.PENDING, P.RUNNING):
        world.report_pod(name, moves[what])
    elif what == "evict" and name:
        world.evict(name, settle=False)
    elif what == "reap":
        world.finish_deletions(settle=False)
    elif what in ("suspend", "go on"):
        world.suspend(what == "suspend", settle=False)
    elif what == "admit" and world.podgroup is not None:
        world.admit(settle=False)
    elif what == "crash":
        world.crash()
    elif what in set(Action):
        world.send_command(what, settle=False)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(POLICIES, EVENTS)
def test_any_life_keeps_the_rules(
    policies: list[dict[str, object]], events: list[tuple[str, int, int]]
) -> None:
    """Final phases stay, versions only grow, counted pods exist, and the job becomes stable.

    That no existing pod is created, and that each write changes something, the simulator itself
    asserts.
    """
    cut = {"totalPartitions": 2, "partitionSize": 1}
    world = JobSimulator(job(task("a", 2, partitionPolicy=cut), task("b", 1), policies=policies))
    version = retries = 0
    for what, which, steps in events:
        cause_event(world, what, which)
        for _ in range(steps):
            world.step()
        status = world.status
        assert status.version >= version
        assert status.retry_count >= retries
        version, retries = status.version, status.retry_count
    world.run_until_stable()
    status = world.status
    final = JobPhase(status.state.phase)
    if world.job is not None and world.job.spec.suspend:
        assert not {pod.phase for pod in world.pods.values() if not pod.terminating} - P_ENDED
    counted = status.pending + status.running + status.unknown
    live = [pod for pod in world.pods.values() if not pod.terminating]
    if final not in ("Completed", "Failed", "Terminated"):
        assert counted + status.succeeded + status.failed == len(live)
    else:
        assert counted == 0
    ended = [phase for phase in world.phases if phase in ("Completed", "Failed", "Terminated")]
    assert world.phases[-len(ended) :] == ended if ended else True
    assert len(ended) <= 1


CONDITIONS = st.lists(
    st.builds(
        PodGroupCondition,
        type=st.sampled_from(["Scheduled", "Unschedulable"]),
        status=st.sampled_from(["True", "False"]),
        message=st.sampled_from(["", "no capacity"]),
        last_transition_time=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
    ),
    max_size=2,
).map(tuple)
STATUSES = st.builds(
    PodGroupStatus,
    phase=st.sampled_from(["", "Pending", "Inqueue", "Running", "Unknown", "Completed"]),
    conditions=CONDITIONS,
    running=st.integers(0, 2),
)


@given(
    before=STATUSES,
    after=STATUSES,
    phase=st.sampled_from(list(JobPhase)),
    pods=st.sampled_from([(), (P.PENDING,), (P.RUNNING, P.RUNNING), (P.FAILED, P.RUNNING)]),
)
@settings(max_examples=examples(200), deadline=None)
def test_decisions_depend_on_the_decisive_parts_of_the_podgroup(
    before: PodGroupStatus, after: PodGroupStatus, phase: JobPhase, pods: tuple[PodPhase, ...]
) -> None:
    current = job(status=JobStatus(state=JobState(phase=phase), min_available=2))
    infos = [pod_info(f"t-{index}", phase=each) for index, each in enumerate(pods)]
    view = job_view(current, *infos)
    assert view.podgroup is not None
    groups = [msgspec.structs.replace(view.podgroup, status=each) for each in (before, after)]
    if podgroups.decisive_fields(groups[0]) == podgroups.decisive_fields(groups[1]):
        one, other = (list(decide(msgspec.structs.replace(view, podgroup=each))) for each in groups)
        assert one == other
