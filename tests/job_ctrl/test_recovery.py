"""A controller that takes over answers what happened while none ran, and only that.

What counts is what the pods, the PodGroup and the job's status show. Delayed actions go on from
when the pods say that it happened, and hit nothing that is healthy by then.
"""

from typing import Any

import pytest
from support.job_stateful import Life
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


def begin(life: Life, *tasks: dict[str, Any], **spec: Any) -> None:
    """A job of *tasks* runs, with all its pods."""
    cut = {"totalPartitions": 2, "partitionSize": 1}
    tasks = tasks or (task("t", 2, minAvailable=1, partitionPolicy=cut), task("u", 1))
    gang = {"minAvailable": sum(one["minAvailable"] for one in tasks)}
    life.submit({**gang, "maxRetry": 3, "queue": "q", "tasks": list(tasks), **spec})
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    for name in life.named(PODS):
        life.turn(name, "Running")
    life.do(life.rest())
    assert life.phase == "Running"


def goes_on(life: Life, *, seconds: float = 0) -> None:
    """Time passes; then pods that were asked to go have gone."""
    life.do(life.pass_time(seconds))
    for _ in range(2):
        for name, pod in life.named(PODS).items():
            if "deletionTimestamp" in pod["metadata"]:
                life.reap(name)
        life.do(life.rest())


def happen(life: Life, event: str) -> None:
    if event in ("PodFailed", "exit code", "any"):
        life.turn("j-t-0", "Failed", code=3)
    elif event == "PodEvicted":
        life.evict("j-t-0", force=True)
    elif event == "TaskCompleted":
        for name in ("j-t-0", "j-t-1"):
            life.turn(name, "Succeeded")
    elif event == "TaskFailed":
        life.turn("j-t-0", "Running", restarts=3)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("action", ENDS)
def test_what_happened_while_no_controller_ran_is_answered(
    life: Life, action: str, event: str, late: bool
) -> None:
    timeout = {"timeout": "30s"} if late else {}
    begin(life, policies=[{"action": action, **EVENTS[event], **timeout}])
    before = len(life.audit.phases)
    life.do(life.kill())
    happen(life, event)
    life.do(life.rest())
    if late:
        assert life.audit.phases[before:] == []
        life.do(life.pass_time(35))
    goes_on(life)
    gone_through = life.audit.phases[before:]
    if (action, event, late) == ("RestartPod", "PodEvicted", True):
        assert gone_through == []  # it was replaced in the meantime
    elif action.startswith("Restart"):
        assert gone_through[0] == "Restarting"
        assert life.status["retryCount"] == 1
    else:
        assert gone_through[-1] == ENDS[action]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("action", ["AbortJob", "CompleteJob", "TerminateJob", "RestartJob"])
def test_a_gang_that_became_unknown_meanwhile_is_answered(
    life: Life, action: str, late: bool
) -> None:
    timeout = {"timeout": "30s"} if late else {}
    begin(life, policies=[{"action": action, "event": "Unknown", **timeout}])
    life.do(life.kill())
    life.admit("Unknown")
    life.do(life.rest())
    goes_on(life, seconds=35)
    phases = life.audit.phases
    assert ("Restarting" if action == "RestartJob" else ENDS[action]) in phases


@pytest.mark.parametrize("event", ["PodFailed", "exit code", "TaskCompleted", "TaskFailed"])
def test_a_delayed_action_waits_from_when_the_pod_says_that_it_happened(
    life: Life, event: str
) -> None:
    begin(life, policies=[{"action": "AbortJob", **EVENTS[event], "timeout": "60s"}])
    happen(life, event)
    life.do(life.pass_time(20))
    life.do(life.kill())
    life.do(life.pass_time(20))
    life.do(life.start())
    life.do(life.pass_time(15))
    assert life.phase == "Running"
    life.do(life.pass_time(8))
    assert life.phase in ("Aborting", "Aborted")


@pytest.mark.parametrize("when", ["soon", None, "2999-01-01T00:00:00Z"])
def test_a_pod_that_does_not_know_when_it_failed_has_failed_just_now(
    life: Life, when: str | None
) -> None:
    begin(life, policies=[{"action": "AbortJob", "event": "PodFailed", "timeout": "60s"}])
    life.do(life.kill())
    ended = {"terminated": {"exitCode": 1, "finishedAt": when}}
    status = {"phase": "Failed", "containerStatuses": [{"state": ended}]}
    life.audit.failed("j-t-0")
    life.api.put(PODS, "j-t-0", status=status)
    life.do(life.start())
    life.do(life.pass_time(50))
    assert life.phase == "Running"
    goes_on(life, seconds=15)
    assert life.phase == "Aborted"


def test_a_task_was_completed_when_its_last_pod_was(life: Life) -> None:
    begin(life, policies=[{"action": "AbortJob", "event": "TaskCompleted", "timeout": "60s"}])
    life.turn("j-t-0", "Succeeded")
    life.do(life.pass_time(50))
    life.turn("j-t-1", "Succeeded")
    life.do(life.kill())
    life.do(life.start())
    life.do(life.pass_time(20))
    assert life.phase == "Running"
    life.do(life.pass_time(45))
    assert life.phase in ("Aborting", "Aborted")


def test_a_pod_is_pending_since_it_was_made(life: Life) -> None:
    late = {"action": "AbortJob", "event": "PodPending", "timeout": "60s"}
    life.submit(
        {"minAvailable": 1, "maxRetry": 3, "queue": "q", "tasks": [task()], "policies": [late]}
    )
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    life.do(life.pass_time(30))
    life.do(life.kill())
    life.do(life.start())
    life.do(life.pass_time(15))
    assert life.phase == "Pending"
    life.do(life.pass_time(20))
    assert life.phase == "Aborted"


@pytest.mark.parametrize("dies", ["not", "before", "after"])
@pytest.mark.parametrize("action", ["RestartTask", "RestartPartition"])
def test_pods_that_a_restart_let_go_were_not_evicted(life: Life, action: str, dies: str) -> None:
    cut = {"totalPartitions": 1, "partitionSize": 2}
    policies = [{"action": action, "event": "PodFailed"},
                {"action": "AbortJob", "event": "PodEvicted"}]  # fmt: skip
    begin(life, task("t", 2, partitionPolicy=cut), task("u", 1), policies=policies)
    life.turn("j-t-0", "Failed", code=1)
    life.do(life.idle())
    assert "deletionTimestamp" in life.named(PODS)["j-t-1"]["metadata"]
    if dies == "before":
        life.do(life.kill())
    if dies == "after":
        life.do(life.kill())
        life.do(life.start())
        life.do(life.idle())
    life.reap("j-t-1")
    life.do(life.rest())
    assert life.phase == "Pending"
    assert life.status["retryCount"] == 1
    assert life.audit.phases[-2:] == ["Restarting", "Pending"]


@pytest.mark.parametrize("dies", ["not", "before", "after"])
def test_pods_beyond_the_replicas_were_not_evicted(life: Life, dies: str) -> None:
    begin(life, task("t", 2, minAvailable=1), policies=[{"action": "AbortJob", "event": "*"}])
    life.edit(tasks=[task("t", 1)])
    life.do(life.idle())
    if dies == "before":
        life.do(life.kill())
    if dies == "after":
        life.do(life.kill())
        life.do(life.start())
        life.do(life.idle())
    life.reap("j-t-1")
    life.do(life.rest())
    assert life.phase == "Running"


def test_an_eviction_that_was_under_way_when_the_controller_died_is_answered(life: Life) -> None:
    begin(life, policies=[{"action": "AbortJob", "event": "PodEvicted"}])
    life.do(life.kill())
    life.evict("j-t-0")
    life.do(life.rest())
    assert life.phase == "Running"
    goes_on(life)
    assert life.phase == "Aborted"


def test_an_eviction_in_the_midst_of_a_restart_is_answered(life: Life) -> None:
    policies = [{"action": "RestartPod", "event": "PodFailed"},
                {"action": "AbortJob", "event": "PodEvicted"}]  # fmt: skip
    begin(life, task("t", 3, minAvailable=1), policies=policies)
    life.api.hold(PODS)
    life.api.fail(500, times=1000, method="DELETE", path="/pods")
    life.turn("j-t-0", "Failed", code=1)
    life.api.release()
    life.do(life.idle())
    assert life.phase == "Restarting"
    life.do(life.kill())
    life.evict("j-t-1", force=True)
    life.api.heal()
    life.do(life.rest())
    goes_on(life)
    assert life.phase == "Aborted"


def test_a_pending_pod_that_is_scaled_away_aborts_nothing(life: Life) -> None:
    late = {"action": "AbortJob", "event": "PodPending", "timeout": "30s"}
    begin(life, task("t", 1), policies=[late])
    life.edit(tasks=[task("t", 2, minAvailable=1)])
    life.do(life.rest())
    life.edit(tasks=[task("t", 1)])
    life.do(life.rest())
    life.do(life.pass_time(60))
    assert life.phase == "Running"


def test_a_pending_pod_that_is_made_anew_has_all_its_time(life: Life) -> None:
    """INV-VC-7."""
    policies = [{"action": "AbortJob", "event": "PodPending", "timeout": "30s"},
                {"action": "RestartTask", "event": "PodFailed"}]  # fmt: skip
    begin(life, task("t", 2, minAvailable=1), policies=policies)
    life.evict("j-t-1", force=True)
    life.do(life.rest())
    life.do(life.pass_time(20))
    life.turn("j-t-0", "Failed", code=1)
    life.do(life.pass_time(25))
    assert life.phase == "Pending"
    life.do(life.pass_time(10))
    assert life.phase == "Aborted"


def test_a_delayed_restart_of_a_pod_spares_its_replacement(life: Life) -> None:
    begin(life, policies=[{"action": "RestartPod", "event": "PodFailed", "timeout": "30s"}])
    life.turn("j-t-0", "Failed", code=1)
    life.do(life.rest())
    life.evict("j-t-0", force=True)
    life.do(life.rest())
    replacement = life.named(PODS)["j-t-0"]["metadata"]["uid"]
    life.do(life.pass_time(60))
    assert life.named(PODS)["j-t-0"]["metadata"]["uid"] == replacement
    assert "retryCount" not in life.status


def test_restarts_of_a_pending_pod_count_though_nobody_saw_them(life: Life) -> None:
    begin(
        life, task("t", 2, minAvailable=1), policies=[{"action": "AbortJob", "event": "TaskFailed"}]
    )
    life.evict("j-t-1", force=True)
    life.do(life.rest())
    life.do(life.kill())
    life.turn("j-t-1", "Pending", restarts=3)
    life.do(life.rest())
    goes_on(life)
    assert life.phase == "Aborted"


def test_a_restart_seen_together_with_a_start_counts(life: Life) -> None:
    begin(
        life, task("t", 2, minAvailable=1), policies=[{"action": "AbortJob", "event": "TaskFailed"}]
    )
    life.evict("j-t-1", force=True)
    life.do(life.rest())
    life.turn("j-t-1", "Running", restarts=3)
    life.do(life.rest())
    goes_on(life)
    assert life.phase == "Aborted"


def test_a_podgroup_that_is_well_again_in_time_cancels_what_waits(life: Life) -> None:
    begin(life, policies=[{"action": "TerminateJob", "event": "Unknown", "timeout": "30s"}])
    life.admit("Unknown")
    life.do(life.rest())
    life.do(life.kill())
    life.do(life.start())
    life.admit("Running")
    life.do(life.rest())
    life.do(life.pass_time(60))
    assert life.phase == "Running"
    assert life.group() in life.named(PODGROUPS)


def test_a_replacement_that_is_evicted_was_not_let_go_by_the_restart_before(life: Life) -> None:
    policies = [{"action": "RestartPod", "event": "PodFailed"},
                {"action": "AbortJob", "event": "PodEvicted"}]  # fmt: skip
    begin(life, task("t", 2), policies=policies)
    life.turn("j-t-0", "Failed", code=1)
    life.do(life.rest())
    goes_on(life)
    assert life.phase == "Pending"
    life.bind("j-t-0")
    life.do(life.kill())
    life.evict("j-t-0")
    life.do(life.rest())
    goes_on(life)
    assert life.phase == "Aborted"
