"""Short histories that the random test found, as explicit steps."""

import dataclasses
from typing import Any

import pytest
from support.job_stateful import FORGOTTEN, SETTLE_TIMEOUT, JobWorld
from support.jobs import task

from batholith.job_ctrl.metrics import JobMetrics
from batholith.model.names import (
    COMMANDS,
    JOBS,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    PODS,
    SERVICES,
)


def submit(world: JobWorld, *, settle: bool = True, **spec: Any) -> None:
    world.submit({"minAvailable": 2, "maxRetry": 3, "queue": "q", "tasks": [task()], **spec})
    if settle:
        world.run(world.run_until_quiet())


def test_podgroup_deleted_before_the_response_to_its_creation_is_recreated(
    world: JobWorld,
) -> None:
    deleted: list[str] = []

    def on_event(prefix: str, change: str, new: Any, old: Any) -> None:
        world.transitions.on_event(prefix, change, new, old)
        if prefix == PODGROUPS.path() and not deleted:
            deleted.append(new["metadata"]["name"])
            world.loop.call_soon(world.api.force_delete, PODGROUPS, deleted[0])

    world.api.on_change, world.api.response_lag = on_event, 10
    submit(world)
    assert deleted
    assert world.group() is not None


def test_podgroup_that_no_informer_reported_is_detected_as_deleted(world: JobWorld) -> None:
    world.run(world.start())
    world.run(world.run_until_idle())
    world.api.hold_watches(PODGROUPS)
    submit(world, settle=False)
    world.run(world.pass_time(2))
    group = world.group()
    assert group is not None
    world.api.force_delete(PODGROUPS, group)
    world.api.break_watches()
    world.run(world.run_until_quiet())
    assert world.phase == "Pending"
    assert world.group() is not None


def test_restarted_job_does_not_wait_until_an_informer_reports_its_old_podgroup_as_deleted(
    world: JobWorld,
) -> None:
    submit(world)
    (before,) = world.objects_by_name(PODGROUPS).values()
    world.api.hold_watches(PODGROUPS)
    world.command("RestartJob")
    world.run(world.run_until_idle())
    (after,) = world.objects_by_name(PODGROUPS).values()
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert world.phase == "Pending"
    world.api.release_watches()
    world.run(world.run_until_quiet())
    assert world.phase == "Pending"
    assert [*world.objects_by_name(PODGROUPS).values()] == [after]


def test_pod_that_no_informer_reported_is_detected_as_deleted(world: JobWorld) -> None:
    submit(world)
    world.api.hold_watches(PODS)
    world.admit()
    world.run(world.pass_time(2))
    world.evict("j-t-1", force=True)
    world.api.break_watches()
    world.run(world.run_until_quiet())
    assert world.objects_by_name(PODS).keys() == {"j-t-0", "j-t-1"}


def test_pods_that_are_left_to_themselves_are_forgotten(world: JobWorld) -> None:
    """INV-VC-3: a job deleted with propagation Orphan."""
    submit(world)
    world.admit()
    world.run(world.run_until_quiet())
    for name in ("j-t-0", "j-t-1"):
        world.api.put(PODS, name, metadata={"ownerReferences": []})
    world.delete_job()
    world.delete_orphans()
    world.run(world.run_until_quiet())
    assert world.controller is not None
    assert world.controller.statistics() == FORGOTTEN
    submit(world)
    world.admit()
    for name in ("j-t-0", "j-t-1"):
        world.api.force_delete(PODS, name)
    world.run(world.run_until_quiet())
    (uid,) = {
        pod["metadata"]["ownerReferences"][0]["uid"] for pod in world.objects_by_name(PODS).values()
    }
    assert world.job is not None
    assert uid == world.job["metadata"]["uid"]


def test_pod_that_lost_its_label_is_not_evicted_repeatedly(world: JobWorld) -> None:
    submit(world, policies=[{"action": "RestartPod", "event": "PodEvicted"}], maxRetry=9)
    world.admit()
    world.run(world.run_until_quiet())
    world.transitions.on_eviction("j-t-0")
    world.api.put(PODS, "j-t-0", metadata={"labels": {"volcano.sh/job-name": None}})
    for _ in range(5):
        world.run(world.run_until_quiet())
        world.admit()
        world.run(world.pass_time(20))
    assert world.status["retryCount"] == 1


@pytest.mark.parametrize("stop", ["AbortJob", "suspend"])
def test_a_stop_does_not_save_a_job_without_retries_left(world: JobWorld, stop: str) -> None:
    submit(world, maxRetry=1, policies=[{"action": "RestartJob", "event": "PodFailed"}])
    world.admit()
    world.run(world.run_until_quiet())
    world.api.inject_fault(500, times=50, method="PATCH", path="/status")
    world.report_pod("j-t-0", "Failed", code=1)
    world.run(world.run_until_idle())
    world.run(world.kill())
    world.api.clear_faults()
    status = world.status | {"state": {"phase": "Restarting", "reason": "RestartJob"}}
    world.api.put(JOBS, "j", status=status | {"retryCount": 1, "version": 1})
    if stop == "suspend":
        world.edit(suspend=True)
    else:
        world.command(stop)
    world.run(world.run_until_quiet())
    assert (world.phase, world.status["retryCount"]) == ("Failed", 1)


def test_inv_ex_4_only_pods_that_may_exist_are_expected(world: JobWorld) -> None:
    """Eight, tried 1, 2 and 4 at a time: one is refused, two are not answered, one is skipped."""

    def on_event(prefix: str, change: str, new: Any, old: Any) -> None:
        world.transitions.on_event(prefix, change, new, old)
        if prefix == PODS.path() and len(world.objects_by_name(PODS)) == 3:
            world.api.inject_fault(403, method="POST", path="/pods")
            world.api.inject_fault("drop", method="POST", path="/pods")
            world.api.inject_fault("done 504", method="POST", path="/pods")

    submit(world, minAvailable=8, tasks=[task("t", 8)])
    world.api.on_change = on_event
    world.api.hold_watches(PODS)
    world.admit()
    world.run(world.run_until_idle())
    assert world.controller is not None
    awaited = world.controller.expectations.pending("d/j")
    assert world.objects_by_name(PODS).keys() == {f"j-t-{index}" for index in (0, 1, 2, 5, 6)}
    assert awaited == {*world.objects_by_name(PODS), "j-t-4"}
    world.run(world.run_until_quiet())
    assert len(world.objects_by_name(PODS)) == 8
    assert not world.controller.expectations.pending("d/j")


def test_name_conflict_blocks_no_other_pod_and_causes_an_event(world: JobWorld) -> None:
    world.put(PODS, "j-t-0", metadata={"labels": {"app": "other"}})
    submit(world)
    world.admit()
    world.run(world.run_until_quiet())
    assert world.objects_by_name(PODS).keys() == {"j-t-0", "j-t-1"}
    assert (world.status["state"]["reason"], world.status["pending"]) == ("FailedCreate", 1)
    assert "j-t-0" in world.status["state"]["message"]
    world.api.force_delete(PODS, "j-t-0")
    world.run(world.pass_time(SETTLE_TIMEOUT))
    assert (world.status["state"].get("reason"), world.status["pending"]) == (None, 2)


def test_numbers_follow_the_pods_while_the_quota_is_full(world: JobWorld) -> None:
    submit(world, minAvailable=1, tasks=[task("t", 3)])
    world.admit()
    world.run(world.run_until_quiet())
    for name in world.objects_by_name(PODS):
        world.report_pod(name, "Running")
    world.run(world.run_until_quiet())
    world.api.full_namespaces.add("d")
    world.evict("j-t-2", force=True)
    world.run(world.pass_time(SETTLE_TIMEOUT))
    assert (world.status["state"]["reason"], world.status["running"]) == ("FailedCreate", 2)
    world.report_pod("j-t-1", "Unknown")
    world.run(world.pass_time(3))
    assert (world.status["running"], world.status["unknown"]) == (1, 1)


def test_pods_are_created_within_a_minute_of_available_quota(world: JobWorld) -> None:
    submit(world)
    world.admit()
    world.api.full_namespaces.add("d")
    world.run(world.pass_time(3600))
    before = world.api.requests
    world.run(world.pass_time(600))
    assert world.api.requests - before <= 15
    world.api.full_namespaces.clear()
    world.run(world.pass_time(61))
    assert world.objects_by_name(PODS).keys() == {"j-t-0", "j-t-1"}


def test_commands_of_a_relist_are_executed_in_order(world: JobWorld) -> None:
    """INV-VC-2."""
    submit(world)
    world.api.hold_watches(COMMANDS)
    world.command("AbortJob")
    world.command("ResumeJob")
    world.run(world.run_until_idle())
    world.api.break_watches()
    world.run(world.run_until_quiet())
    assert world.transitions.phases == ["Pending", "Aborting", "Restarting", "Pending"]


def test_rejection_is_in_the_status_while_pods_are_to_be_created(world: JobWorld) -> None:
    submit(world)
    world.admit()
    world.api.full_namespaces.add("d")
    world.run(world.run_until_quiet())
    assert world.status["state"]["reason"] == "FailedCreate"
    before = world.transitions.controller_writes
    world.run(world.kill())
    world.run(world.run_until_quiet())
    assert world.transitions.controller_writes == before
    group = world.group()
    assert group is not None
    world.api.force_delete(PODGROUPS, group)
    world.run(world.run_until_quiet())
    assert "reason" not in world.status["state"]


def test_pod_observed_during_slow_start_creation_is_tracked(
    world: JobWorld,
) -> None:
    """A former leader created it: the informer reports it before this leader would create it."""
    created_late: list[str] = []

    def on_event(prefix: str, change: str, new: Any, old: Any) -> None:
        world.transitions.on_event(prefix, change, new, old)
        if prefix == PODS.path() and not created_late:
            assert new["metadata"]["name"] == "j-t-0"
            created_late.append("j-t-1")
            meta = {key: new["metadata"][key] for key in ("labels", "annotations")}
            meta |= {"ownerReferences": new["metadata"]["ownerReferences"]}
            world.loop.call_soon(lambda: world.put(PODS, created_late[0], metadata=meta))

    submit(world)
    world.api.on_change, world.api.response_lag = on_event, 10
    world.admit()
    world.run(world.run_until_quiet())
    assert created_late
    for name in ("j-t-0", "j-t-1"):
        world.report_pod(name, "Running")
    world.run(world.run_until_quiet())
    assert (world.phase, world.status["running"]) == ("Running", 2)
    world.command("AbortJob")
    world.run(world.run_until_quiet())
    assert all(
        "deletionTimestamp" in pod["metadata"] for pod in world.objects_by_name(PODS).values()
    )
    for name in ("j-t-0", "j-t-1"):
        world.finish_deletion(name)
    world.run(world.run_until_quiet())
    assert world.phase == "Aborted"


def test_plugin_objects_of_a_job_resumed_and_stopped_at_once_are_deleted(
    world: JobWorld,
) -> None:
    world.put(PERSISTENTVOLUMECLAIMS, "data")
    volumes = [{"mountPath": "/data", "volumeClaimName": "data"}]
    submit(world, plugins={"svc": []}, volumes=volumes)
    for _ in range(2):
        world.edit(suspend=True)
        world.run(world.run_until_quiet())
        assert world.objects_by_name(SERVICES) == {}
        world.edit(suspend=False)
        world.run(world.run_until_idle())
        assert world.objects_by_name(SERVICES).keys() == {"j"}


def test_delayed_action_is_executed_in_time_while_pods_are_rejected(world: JobWorld) -> None:
    """INV-VC-7."""
    delayed = {"action": "AbortJob", "event": "PodFailed", "timeout": "40s"}
    submit(world, minAvailable=1, tasks=[task("t", 3)], policies=[delayed])
    world.admit()
    world.run(world.run_until_quiet())
    for name in world.objects_by_name(PODS):
        world.report_pod(name, "Running")
    world.api.full_namespaces.add("d")
    world.evict("j-t-2", force=True)
    world.run(world.pass_time(SETTLE_TIMEOUT))
    world.report_pod("j-t-0", "Failed", code=1)
    world.run(world.pass_time(38))
    assert world.phase == "Running"
    world.run(world.pass_time(4))
    assert world.phase in ("Aborting", "Aborted")


LOST_RESPONSE = ("lost", "done 408", "done 500", "done 502", "done 503", "done 504")
"""It takes effect, and the response is lost or is another error."""


def run_with_abort_on_eviction(world: JobWorld, **spec: Any) -> None:
    stop = {"action": "AbortJob", "event": "PodEvicted"}
    run_all_pods(world, **{"policies": [stop], "tasks": [task(policies=[])], **spec})


def run_all_pods(world: JobWorld, **spec: Any) -> None:
    submit(world, **spec)
    world.admit()
    world.run(world.run_until_quiet())
    for name in world.objects_by_name(PODS):
        world.report_pod(name, "Running")
    world.run(world.run_until_quiet())
    assert world.phase == "Running"


@pytest.mark.parametrize("force", [False, True], ids=["gracefully", "immediately"])
@pytest.mark.parametrize("how", LOST_RESPONSE)
def test_pods_whose_deletion_got_no_response_are_not_evicted(
    world: JobWorld, how: str, force: bool
) -> None:
    run_with_abort_on_eviction(world, minAvailable=1, tasks=[task("t", 3, policies=[])])
    world.api.hold_watches(PODS)
    world.api.inject_fault(how, method="DELETE", path="/pods")
    world.edit(tasks=[task("t", 2, policies=[])])
    world.run(world.pass_time(2))
    if force:
        world.finish_deletion("j-t-2")
    world.api.release_watches()
    world.run(world.run_until_idle())
    if not force:
        world.finish_deletion("j-t-2")
    world.run(world.run_until_quiet())
    assert world.phase == "Running"
    assert world.objects_by_name(PODS).keys() == {"j-t-0", "j-t-1"}


@pytest.mark.parametrize("behind", [False, True], ids=["watches ahead", "watches behind"])
@pytest.mark.parametrize("how", [*LOST_RESPONSE, "drop", 504])
def test_task_restart_whose_deletions_got_no_response_evicts_no_pod(
    world: JobWorld, how: str | int, behind: bool
) -> None:
    """Behind the second tries, too, which then meet a conflict with the first ones."""
    again = {"action": "RestartTask", "event": "PodFailed"}
    stop = {"action": "AbortJob", "event": "PodEvicted"}
    run_all_pods(world, policies=[again, stop], tasks=[task(policies=[])])
    world.api.inject_fault(how, times=3, method="DELETE", path="/pods")
    world.report_pod("j-t-0", "Failed", code=1)
    world.run(world.run_until_idle())
    if behind:
        world.api.hold_watches(PODS)
    world.run(world.pass_time(5))
    world.api.release_watches()
    world.run(world.run_until_quiet())
    world.finish_deletion("j-t-1")
    world.run(world.run_until_quiet())
    assert world.transitions.phases[-2:] == ["Restarting", "Pending"]
    assert world.objects_by_name(PODS).keys() == {"j-t-0", "j-t-1"}
    assert world.status["retryCount"] == 1


def test_a_deletion_that_was_not_carried_out_hides_nothing_that_happens_later(
    world: JobWorld,
) -> None:
    run_with_abort_on_eviction(world, minAvailable=1, tasks=[task("t", 3, policies=[])])
    world.api.inject_fault("drop", times=99, method="DELETE", path="/pods")
    world.edit(tasks=[task("t", 2, policies=[])])
    world.run(world.pass_time(1))
    world.api.clear_faults()
    world.edit(tasks=[task("t", 3, policies=[])])
    world.api.put(PODS, "j-t-2", metadata={"annotations": {"seen": "after it"}})
    world.run(world.run_until_quiet())
    world.evict("j-t-2")
    world.run(world.run_until_quiet())
    world.finish_deletion("j-t-2")
    world.run(world.run_until_quiet())
    assert world.phase == "Aborting"


def test_a_deletion_given_up_long_ago_explains_no_eviction(world: JobWorld) -> None:
    run_with_abort_on_eviction(world, minAvailable=1, tasks=[task("t", 3, policies=[])])
    world.api.inject_fault("drop", times=99, method="DELETE", path="/pods")
    world.edit(tasks=[task("t", 2, policies=[])])
    world.run(world.pass_time(1))
    world.api.clear_faults()
    world.edit(tasks=[task("t", 3, policies=[])])
    world.run(world.pass_time(400))
    world.evict("j-t-2", force=True)
    world.run(world.run_until_quiet())
    assert world.phase == "Aborting"


@pytest.mark.parametrize("how", [*LOST_RESPONSE, "drop", 504])
def test_final_phase_whose_write_got_no_response_is_counted_once(
    world: JobWorld, how: str | int
) -> None:
    metrics = JobMetrics(None)
    world.settings = dataclasses.replace(world.settings, metrics=metrics)
    run_all_pods(world)
    world.api.inject_fault(how, method="PATCH", path="/status")
    for name in world.objects_by_name(PODS):
        world.report_pod(name, "Succeeded")
    world.run(world.run_until_quiet())
    assert world.phase == "Completed"
    assert [each.value for family in metrics.collect() for each in family.samples] == [1]


@pytest.mark.parametrize("how", ["hang", "done, hang"])
def test_reconcile_that_hangs_is_cancelled_and_its_writes_are_unconfirmed(
    world: JobWorld, how: str
) -> None:
    """The responses to one deletion and one creation are lost."""
    run_with_abort_on_eviction(world, minAvailable=1, tasks=[task("t", 3, policies=[])])
    world.api.hold_watches(PODS)
    world.api.inject_fault(how, method="DELETE", path="/pods")
    world.edit(tasks=[task("t", 2, policies=[])])
    world.run(world.pass_time(290))
    world.api.release_watches()
    world.run(world.pass_time(20))
    if "j-t-2" in world.objects_by_name(PODS):
        world.finish_deletion("j-t-2")
    world.run(world.run_until_quiet())
    assert world.phase == "Running"
    assert world.objects_by_name(PODS).keys() == {"j-t-0", "j-t-1"}
    world.api.inject_fault(how, method="POST", path="/pods")
    world.edit(tasks=[task("t", 3, policies=[])])
    world.run(world.pass_time(290))
    world.run(world.pass_time(20))
    assert world.objects_by_name(PODS).keys() == {"j-t-0", "j-t-1", "j-t-2"}
    world.run(world.run_until_quiet())
    assert world.status["pending"] == 1


INVALID = ("", "a/b", "..", "x%2f", "../../queues/default", "J", "a" * 254)
"""What no object is called."""


def command_to(world: JobWorld, **target: str) -> None:
    world.put(COMMANDS, "c", action="AbortJob", target=target or None)


@pytest.mark.parametrize("name", INVALID)
def test_a_command_to_what_no_job_is_called_is_reported_and_deleted(
    world: JobWorld, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    submit(world)
    asked = world.api.requests
    world.recorder.events.clear()
    command_to(world, apiVersion=JOBS.api_version, kind="Job", name=name)
    world.run(world.pass_time(1))
    assert world.objects_by_name(COMMANDS) == {}
    assert world.api.requests == asked + 1
    ((kind, about, event_type, reason, message),) = world.recorder.events
    assert (kind, about, event_type, reason) == ("Command", "c", "Warning", "InvalidTarget")
    assert message.startswith(f"cannot execute: target name {name[:253]!r} is invalid: ")
    assert "reconcile failed, requeuing" not in caplog.messages
    world.run(world.run_until_quiet())
    assert world.phase == "Pending"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ({}, "no target"),
        ({"name": "j"}, "the target has no apiVersion or kind"),
        (
            {"apiVersion": JOBS.api_version, "kind": "job", "name": "j"},
            "batch.volcano.sh/v1alpha1 job does not support Commands",
        ),
        (
            {"apiVersion": "batch.volcano.sh/v9", "kind": "Job", "name": "j"},
            "batch.volcano.sh/v9 Job does not support Commands",
        ),
        ({"apiVersion": "batch/v1", "kind": "Job", "name": "j"}, ""),
        ({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": "q"}, ""),
    ],
)
def test_a_command_that_is_for_no_controller_is_reported_and_left_alone(
    world: JobWorld, target: dict[str, str], problem: str
) -> None:
    submit(world)
    world.recorder.events.clear()
    command_to(world, **target)
    world.run(world.run_until_quiet())
    assert world.objects_by_name(COMMANDS).keys() == {"c"}
    assert world.phase == "Pending"
    message = [("Command", "c", "Warning", "InvalidTarget", f"cannot execute: {problem}")]
    assert world.recorder.events == (message if problem else [])


@pytest.mark.parametrize("name", ["a/b", "..", "x%2f"])
def test_pvc_with_an_invalid_name_is_reported_without_a_request(
    world: JobWorld, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    submit(world, volumes=[{"mountPath": "/data", "volumeClaimName": name}])
    assert world.status["state"]["reason"] == "PVCError"
    assert f'"{name}" not found: invalid name' in world.status["state"]["message"]
    assert "reconcile failed, requeuing" not in caplog.messages
