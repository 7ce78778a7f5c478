"""A new leader acts on what happened while no controller ran, and only on that.

Pods, PodGroup and the status of the job count. Delayed actions continue from the times in the pods,
and do not affect pods that have recovered.
"""

from typing import Any

import pytest
from support.job_stateful import JobWorld
from support.jobs import task

from batholith.model.names import PODGROUPS, PODS

ENDS = {
    "AbortJob": "Aborted",
    "CompleteJob": "Completed",
    "TerminateJob": "Terminated",
    "RestartJob": "Pending",
    "RestartPartition": "Pending",
    "RestartPod": "Pending",
    "RestartTask": "Pending",
}
EVENTS: dict[str, dict[str, Any]] = {
    "PodFailed": {"event": "PodFailed"},
    "PodEvicted": {"event": "PodEvicted"},
    "TaskCompleted": {"event": "TaskCompleted"},
    "TaskFailed": {"events": ["TaskFailed"]},
    "exit code": {"exitCode": 3},
    "any": {"event": "*"},
}


def start_job(world: JobWorld, *tasks: dict[str, Any], **spec: Any) -> None:
    """A job of *tasks* runs, with all its pods."""
    cut = {"totalPartitions": 2, "partitionSize": 1}
    tasks = tasks or (task("t", 2, minAvailable=1, partitionPolicy=cut), task("u", 1))
    gang = {"minAvailable": sum(one["minAvailable"] for one in tasks)}
    world.submit({**gang, "maxRetry": 3, "queue": "q", "tasks": list(tasks), **spec})
    world.run(world.run_until_quiet())
    world.admit()
    world.run(world.run_until_quiet())
    for name in world.objects_by_name(PODS):
        world.report_pod(name, "Running")
    world.run(world.run_until_quiet())
    assert world.phase == "Running"


def pass_time(world: JobWorld, *, seconds: float = 0) -> None:
    """Advance the time; then finish the deletion of pods."""
    world.run(world.pass_time(seconds))
    for _ in range(2):
        for name, pod in world.objects_by_name(PODS).items():
            if "deletionTimestamp" in pod["metadata"]:
                world.finish_deletion(name)
        world.run(world.run_until_quiet())


def cause_event(world: JobWorld, event: str) -> None:
    if event in ("PodFailed", "exit code", "any"):
        world.report_pod("j-t-0", "Failed", code=3)
    elif event == "PodEvicted":
        world.evict("j-t-0", force=True)
    elif event == "TaskCompleted":
        for name in ("j-t-0", "j-t-1"):
            world.report_pod(name, "Succeeded")
    elif event == "TaskFailed":
        world.report_pod("j-t-0", "Running", restarts=3)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("action", ENDS)
def test_event_while_no_controller_ran_matches_policies(
    world: JobWorld, action: str, event: str, timed: bool
) -> None:
    timeout = {"timeout": "30s"} if timed else {}
    start_job(world, policies=[{"action": action, **EVENTS[event], **timeout}])
    before = len(world.transitions.phases)
    world.run(world.kill())
    cause_event(world, event)
    world.run(world.run_until_quiet())
    if timed:
        assert world.transitions.phases[before:] == []
        world.run(world.pass_time(35))
    pass_time(world)
    new_phases = world.transitions.phases[before:]
    if (action, event, timed) == ("RestartPod", "PodEvicted", True):
        assert new_phases == []  # it was replaced in the meantime
    elif action.startswith("Restart"):
        assert new_phases[0] == "Restarting"
        assert world.status["retryCount"] == 1
    else:
        assert new_phases[-1] == ENDS[action]


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("action", ["AbortJob", "CompleteJob", "TerminateJob", "RestartJob"])
def test_podgroup_unknown_while_no_controller_ran_matches_policies(
    world: JobWorld, action: str, timed: bool
) -> None:
    timeout = {"timeout": "30s"} if timed else {}
    start_job(world, policies=[{"action": action, "event": "Unknown", **timeout}])
    world.run(world.kill())
    world.admit("Unknown")
    world.run(world.run_until_quiet())
    pass_time(world, seconds=35)
    phases = world.transitions.phases
    assert ("Restarting" if action == "RestartJob" else ENDS[action]) in phases


@pytest.mark.parametrize("event", ["PodFailed", "exit code", "TaskCompleted", "TaskFailed"])
def test_delay_of_an_action_starts_at_the_time_in_the_pod(world: JobWorld, event: str) -> None:
    start_job(world, policies=[{"action": "AbortJob", **EVENTS[event], "timeout": "60s"}])
    cause_event(world, event)
    world.run(world.pass_time(20))
    world.run(world.kill())
    world.run(world.pass_time(20))
    world.run(world.start())
    world.run(world.pass_time(15))
    assert world.phase == "Running"
    world.run(world.pass_time(8))
    assert world.phase in ("Aborting", "Aborted")


@pytest.mark.parametrize("when", ["soon", None, "2999-01-01T00:00:00Z"])
def test_a_pod_that_does_not_know_when_it_failed_has_failed_just_now(
    world: JobWorld, when: str | None
) -> None:
    start_job(world, policies=[{"action": "AbortJob", "event": "PodFailed", "timeout": "60s"}])
    world.run(world.kill())
    ended = {"terminated": {"exitCode": 1, "finishedAt": when}}
    status = {"phase": "Failed", "containerStatuses": [{"state": ended}]}
    world.transitions.on_failure("j-t-0")
    world.api.put(PODS, "j-t-0", status=status)
    world.run(world.start())
    world.run(world.pass_time(50))
    assert world.phase == "Running"
    pass_time(world, seconds=15)
    assert world.phase == "Aborted"


def test_a_task_was_completed_when_its_last_pod_was(world: JobWorld) -> None:
    start_job(world, policies=[{"action": "AbortJob", "event": "TaskCompleted", "timeout": "60s"}])
    world.report_pod("j-t-0", "Succeeded")
    world.run(world.pass_time(50))
    world.report_pod("j-t-1", "Succeeded")
    world.run(world.kill())
    world.run(world.start())
    world.run(world.pass_time(20))
    assert world.phase == "Running"
    world.run(world.pass_time(45))
    assert world.phase in ("Aborting", "Aborted")


def test_pod_is_pending_since_its_creation(world: JobWorld) -> None:
    delayed = {"action": "AbortJob", "event": "PodPending", "timeout": "60s"}
    world.submit(
        {"minAvailable": 1, "maxRetry": 3, "queue": "q", "tasks": [task()], "policies": [delayed]}
    )
    world.run(world.run_until_quiet())
    world.admit()
    world.run(world.run_until_quiet())
    world.run(world.pass_time(30))
    world.run(world.kill())
    world.run(world.start())
    world.run(world.pass_time(15))
    assert world.phase == "Pending"
    world.run(world.pass_time(20))
    assert world.phase == "Aborted"


@pytest.mark.parametrize("dies", ["not", "before", "after"])
@pytest.mark.parametrize("action", ["RestartTask", "RestartPartition"])
def test_pods_deleted_by_a_restart_are_not_evicted(world: JobWorld, action: str, dies: str) -> None:
    cut = {"totalPartitions": 1, "partitionSize": 2}
    policies = [{"action": action, "event": "PodFailed"},
                {"action": "AbortJob", "event": "PodEvicted"}]  # fmt: skip
    start_job(world, task("t", 2, partitionPolicy=cut), task("u", 1), policies=policies)
    world.report_pod("j-t-0", "Failed", code=1)
    world.run(world.run_until_idle())
    assert "deletionTimestamp" in world.objects_by_name(PODS)["j-t-1"]["metadata"]
    if dies == "before":
        world.run(world.kill())
    if dies == "after":
        world.run(world.kill())
        world.run(world.start())
        world.run(world.run_until_idle())
    world.finish_deletion("j-t-1")
    world.run(world.run_until_quiet())
    assert world.phase == "Pending"
    assert world.status["retryCount"] == 1
    assert world.transitions.phases[-2:] == ["Restarting", "Pending"]


@pytest.mark.parametrize("dies", ["not", "before", "after"])
def test_pods_beyond_the_replicas_were_not_evicted(world: JobWorld, dies: str) -> None:
    start_job(world, task("t", 2, minAvailable=1), policies=[{"action": "AbortJob", "event": "*"}])
    world.edit(tasks=[task("t", 1)])
    world.run(world.run_until_idle())
    if dies == "before":
        world.run(world.kill())
    if dies == "after":
        world.run(world.kill())
        world.run(world.start())
        world.run(world.run_until_idle())
    world.finish_deletion("j-t-1")
    world.run(world.run_until_quiet())
    assert world.phase == "Running"


def test_eviction_in_progress_at_a_controller_crash_matches_policies(
    world: JobWorld,
) -> None:
    start_job(world, policies=[{"action": "AbortJob", "event": "PodEvicted"}])
    world.run(world.kill())
    world.evict("j-t-0")
    world.run(world.run_until_quiet())
    assert world.phase == "Running"
    pass_time(world)
    assert world.phase == "Aborted"


def test_eviction_during_a_restart_matches_policies(world: JobWorld) -> None:
    policies = [{"action": "RestartPod", "event": "PodFailed"},
                {"action": "AbortJob", "event": "PodEvicted"}]  # fmt: skip
    start_job(world, task("t", 3, minAvailable=1), policies=policies)
    world.api.hold_watches(PODS)
    world.api.inject_fault(500, times=1000, method="DELETE", path="/pods")
    world.report_pod("j-t-0", "Failed", code=1)
    world.api.release_watches()
    world.run(world.run_until_idle())
    assert world.phase == "Restarting"
    world.run(world.kill())
    world.evict("j-t-1", force=True)
    world.api.clear_faults()
    world.run(world.run_until_quiet())
    pass_time(world)
    assert world.phase == "Aborted"


def test_a_pending_pod_that_is_scaled_away_aborts_nothing(world: JobWorld) -> None:
    delayed = {"action": "AbortJob", "event": "PodPending", "timeout": "30s"}
    start_job(world, task("t", 1), policies=[delayed])
    world.edit(tasks=[task("t", 2, minAvailable=1)])
    world.run(world.run_until_quiet())
    world.edit(tasks=[task("t", 1)])
    world.run(world.run_until_quiet())
    world.run(world.pass_time(60))
    assert world.phase == "Running"


def test_recreated_pending_pod_has_its_full_timeout(world: JobWorld) -> None:
    """INV-VC-7."""
    policies = [{"action": "AbortJob", "event": "PodPending", "timeout": "30s"},
                {"action": "RestartTask", "event": "PodFailed"}]  # fmt: skip
    start_job(world, task("t", 2, minAvailable=1), policies=policies)
    world.evict("j-t-1", force=True)
    world.run(world.run_until_quiet())
    world.run(world.pass_time(20))
    world.report_pod("j-t-0", "Failed", code=1)
    world.run(world.pass_time(25))
    assert world.phase == "Pending"
    world.run(world.pass_time(10))
    assert world.phase == "Aborted"


def test_a_delayed_restart_of_a_pod_spares_its_replacement(world: JobWorld) -> None:
    start_job(world, policies=[{"action": "RestartPod", "event": "PodFailed", "timeout": "30s"}])
    world.report_pod("j-t-0", "Failed", code=1)
    world.run(world.run_until_quiet())
    world.evict("j-t-0", force=True)
    world.run(world.run_until_quiet())
    replacement = world.objects_by_name(PODS)["j-t-0"]["metadata"]["uid"]
    world.run(world.pass_time(60))
    assert world.objects_by_name(PODS)["j-t-0"]["metadata"]["uid"] == replacement
    assert "retryCount" not in world.status


def test_unobserved_container_restarts_of_a_pending_pod_count(world: JobWorld) -> None:
    start_job(
        world,
        task("t", 2, minAvailable=1),
        policies=[{"action": "AbortJob", "event": "TaskFailed"}],
    )
    world.evict("j-t-1", force=True)
    world.run(world.run_until_quiet())
    world.run(world.kill())
    world.report_pod("j-t-1", "Pending", restarts=3)
    world.run(world.run_until_quiet())
    pass_time(world)
    assert world.phase == "Aborted"


def test_container_restart_observed_with_the_start_counts(world: JobWorld) -> None:
    start_job(
        world,
        task("t", 2, minAvailable=1),
        policies=[{"action": "AbortJob", "event": "TaskFailed"}],
    )
    world.evict("j-t-1", force=True)
    world.run(world.run_until_quiet())
    world.report_pod("j-t-1", "Running", restarts=3)
    world.run(world.run_until_quiet())
    pass_time(world)
    assert world.phase == "Aborted"


def test_recovered_podgroup_cancels_the_delayed_action(world: JobWorld) -> None:
    start_job(world, policies=[{"action": "TerminateJob", "event": "Unknown", "timeout": "30s"}])
    world.admit("Unknown")
    world.run(world.run_until_quiet())
    world.run(world.kill())
    world.run(world.start())
    world.admit("Running")
    world.run(world.run_until_quiet())
    world.run(world.pass_time(60))
    assert world.phase == "Running"
    assert world.group() in world.objects_by_name(PODGROUPS)


def test_evicted_replacement_is_not_part_of_the_previous_restart(
    world: JobWorld,
) -> None:
    policies = [{"action": "RestartPod", "event": "PodFailed"},
                {"action": "AbortJob", "event": "PodEvicted"}]  # fmt: skip
    start_job(world, task("t", 2), policies=policies)
    world.report_pod("j-t-0", "Failed", code=1)
    world.run(world.run_until_quiet())
    pass_time(world)
    assert world.phase == "Pending"
    world.bind("j-t-0")
    world.run(world.kill())
    world.evict("j-t-0")
    world.run(world.run_until_quiet())
    pass_time(world)
    assert world.phase == "Aborted"
