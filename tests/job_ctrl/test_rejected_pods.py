"""Pods that never ran: rejected by a kubelet, or replaced by the scheduler."""

import dataclasses
from typing import Any

import msgspec
import pytest
from support.job_simulator import JobSimulator
from support.jobs import job, pod_info, task

from batholith.job_ctrl.tracker.core_types import Pod
from batholith.job_ctrl.tracker.pod_info import parse_pod
from batholith.job_ctrl.tracker.pod_tracker import PodTracker
from batholith.model.job import Job
from batholith.model.job_reasons import Reason
from batholith.model.names import REPLACED_BY_SCHEDULER
from batholith.model.pod import PodPhase, is_rejection

P = PodPhase
RESTART_ON_ANY = {"action": "RestartJob", "events": ["*"]}


def simulated(**spec: Any) -> JobSimulator:
    """A job of two pods whose pods were created, and which restarts on any event of a policy."""
    world = JobSimulator(job(task("t", 2, minAvailable=2), policies=[RESTART_ON_ANY], **spec))
    world.run_until_stable()
    world.admit()
    return world


def reject(world: JobSimulator, name: str, reason: str = "OutOfcpu") -> None:
    """The kubelet rejects a pod."""
    pod = world.pods[f"j-{name}"]
    world.update_pod(dataclasses.replace(pod, phase=P.FAILED, rejection=reason))


def mark_replaced(world: JobSimulator, name: str) -> None:
    """The scheduler writes its condition, and requests the eviction."""
    pod = world.pods[f"j-{name}"]
    world.update_pod(dataclasses.replace(pod, replaced=True))
    pod = world.pods[f"j-{name}"]
    world.update_pod(dataclasses.replace(pod, terminating=True))


@pytest.mark.parametrize("crash", [False, True])
def test_a_rejected_pod_is_created_again_without_a_retry_or_a_policy(crash: bool) -> None:
    world = simulated()
    before = world.pods["j-t-0"].uid
    world.report_pod("t-1", P.RUNNING)
    reject(world, "t-0")
    for _ in range(20):
        if crash:
            world.crash()
        if not world.step():
            break
        world.finish_deletions(settle=False)
    world.run_until_stable()
    assert world.pods["j-t-0"].uid != before
    assert world.created["t-0", 0] == 2
    assert world.status.retry_count == 0
    assert world.status.version == 0
    world.report_pod("t-0", P.RUNNING)
    world.run_until_stable()
    assert world.status.state.phase == "Running"
    assert "Restarting" not in world.phases


def test_a_rejected_pod_is_reported_and_counts_as_terminating() -> None:
    world = simulated()
    reject(world, "t-0")
    world.step()
    assert (world.status.failed, world.status.terminating) == (0, 1)
    assert any(Reason.POD_REJECTED in each or "OutOfcpu" in each for each in world.events)


def test_a_pod_that_is_rejected_again_is_replaced_after_a_delay() -> None:
    world = simulated()
    delays = []
    for _ in range(4):
        reject(world, "t-0", "UnexpectedAdmissionError")
        world.run_until_stable()
        delays.append(world.requeue_after[0] if world.requeue_after else 0.0)
        world.monotonic_now += delays[-1]
        world.run_until_stable()
        world.finish_deletions()
    assert delays == [0.0, 10.0, 20.0, 40.0]
    world.report_pod("t-0", P.RUNNING)
    world.run_until_stable()
    world.evict("t-1", settle=False)  # another pod does not wait
    reject(world, "t-0")
    world.step()
    assert not world.requeue_after


def test_a_rejected_pod_that_another_client_deletes_is_not_evicted() -> None:
    world = simulated()
    reject(world, "t-0")
    world.evict("t-0")
    assert world.status.retry_count == 0
    assert world.created["t-0", 0] == 2


@pytest.mark.parametrize("phase", [P.PENDING, P.RUNNING])
@pytest.mark.parametrize("crash", [False, True])
def test_a_pod_that_the_scheduler_replaces_costs_no_retry_and_no_policy(
    phase: PodPhase, crash: bool
) -> None:
    world = simulated()
    world.report_pod("t-0", phase)
    world.run_until_stable()
    mark_replaced(world, "t-0")
    world.run_until_stable()
    if crash:
        world.crash()
    world.finish_deletions()
    assert world.created["t-0", 0] == 2
    assert (world.status.retry_count, world.status.version) == (0, 0)
    assert "Restarting" not in world.phases


def test_a_pod_that_fails_before_it_is_replaced_has_failed() -> None:
    """The condition alone deletes nothing: the eviction may be rejected."""
    world = simulated()
    world.report_pod("t-0", P.RUNNING)
    world.report_pod("t-1", P.RUNNING)
    world.run_until_stable()
    pod = world.pods["j-t-0"]
    world.update_pod(dataclasses.replace(pod, replaced=True))
    world.report_pod("t-0", P.FAILED, exit_code=1)
    world.run_until_stable()
    assert world.status.retry_count == 1


def parsed(**status: Any) -> Any:
    """The pod *j-t-0* with *status*."""
    metadata = {
        "name": "j-t-0",
        "namespace": "ns",
        "uid": "u",
        "annotations": {
            "volcano.sh/job-name": "j", "volcano.sh/task-spec": "t", "volcano.sh/job-version": "0",
        },
        "ownerReferences": [{
            "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "uid-j",
            "controller": True,
        }],
    }  # fmt: skip
    found = parse_pod(msgspec.convert({"metadata": metadata, "status": status}, Pod))
    assert found is not None
    return found


def test_rejections_are_recognised_by_reason_and_by_containers_that_never_started() -> None:
    terminated = {"state": {"terminated": {"exitCode": 1}}}
    restarted = {"state": {}, "lastState": {"terminated": {"exitCode": 0}}}
    assert parsed(phase="Failed", reason="OutOfnvidia.com/gpu").rejection == "OutOfnvidia.com/gpu"
    assert parsed(phase="Failed", reason="NodePorts", containerStatuses=[]).rejection == "NodePorts"
    for status in (
        {"phase": "Failed", "reason": "Evicted"},
        {"phase": "Failed"},
        {"phase": "Running", "reason": "OutOfcpu"},
        {"phase": "Failed", "reason": "OutOfcpu", "containerStatuses": [terminated]},
        {"phase": "Failed", "reason": "OutOfcpu", "initContainerStatuses": [terminated]},
        {"phase": "Failed", "reason": "OutOfcpu", "containerStatuses": [restarted]},
    ):
        assert parsed(**status).rejection == "", status


@pytest.mark.parametrize(
    "reason",
    [
        "NodeAffinity", "NodePorts", "NodeShutdown", "OutOfcpu", "OutOfmemory", "OutOfpods",
        "TaintToleration", "TopologyAffinityError", "UnexpectedAdmissionError",
    ],
)  # fmt: skip
def test_reasons_of_rejections(reason: str) -> None:
    assert is_rejection("Failed", reason)
    assert not is_rejection("Succeeded", reason)


@pytest.mark.parametrize("reason", ["", "SysctlForbidden", "DeadlineExceeded", "Evicted", "Error"])
def test_reasons_that_would_recur_or_follow_a_start_are_failures(reason: str) -> None:
    assert not is_rejection("Failed", reason)


def test_the_condition_of_the_scheduler_is_recognised_by_its_type() -> None:
    conditions = [{"type": REPLACED_BY_SCHEDULER, "status": "True", "reason": "any"}]
    assert parsed(phase="Running", conditions=conditions).replaced
    conditions[0]["status"] = "False"
    assert not parsed(phase="Running", conditions=conditions).replaced
    other = [{"type": "DisruptionTarget", "status": "True", "message": REPLACED_BY_SCHEDULER}]
    assert not parsed(phase="Running", conditions=other).replaced


def test_a_rejected_pod_of_an_older_version_is_deleted_once() -> None:
    tracker = PodTracker()
    found: Job = job(task("t", 2))
    tracker.set_job(found)
    tracker.update(pod_info("t-0", P.FAILED, rejection="OutOfcpu"))
    assert [each.name for each in tracker.excess()] == ["j-t-0"]
    assert list(tracker.outdated(1)) == []
    tracker.validate()
