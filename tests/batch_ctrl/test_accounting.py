"""Counting of ended pods, as a state machine without a controller."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_views import FAILED, RUNNING, START_TEXT, SUCCEEDED, indexed, job, pod, view

from batholith.batch_ctrl import accounting, conditions
from batholith.batch_ctrl.accounting import MAX_UNCOUNTED_PODS, Counting
from batholith.batch_ctrl.batch_pod import BatchPod
from batholith.batch_ctrl.conditions import BACKOFF_LIMIT_EXCEEDED, COMPLETIONS_REACHED, Outcome
from batholith.batch_ctrl.core_types import Job, PolicyAction
from batholith.batch_ctrl.evaluation import evaluate
from batholith.batch_ctrl.failure_policy import FailureMatch
from batholith.batch_ctrl.status import normalized, to_json
from batholith.model.pod import PodPhase

IGNORED = FailureMatch(PolicyAction.IGNORE)
POLICY: dict[str, Any] = {
    "podFailurePolicy": {"rules": [{"action": "Count", "onPodConditions": []}]}
}


def _account(of: Job, *pods: BatchPod, outcome: Outcome | None = None) -> Counting:
    state = view(of, *pods, seconds=60)
    return accounting.count(state, evaluate(state), outcome)


def _lists(found: Counting) -> tuple[list[str], list[str]]:
    lists = found.effect.status.uncounted_terminated_pods
    assert lists is not None
    return list(lists.succeeded), list(lists.failed)


def test_ended_pods_are_listed_before_they_are_released() -> None:
    """INV-BJ-1, INV-BJ-2."""
    found = _account(job(), pod(1, SUCCEEDED), pod(2, FAILED), pod(3, RUNNING))
    assert _lists(found) == (["u1"], ["u2"])
    assert [one.name for one in found.release] == ["p1", "p2"]
    assert (found.effect.status.succeeded, found.effect.status.failed) == (0, 0)


def test_pods_without_the_finalizer_are_moved_to_the_counters() -> None:
    """INV-BJ-1: from the lists alone, as after a restart."""
    of = job({"failed": 1, "uncountedTerminatedPods": {"succeeded": ["a", "u1"], "failed": ["b"]}})
    found = _account(of, pod(1, SUCCEEDED), pod(2, SUCCEEDED, finalizer=False))
    assert _lists(found) == (["u1"], [])
    assert (found.effect.status.succeeded, found.effect.status.failed) == (1, 2)


def test_index_is_counted_once() -> None:
    """INV-BJ-1: also if two of its pods succeed."""
    of = indexed(3, {"completedIndexes": "0", "succeeded": 1})
    pods = [pod(1, SUCCEEDED, index=0), pod(2, SUCCEEDED, index=2), pod(3, SUCCEEDED, index=2)]
    found = _account(of, *pods, pod(4, SUCCEEDED, index=5), pod(5, FAILED, index=5))
    assert (found.effect.status.succeeded, found.effect.status.completed_indexes) == (2, "0,2")
    assert len(found.release) == 5 and _lists(found) == ([], [])


def test_ignored_failure_is_released_uncounted() -> None:
    found = _account(job(**POLICY), pod(1, FAILED, match=IGNORED))
    assert len(found.release) == 1 and _lists(found) == ([], [])
    assert found.effect.policy_actions == {PolicyAction.IGNORE: 1}


def test_retained_pod_is_not_released() -> None:
    of = indexed(2, backoffLimitPerIndex=3)
    found = _account(of, pod(1, FAILED, index=0), pod(2, FAILED, index=0, failures=1))
    assert [one.name for one in found.release] == ["p1"]
    assert found.effect.status.failed_indexes == ""


@pytest.mark.parametrize(
    ("outcome", "failed"), [(BACKOFF_LIMIT_EXCEEDED, ["u1", "u2"]), (COMPLETIONS_REACHED, ["u2"])]
)
def test_end_of_the_job_releases_all_pods(outcome: Outcome, failed: list[str]) -> None:
    """INV-BJ-10: those deleted because the Job succeeded have not failed."""
    found = _account(job(), pod(1, RUNNING), pod(2, FAILED), outcome=outcome)
    assert len(found.release) == 2 and _lists(found)[1] == failed
    assert found.effect.status.conditions[-1].type == outcome.interim


def test_pods_deleted_because_of_success_do_not_fail_after_a_restart() -> None:
    """INV-BJ-10."""
    met = {"type": "SuccessCriteriaMet", "status": "True"}
    found = _account(
        job({"conditions": [met]}), pod(1, terminating=True), outcome=conditions.success("", "")
    )
    assert len(found.release) == 1 and _lists(found) == ([], [])


def test_deleted_job_releases_all_pods() -> None:
    """INV-BJ-2."""
    found = _account(job(deleted=True), pod(1, RUNNING), pod(2, SUCCEEDED))
    assert len(found.release) == 2 and _lists(found) == (["u2"], [])


def test_number_of_listed_pods_is_limited() -> None:
    found = _account(job(), *(pod(number, SUCCEEDED) for number in range(600)))
    assert len(found.release) == len(_lists(found)[0]) == MAX_UNCOUNTED_PODS and found.capped
    of = indexed(600)
    pods = [pod(number, SUCCEEDED, index=number) for number in range(600)]
    found = _account(of, *pods)
    assert found.effect.status.completed_indexes == "0-499" and found.capped


@pytest.mark.parametrize(
    ("changes", "finished"),
    [
        ({}, True),
        ({"active": 1}, False),
        ({"terminating": 1}, False),
        ({"uncountedTerminatedPods": {"failed": ["a"]}}, False),
    ],
)
def test_job_ends_once_nothing_is_left(changes: dict[str, object], finished: bool) -> None:
    """INV-BJ-5, INV-BJ-11."""
    for outcome in (COMPLETIONS_REACHED, BACKOFF_LIMIT_EXCEEDED):
        status = accounting.finish(job(changes).status, outcome, now=START_TEXT)
        assert conditions.is_finished(status.conditions) == finished
        completed = finished and outcome.is_success
        assert status.completion_time == (START_TEXT if completed else None)


def test_suspension_clears_the_start_time() -> None:
    later = "2026-01-01T00:01:00Z"
    suspended = accounting.suspend_or_resume(job().status, conditions.SUSPENDED, now=later)
    assert suspended.start_time is None
    assert accounting.suspend_or_resume(suspended, conditions.SUSPENDED, now="") is suspended
    resumed = accounting.suspend_or_resume(suspended, conditions.RESUMED, now=later)
    assert resumed.start_time == later
    unchanged = job().status
    assert accounting.suspend_or_resume(unchanged, conditions.RESUMED, now=later) is unchanged


def test_status_has_the_fields_of_kube_controller_manager() -> None:
    empty = normalized(job().status)
    assert to_json(empty) == {"startTime": START_TEXT, "uncountedTerminatedPods": {}}
    full = _account(indexed(1, backoffLimitPerIndex=0), pod(1, SUCCEEDED, index=0)).effect.status
    assert to_json(full) == {
        "startTime": START_TEXT,
        "ready": 0,
        "terminating": 0,
        "succeeded": 1,
        "completedIndexes": "0",
        "failedIndexes": "",
        "uncountedTerminatedPods": {},
    }


@given(
    st.lists(st.tuples(st.sampled_from(PodPhase), st.booleans()), max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.frozensets(st.integers(0, 8))), max_size=6),
)
def test_each_pod_is_counted_once_in_any_order_of_crashes(
    pods: list[tuple[PodPhase, bool]], steps: list[tuple[int, frozenset[int]]]
) -> None:
    """INV-BJ-1, INV-BJ-2: a sync is cut off after write 1, some removals, or write 2."""
    infos = [
        pod(number, phase, terminating=terminating)
        for number, (phase, terminating) in enumerate(pods)
    ]
    current = {one.uid: one for one in infos}
    of = job(completions=9, parallelism=9, backoffLimit=99)
    for stop_after, removed in [*steps, (3, frozenset(range(9)))]:
        state = view(of, *current.values(), seconds=60)
        found = accounting.count(state, evaluate(state), None)
        if stop_after == 0:
            continue
        of = msgspec.structs.replace(of, status=found.effect.status)
        if stop_after == 1:
            continue
        for number, one in enumerate(found.release):
            if number in removed:
                current[one.uid] = replace(one, finalizer=False)
        if stop_after == 2:
            continue
        settled = accounting.settle(of.status, lambda uid: current[uid].finalizer)
        of = msgspec.structs.replace(of, status=settled)
    failed = sum(one.has_failed(replaces_only_failed=False) for one in infos)
    assert of.status.succeeded == sum(one.succeeded for one in infos)
    assert of.status.failed == failed
    assert to_json(of.status)["uncountedTerminatedPods"] == {}
