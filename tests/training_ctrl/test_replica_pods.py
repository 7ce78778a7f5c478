"""Reactions to failed pods, and what is reported of pods."""

import msgspec
import pytest
from support.training_harness import replica
from support.training_jobs import pod, typed

from batholith.training_ctrl.core_types import Pod
from batholith.training_ctrl.replica_pods import (
    Reaction,
    abnormal_messages,
    container_restarts,
    deletion_requested_by,
    exit_code,
    pod_restart_policy,
    reaction,
)

JOB = typed("PyTorchJob", Master=replica("PyTorchJob"))


def test_reactions_to_all_exit_codes() -> None:
    """INV-TJ-8: exit codes 0 to 255 and four policies."""
    for code in (*range(256), None):
        assert reaction("Always", code) is Reaction.RESTART
        assert reaction("OnFailure", code) is Reaction.RESTART
        assert reaction("Never", code) is Reaction.LEAVE
        retried = code is None or code >= 128
        assert reaction("ExitCode", code) is (Reaction.RESTART if retried else Reaction.FAIL)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Always", "Always"),
        ("OnFailure", "OnFailure"),
        ("Never", "Never"),
        ("ExitCode", "Never"),
    ],
)
def test_restart_policy_of_pods(policy: str, expected: str) -> None:
    assert pod_restart_policy(policy) == expected


def test_exit_code_is_that_of_the_main_container() -> None:
    assert exit_code(pod(JOB, "Master", 0, "Failed", code=3), "pytorch") == 3
    assert exit_code(pod(JOB, "Master", 0, "Failed", code=3), "other") is None
    assert exit_code(pod(JOB, "Master", 0, "Failed"), "pytorch") is None


def test_restarts_count_in_running_pods_only() -> None:
    assert container_restarts(pod(JOB, "Master", 0, restarts=2)) == 2
    assert container_restarts(pod(JOB, "Master", 0, "Failed", restarts=2)) == 0


@pytest.mark.parametrize(
    ("deletion", "expected"),
    [("2026-01-01T00:00:40Z", True), ("2026-01-01T00:00:41Z", False)],
)
def test_deletion_is_requested_a_grace_period_before_its_time(
    deletion: str, expected: bool
) -> None:
    found = pod(JOB, "Master", 0, deletionTimestamp=deletion, deletionGracePeriodSeconds=30)
    assert deletion_requested_by(found, "2026-01-01T00:00:10Z") is expected
    assert not deletion_requested_by(found, None)


def test_abnormal_states_of_an_active_pod() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": "bad"}}
    statuses = [{"name": "a", "state": waiting}, {"name": "b", "state": ended}, {"name": "c"}]
    body = {"metadata": {"name": "p"}, "status": {"phase": "Pending"}}
    with_containers = msgspec.convert(
        {**body, "status": {"phase": "Pending", "containerStatuses": statuses}}, Pod
    )
    assert abnormal_messages(with_containers) == (
        ("ImagePullBackOff", "Error pod p container a waiting message: no image"),
        ("Error", "Error pod p container b exitCode: 2 terminated message: bad"),
    )
    condition = {"type": "PodScheduled", "status": "False", "reason": "Full", "message": "m"}
    unscheduled = msgspec.convert(
        {**body, "status": {"phase": "Pending", "conditions": [condition]}}, Pod
    )
    assert abnormal_messages(unscheduled) == (("Full", "Error pod p condition message: m"),)
    failed = msgspec.convert(
        {**body, "status": {"phase": "Failed", "containerStatuses": statuses}}, Pod
    )
    assert abnormal_messages(failed) == ()
