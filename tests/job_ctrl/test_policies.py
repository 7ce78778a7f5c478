"""Matching of events with policies."""

from typing import Any

import msgspec
import pytest
from support.jobs import job, job_view, pod_info, task

from batholith.job_ctrl.status import policies
from batholith.job_ctrl.status.phases import RULES
from batholith.job_ctrl.tracker.pod_info import LifecycleEvent, PodCounts
from batholith.job_ctrl.tracker.pod_tracker import PodTracker
from batholith.model.job import JobEvent as E
from batholith.model.job import JobState, JobStatus
from batholith.model.pod import PodPhase

FAILED = LifecycleEvent(
    event_type=E.POD_FAILED, task="t", pod="j-t-0", owner="uid-j", version=0, exit_code=3
)


def matched_action(event: LifecycleEvent = FAILED, **spec: Any) -> str | None:
    own = spec.pop("own", [])
    seen = job_view(
        job(task(policies=own), **spec), pod_info("t-0", PodPhase.SUCCEEDED), pod_info("t-1")
    )
    policy = policies.match_policy(seen.job, event, seen.pod_counts)
    return policy.action if policy else None


@pytest.mark.parametrize(
    ("given", "action"),
    [
        ([{"action": "AbortJob", "event": "PodFailed"}], "AbortJob"),
        ([{"action": "AbortJob", "events": ["PodEvicted", "PodFailed"]}], "AbortJob"),
        ([{"action": "AbortJob", "event": "*"}], "AbortJob"),
        ([{"action": "AbortJob", "event": "PodEvicted"}], None),
        ([{"action": "AbortJob", "exitCode": 3}], "AbortJob"),
        ([{"action": "AbortJob", "exitCode": 4}], None),
        ([{"action": "RestartJob", "exitCode": 4}, {"action": "AbortJob", "event": "PodFailed"}],
         "AbortJob"),
        ([{"action": "RestartJob", "exitCode": 3}, {"action": "AbortJob", "event": "PodFailed"}],
         "RestartJob"),
        ([{"action": "SyncJob", "exitCode": 3}], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_first_policy_that_matches_wins(given: list[Any], action: str | None) -> None:
    assert matched_action(policies=given) == action
    assert matched_action(own=given) == action


def test_policies_of_a_task_precede_those_of_the_job() -> None:
    own, jobs = [{"action": "RestartTask", "event": "PodFailed"}], [
        {"action": "AbortJob", "event": "PodFailed"}
    ]  # fmt: skip
    assert matched_action(own=own, policies=jobs) == "RestartTask"


def test_event_of_an_earlier_job_or_version_matches_no_policy() -> None:
    """INV-VC-4."""
    any_event = [{"action": "AbortJob", "event": "*"}]
    strange = LifecycleEvent(event_type=E.POD_FAILED, task="t", owner="uid-earlier", version=0)
    assert matched_action(strange, policies=any_event) is None
    of = job(policies=any_event, status=JobStatus(version=1))
    assert policies.match_policy(of, FAILED, job_view(of).pod_counts) is None


def test_pending_needs_a_timeout_and_a_task_all_its_pods() -> None:
    pending = LifecycleEvent(event_type=E.POD_PENDING, task="t", owner="uid-j", version=0)
    assert matched_action(pending, policies=[{"action": "AbortJob", "event": "*"}]) is None
    timed = [{"action": "AbortJob", "event": "PodPending", "timeout": "1m"}]
    assert matched_action(pending, policies=timed) == "AbortJob"
    completed = LifecycleEvent(event_type=E.TASK_COMPLETED, task="t", owner="uid-j", version=0)
    assert (
        matched_action(completed, policies=[{"action": "AbortJob", "event": "TaskCompleted"}])
        is None
    )


def test_unknown_podgroup_matches_policies_of_the_job() -> None:
    unknown = LifecycleEvent(event_type=E.JOB_UNKNOWN, owner="uid-j")
    assert (
        matched_action(unknown, policies=[{"action": "AbortJob", "event": "Unknown"}]) == "AbortJob"
    )


@pytest.mark.parametrize(("timeout", "due"), [(None, 1.0), ("500ms", 1.0), ("5s", 5.0)])
def test_a_gang_must_stay_unknown_for_a_moment(timeout: str | None, due: float) -> None:
    """While a deleted pod is being replaced its PodGroup is Unknown, too."""
    policy = {"action": "AbortJob", "event": "Unknown", "timeout": timeout}
    of = job(task(replicas=1), policies=[policy], status=JobStatus(state=JobState("Running")))
    seen = job_view(of, pod_info("t-0", PodPhase.RUNNING), podgroup="Unknown")
    tracker = seen.pod_tracker
    assert isinstance(tracker, PodTracker)
    tracker.add_event(LifecycleEvent(event_type=E.JOB_UNKNOWN, owner="uid-j", occurred_at=100.0))

    def moves(now: float) -> bool:
        later = msgspec.structs.replace(seen, monotonic_now=now)
        return bool(policies.apply_policies(later, RULES[later.phase].transitions(later))[1])

    assert not moves(100.0 + due - 0.1) and moves(100.0 + due)
    tracker.clear_event(E.JOB_UNKNOWN)
    assert not moves(100.0 + due)


COMPLETE = PodCounts(tasks={"t": {PodPhase.SUCCEEDED: 1}}, ready={}, restarts={"t": 3})
"""All pods of task ``t`` have succeeded, and its containers have been restarted too often."""


IGNORED_EVENT_CASES = (E.OUT_OF_SYNC, E.COMMAND_ISSUED, E.POD_RUNNING)


@pytest.mark.parametrize("timeout", [None, "5s"])
@pytest.mark.parametrize("asked", E)
@pytest.mark.parametrize("event", [event for event in E if event is not E.ANY])
def test_policy_matches_its_event_and_no_other(event: E, asked: E, timeout: str | None) -> None:
    pod_event = LifecycleEvent(event_type=event, task="t", pod="j-t-0", owner="uid-j", version=0)
    fits = asked in (event, E.ANY) and event not in IGNORED_EVENT_CASES
    fits = fits and (event is not E.POD_PENDING or timeout is not None)
    for named in ({"event": asked}, {"events": [asked]}, {"event": "x", "events": ["y", asked]}):
        one = {"action": "AbortJob", "timeout": timeout, **named}
        for of in (job(task("t", 1, policies=[one])), job(task("t", 1), policies=[one])):
            matched = policies.match_policy(of, pod_event, COMPLETE)
            assert (matched is not None) == fits


@pytest.mark.parametrize("event", [E.POD_FAILED, E.POD_EVICTED, E.TASK_FAILED, E.JOB_UNKNOWN])
@pytest.mark.parametrize("code", [0, 3, 4])
def test_exit_code_matches_its_policy_alone(event: E, code: int) -> None:
    pod_event = LifecycleEvent(event_type=event, task="t", owner="uid-j", version=0, exit_code=code)
    of = job(task("t", 1), policies=[{"action": "AbortJob", "exitCode": 3}])
    assert (policies.match_policy(of, pod_event, COMPLETE) is not None) == (code == 3)


LISTS = {
    "first": [{"action": "RestartTask", "event": "PodFailed"}],
    "second": [{"action": "AbortJob", "event": "PodEvicted"},
               {"action": "CompleteJob", "event": "*"}],
    "none": [{"action": "AbortJob", "event": "PodEvicted"}],
    "void": [{"action": "SyncJob", "event": "PodFailed"}, {"action": "AbortJob", "event": "*"}],
    "empty": [],
}  # fmt: skip
MATCHES = {"first": "RestartTask", "second": "CompleteJob", "void": None}


@pytest.mark.parametrize("own", LISTS)
@pytest.mark.parametrize("jobs", LISTS)
@pytest.mark.parametrize("of_task", ["t", "other", ""])
def test_task_policies_precede_and_the_first_match_counts(
    own: str, jobs: str, of_task: str
) -> None:
    of = job(task("t", 1, policies=LISTS[own]), policies=LISTS[jobs])
    event = LifecycleEvent(event_type=E.POD_FAILED, task=of_task, owner="uid-j", version=0)
    matched = policies.match_policy(of, event, COMPLETE)
    asked = own if of_task == "t" and own in MATCHES else jobs
    assert (matched.action if matched else None) == MATCHES.get(asked)


@pytest.mark.parametrize("owner", ["uid-j", "uid-before"])
@pytest.mark.parametrize("version", [None, 0, 1, 2])
def test_events_of_another_job_or_an_older_version_match_nothing(
    owner: str, version: int | None
) -> None:
    """INV-VC-4, cell by cell."""
    of = job(task("t", 1), policies=LISTS["first"], status=JobStatus(version=1))
    event = LifecycleEvent(event_type=E.POD_FAILED, task="t", owner=owner, version=version)
    answered = policies.match_policy(of, event, COMPLETE) is not None
    assert answered == (owner == "uid-j" and version != 0)
