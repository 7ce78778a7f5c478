"""What the reference's job controller gets wrong, by the numbers of its list, and ours does not."""

from typing import Any

import pytest
from support.job_simulator import JobSimulator
from support.jobs import job, job_view, pod_info, task

from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.effects import CreatePods, DeletePods, SetStatus
from batholith.job_ctrl.status import next_status, policies
from batholith.job_ctrl.tracker import pod_info as pod_infos
from batholith.job_ctrl.tracker.core_types import (
    ContainerState,
    ContainerStatus,
    PodStatus,
    Terminated,
)
from batholith.job_ctrl.tracker.core_types import Pod as PodView
from batholith.job_ctrl.tracker.pod_info import LifecycleEvent
from batholith.job_ctrl.tracker.pod_tracker import PodTracker
from batholith.machinery.merge_patch import merge_patch
from batholith.model.job import JobEvent, JobState, JobStatus
from batholith.model.job_podgroup import desired_spec
from batholith.model.meta import ObjectMeta, OwnerReference
from batholith.model.pod import PodPhase as P


def lifecycle_policy(event: str, action: str, **fields: object) -> dict[str, object]:
    return {"action": action, "event": event, **fields}


def running_job(*tasks: dict[str, object], **spec: Any) -> JobSimulator:
    """A world whose job runs with all its pods."""
    world = JobSimulator(job(*tasks, **spec))
    world.run_until_stable()
    world.admit()
    run_all(world)
    assert world.phases[-1] == "Running"
    return world


def run_all(world: JobSimulator) -> None:
    """The kubelet starts what waits."""
    for name, pod in list(world.pods.items()):
        if pod.phase is P.PENDING:
            world.report_pod(name.removeprefix("j-"), P.RUNNING)
    world.run_until_stable()


def pod_creations(world: JobSimulator) -> dict[str, int]:
    """Number of creations of each pod, of all versions."""
    total: dict[str, int] = {}
    for (name, _), count in world.created.items():
        total[name] = total.get(name, 0) + count
    return total


# Counting and status.


def test_quirk_1_what_is_left_after_a_kill_is_counted() -> None:
    world = running_job(task("t", 3))
    world.report_pod("t-0", P.SUCCEEDED)
    world.run_until_stable()
    world.send_command("AbortJob")
    world.finish_deletions()
    assert (world.status.succeeded, world.status.running) == (1, 0)
    assert world.status.task_status_count["t"].phase == {"Succeeded": 1}


def test_quirk_2_the_time_of_transition_is_that_of_the_phase() -> None:
    world = running_job(task("t", 2), minAvailable=1)
    moment = world.status.state.last_transition_time
    world.monotonic_now += 100
    world.report_pod("t-0", P.SUCCEEDED)
    world.run_until_stable()
    assert world.status.succeeded == 1
    assert world.status.state.last_transition_time == moment


def test_quirk_3_a_job_that_is_over_writes_nothing_more() -> None:
    world = running_job(task("t", 1))
    world.report_pod("t-0", P.SUCCEEDED)
    world.run_until_stable()
    version = world.status.version
    world.crash()
    world.run_until_stable()  # the world refuses a write that changes nothing
    assert world.status.version == version


def test_quirk_4_empty_and_absent_are_the_same_in_a_status() -> None:
    bare = JobStatus(state=JobState(phase="Pending"), min_available=2)
    seen = job_view(job(status=bare))
    assert (
        not merge_patch({"taskStatusCount": {}}, {"taskStatusCount": {}})
        and next_status.update_counts(seen) == bare
    )


def test_quirk_5_a_pod_that_must_go_is_counted_once() -> None:
    world = running_job(task("t", 2), minAvailable=1)
    patched = job(task("t", 1), status=world.status)
    world.job = patched
    world.run_until_stable()
    assert (world.status.running, world.status.terminating) == (1, 1)
    world.finish_deletions()
    assert (world.status.running, world.status.terminating) == (1, 0)


@pytest.mark.parametrize(
    ("action", "phase", "failed", "terminating"),
    [
        ("RestartPod", "Restarting", 0, 1),
        ("RestartTask", "Restarting", 0, 3),
        ("RestartPartition", "Restarting", 0, 2),
        ("RestartJob", "Restarting", 0, 4),
        ("AbortJob", "Aborting", 1, 3),
        ("TerminateJob", "Terminating", 1, 3),
        ("CompleteJob", "Completing", 1, 3),
    ],
)
def test_a_job_enters_a_phase_with_the_pods_that_go_for_it_counted_as_terminating(
    action: str, phase: str, failed: int, terminating: int
) -> None:
    """As the reference does: clients wait for it. Asking the pods to go costs no further write."""
    partitions = {"totalPartitions": 2, "partitionSize": 2}
    world = running_job(
        task("t", 3, partitionPolicy=partitions),
        task("u", 1),
        policies=[lifecycle_policy("PodFailed", action)],
    )
    world.report_pod("t-0", P.FAILED, exit_code=1)
    while world.status.state.phase != phase:
        assert world.step()
    entered = world.status
    assert (entered.failed, entered.terminating) == (failed, terminating)
    assert entered.running + entered.failed + entered.terminating == 4
    world.run_until_stable()
    assert sum(pod.terminating for pod in world.pods.values()) == terminating
    assert world.status == entered


def test_quirk_7_a_new_job_s_status_names_its_plugins_at_once() -> None:
    (effect,) = decide(job_view(job(plugins={"svc": []}), podgroup=None))
    assert isinstance(effect, SetStatus)
    assert effect.status.controlled_resources == {"plugin-svc": "svc"}


# Retries and state.


@pytest.mark.parametrize(
    ("action", "end"),
    [("AbortJob", "Aborted"), ("TerminateJob", "Terminated"), ("CompleteJob", "Completed")],
)
def test_quirk_9_a_restarting_job_can_be_stopped(action: str, end: str) -> None:
    world = running_job()
    world.send_command("RestartJob")
    assert world.phases[-1] == "Restarting"
    world.send_command(action)
    world.finish_deletions()
    assert world.phases[-1] == end


def test_quirk_10_a_job_may_be_suspended_as_often_as_one_likes() -> None:
    world = running_job(maxRetry=1)
    for _ in range(5):
        for action in ("AbortJob", "ResumeJob"):
            world.send_command(action)
            world.finish_deletions()
        world.admit()
        run_all(world)
    assert (world.phases[-1], world.status.retry_count) == ("Running", 0)


@pytest.mark.parametrize("action", ["RestartTask", "RestartPod", "RestartPartition"])
def test_quirk_11_a_command_that_names_no_target_changes_nothing(action: str) -> None:
    world = running_job()
    before = world.status
    world.send_command(action)
    assert world.status == before
    assert world.has_plugin_objects


@pytest.mark.parametrize("action", ["RestartTask", "RestartPod"])
def test_quirks_12_and_g3_partial_restart_keeps_plugin_objects(action: str) -> None:
    world = running_job(
        task("t", 2),
        plugins={"svc": [], "ssh": []},
        policies=[lifecycle_policy("PodFailed", action)],
    )
    world.report_pod("t-0", P.FAILED, exit_code=1)
    while world.step():
        assert world.has_plugin_objects
    assert "plugin-ssh" in world.status.controlled_resources


def test_quirk_13_no_pod_is_created_before_the_plugin_objects() -> None:
    world = running_job(plugins={"ssh": []})
    world.send_command("RestartJob")
    world.finish_deletions()
    world.admit(settle=False)
    world.crash()  # so that the objects are synced again
    effects = decide(world.job_view())
    kinds = [type(effect).__name__ for effect in effects]
    assert kinds.index("EnsurePluginObjects") < kinds.index("CreatePods")


@pytest.mark.parametrize("dies_after", range(1, 7))
def test_quirk_16_restart_continues_after_a_failed_step(dies_after: int) -> None:
    world = running_job(task("t", 2), policies=[lifecycle_policy("PodFailed", "RestartJob")])
    world.report_pod("t-0", P.FAILED, exit_code=1)
    for _ in range(dies_after):
        world.step()
    world.crash()
    world.run_until_stable()
    world.finish_deletions()
    assert (world.status.retry_count, world.status.version) == (1, 1)
    assert "Restarting" in world.phases


# Versions, events, races.


def test_quirk_18_unobserved_events_match_policies_and_running_pods_are_not_pending() -> None:
    delayed = lifecycle_policy("PodPending", "AbortJob", timeout="1s")
    world = running_job(
        task("t", 2), policies=[delayed, lifecycle_policy("PodFailed", "RestartJob")]
    )
    world.crash()
    world.monotonic_now += 60
    world.run_until_stable()
    assert world.phases[-1] == "Running"
    failed = world.pods["j-t-0"]
    world.pods["j-t-0"] = pod_info(
        "t-0", P.FAILED, uid=failed.uid, version=failed.version, exit_code=1
    )
    world.crash()
    world.run_until_stable()
    assert world.phases[-1] == "Restarting"


def test_quirk_19_unknown_podgroup_matches_policies_after_a_controller_restart() -> None:
    of = job(policies=[lifecycle_policy("Unknown", "AbortJob")], status=JobStatus(version=7))
    seen = LifecycleEvent(event_type=JobEvent.JOB_UNKNOWN, owner="uid-j")
    matched = policies.match_policy(of, seen, PodTracker().counts(7, keep_finished=True))
    assert matched is not None and matched.action == "AbortJob"


def test_quirk_21_scaling_down_is_no_eviction() -> None:
    world = running_job(task("t", 3), policies=[lifecycle_policy("PodEvicted", "RestartJob")])
    world.job = job(
        task("t", 2),
        policies=[lifecycle_policy("PodEvicted", "RestartJob")],
        status=world.status,
    )
    world.run_until_stable()
    world.finish_deletions()
    assert (world.phases[-1], world.status.retry_count) == ("Running", 0)
    assert sorted(world.pods) == ["j-t-0", "j-t-1"]


def test_quirk_22_a_pod_that_fails_because_it_was_deleted_was_evicted() -> None:
    both = [lifecycle_policy("PodFailed", "RestartJob"), lifecycle_policy("PodEvicted", "AbortJob")]
    world = running_job(task("t", 2), policies=both)
    pod = world.pods["j-t-0"]
    tracker = world.pod_tracker
    for phase, code in ((P.RUNNING, 0), (P.FAILED, 143)):
        tracker.update(pod_info("t-0", phase, uid=pod.uid, terminating=True, exit_code=code))
    assert not [one for one in tracker.events if one.event_type is JobEvent.POD_FAILED]
    world.evict("t-0")
    assert world.phases[-1] in ("Aborting", "Aborted")


def test_quirk_24_a_pod_of_an_older_version_is_removed() -> None:
    now = JobStatus(state=JobState(phase="Running"), version=2, min_available=1)
    seen = job_view(job(task("t", 1), status=now), pod_info("t-0", version=1), podgroup="Running")
    assert any(
        isinstance(effect, DeletePods) and effect.pods[0].version == 1 for effect in decide(seen)
    )


def pod_of(kind: str, group: str, *, first: int = 0, second: int = 0) -> PodView:
    """A pod of two containers that ended so, owned by a *kind* of *group*."""
    owner = OwnerReference(
        api_version=f"{group}/v1alpha1", kind=kind, name="j", uid="u", controller=True
    )
    ended = tuple(
        ContainerStatus(state=ContainerState(terminated=Terminated(exit_code=code)))
        for code in (first, second)
    )
    notes = {
        "volcano.sh/job-name": "j", "volcano.sh/task-spec": "t", "volcano.sh/job-version": "0",
    }  # fmt: skip
    meta = ObjectMeta(name="j-t-0", uid="p", annotations=notes, owner_references=(owner,))
    return PodView(metadata=meta, status=PodStatus(phase="Failed", container_statuses=ended))


def test_quirk_23_the_exit_code_is_that_of_the_container_that_failed() -> None:
    read = pod_infos.parse_pod(pod_of("Job", "batch.volcano.sh", first=0, second=3))
    assert read is not None and read.exit_code == 3


def test_quirk_28_jobs_of_other_groups_are_none_of_ours() -> None:
    assert pod_infos.parse_pod(pod_of("Job", "batch")) is None


def test_quirk_29_pods_of_an_earlier_job_count_nowhere_and_hold_only_their_names() -> None:
    of = job(task("t", 2), status=JobStatus(state=JobState(phase="Pending"), min_available=2))
    seen = job_view(of, pod_info("t-0", owner="uid-before"))
    assert seen.pod_counts.in_phase(P.RUNNING) == 0
    creations = [one for one in decide(seen) if isinstance(one, CreatePods)]
    assert creations == [CreatePods({"t": (1,)})]


def test_quirk_30_unknown_dependency_blocks_nothing() -> None:
    of = job(
        task("t", 1, dependsOn={"name": ["nosuch"]}),
        status=JobStatus(state=JobState(phase="Pending"), min_available=1),
    )
    assert CreatePods({"t": (0,)}) in decide(job_view(of))


def test_quirk_31_partitions_count_for_members_and_resources_alike() -> None:
    cut = {"totalPartitions": 4, "partitionSize": 2, "minPartitions": 2}
    cpu = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    of = job(task("t", 8, partitionPolicy=cut, minAvailable=None, template=cpu), minAvailable=4)
    gang = desired_spec(of, priorities={})
    assert gang.min_task_member == {"t": 4}
    assert gang.min_resources is not None and gang.min_resources["cpu"] == "4"


# Delayed actions.


def test_quirk_34_lost_pod_is_recreated_while_a_policy_is_delayed() -> None:
    slow = lifecycle_policy("PodEvicted", "RestartJob", timeout="10s")
    world = running_job(task("t", 2), policies=[slow])
    world.evict("t-0")
    assert pod_creations(world) == {"t-0": 2, "t-1": 1}


def test_quirk_35_an_expired_timer_looks_again_before_it_acts() -> None:
    world = running_job(
        task("t", 2), policies=[lifecycle_policy("PodFailed", "RestartJob", timeout="10s")]
    )
    world.report_pod("t-0", P.FAILED, exit_code=1)
    world.run_until_stable()
    assert world.requeue_after == [10.0]
    world.evict("t-0")
    run_all(world)  # its replacement runs
    world.monotonic_now += 11
    world.run_until_stable()
    assert (world.phases[-1], world.status.retry_count) == ("Running", 0)


def test_quirk_36_a_pod_that_ends_without_having_run_was_not_pending_too_long() -> None:
    world = JobSimulator(
        job(task("t", 1), policies=[lifecycle_policy("PodPending", "AbortJob", timeout="10s")])
    )
    world.run_until_stable()
    world.admit()
    world.report_pod("t-0", P.SUCCEEDED)
    world.monotonic_now += 11
    world.run_until_stable()
    assert world.phases[-1] == "Completed"


# Seen in the recordings.


def test_quirk_37_delayed_action_records_its_event_when_executed() -> None:
    world = running_job(
        task("t", 2, policies=[lifecycle_policy("PodFailed", "TerminateJob", timeout="1m")]),
        minAvailable=1,
    )
    world.report_pod("t-0", P.FAILED, exit_code=1)
    for _ in range(3):
        world.run_until_stable()
        assert world.requeue_after == [60.0]
        assert "ExecuteAction" not in world.events
    world.monotonic_now += 60
    world.run_until_stable()
    assert world.events.count("ExecuteAction") == 1


@pytest.mark.parametrize(
    ("action", "phases"),
    [("TerminateJob", ["Terminating", "Terminated"]), ("AbortJob", ["Aborting", "Aborted"])],
)
def test_quirk_38_delayed_action_is_executed_as_named(action: str, phases: list[str]) -> None:
    world = running_job(
        task("t", 3), policies=[lifecycle_policy("PodFailed", action, timeout="5s")]
    )
    before = pod_creations(world)
    world.report_pod("t-0", P.FAILED, exit_code=1)
    world.run_until_stable()
    assert world.phases[-1] == "Running"
    world.monotonic_now += 6
    world.run_until_stable()
    world.finish_deletions()
    assert world.phases[-2:] == phases
    assert pod_creations(world) == before


def test_quirk_39_retries_are_checked_before_anything_is_created() -> None:
    world = running_job(
        task("t", 2), maxRetry=1, policies=[lifecycle_policy("PodFailed", "RestartPod")]
    )
    before = pod_creations(world)
    world.report_pod("t-0", P.FAILED, exit_code=1)
    world.run_until_stable()
    world.finish_deletions()
    assert world.phases[-1] == "Failed"
    assert pod_creations(world) == before


def test_quirk_40_lost_pod_matches_policies_before_it_is_replaced() -> None:
    world = running_job(task("t", 2), policies=[lifecycle_policy("PodEvicted", "AbortJob")])
    before = pod_creations(world)
    world.evict("t-0")
    world.finish_deletions()
    assert world.phases[-2:] == ["Aborting", "Aborted"]
    assert pod_creations(world) == before


def test_quirk_41_manually_deleted_podgroup_is_recreated_and_counts_continue() -> None:
    world = running_job(task("t", 2), minAvailable=1)
    world.podgroup = None
    world.report_pod("t-0", P.SUCCEEDED)
    world.run_until_stable()
    assert world.podgroup is not None
    assert world.status.succeeded == 1


@pytest.mark.parametrize("phase", ["Pending", "Unknown", ""])
def test_quirk_42_counts_do_not_depend_on_the_podgroup(phase: str) -> None:
    world = running_job(task("t", 3), minAvailable=1)
    world.admit(phase, settle=False)
    world.evict("t-0", settle=False)
    world.report_pod("t-1", P.SUCCEEDED)
    world.run_until_stable()
    assert world.status.succeeded == 1
    assert pod_creations(world)["t-0"] == 2


def test_quirk_43_unsatisfiable_gang_is_reported() -> None:
    world = running_job(task("t", 2))
    world.report_pod("t-0", P.FAILED, exit_code=1)
    world.run_until_stable()
    world.evict("t-1")
    assert "NotEnoughPods" in world.events


def test_quirk_a1_policy_for_an_event_that_never_occurs_causes_a_warning() -> None:
    updated = lifecycle_policy("JobUpdated", "RestartJob")
    for spec in ({"policies": [updated]}, {"tasks": [task("t", policies=[updated])]}):
        world = JobSimulator(job(**spec))
        world.run_until_stable()
        assert world.events == ["PolicyCannotFire"]
    world = JobSimulator(job(policies=[lifecycle_policy("*", "RestartJob")]))
    world.run_until_stable()
    assert world.events == []


def test_quirk_45_policy_that_can_never_fire_causes_a_warning() -> None:
    never = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}
    policy = lifecycle_policy("TaskFailed", "RestartTask")
    world = running_job(task("t", 2, template=never, policies=[policy]), minAvailable=1)
    assert "PolicyCannotFire" not in world.events
    world.report_pod("t-0", P.FAILED, exit_code=1)
    world.run_until_stable()
    assert "PolicyCannotFire" in world.events
