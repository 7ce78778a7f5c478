"""Which policy answers what."""

from typing import Any

import pytest
from support_jobs import entry, job, task, view

from batholith.job_ctrl import policies
from batholith.job_ctrl.ledger import Happening
from batholith.model.job import JobEvent, JobStatus
from batholith.model.pod import PodPhase

FAILED = Happening(
    event=JobEvent.POD_FAILED, task="t", pod="j-t-0", owner="uid-j", version=0, exit_code=3
)


def answer(happening: Happening = FAILED, **spec: Any) -> str | None:
    own = spec.pop("own", [])
    seen = view(job(task(policies=own), **spec), entry("t-0", PodPhase.SUCCEEDED), entry("t-1"))
    policy = policies.answer(seen.job, happening, seen.pods)
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
    assert answer(policies=given) == action
    assert answer(own=given) == action


def test_a_tasks_policies_come_before_the_jobs() -> None:
    own, jobs = [{"action": "RestartTask", "event": "PodFailed"}], [
        {"action": "AbortJob", "event": "PodFailed"}
    ]  # fmt: skip
    assert answer(own=own, policies=jobs) == "RestartTask"


def test_what_concerns_an_earlier_job_or_version_is_answered_by_nobody() -> None:
    """INV-VC-4."""
    any_event = [{"action": "AbortJob", "event": "*"}]
    strange = Happening(event=JobEvent.POD_FAILED, task="t", owner="uid-earlier", version=0)
    assert answer(strange, policies=any_event) is None
    of = job(policies=any_event, status=JobStatus(version=1))
    assert policies.answer(of, FAILED, view(of).pods) is None


def test_pending_needs_a_timeout_and_a_task_all_its_pods() -> None:
    pending = Happening(event=JobEvent.POD_PENDING, task="t", owner="uid-j", version=0)
    assert answer(pending, policies=[{"action": "AbortJob", "event": "*"}]) is None
    timed = [{"action": "AbortJob", "event": "PodPending", "timeout": "1m"}]
    assert answer(pending, policies=timed) == "AbortJob"
    completed = Happening(event=JobEvent.TASK_COMPLETED, task="t", owner="uid-j", version=0)
    assert answer(completed, policies=[{"action": "AbortJob", "event": "TaskCompleted"}]) is None


def test_an_unknown_gang_asks_the_jobs_policies() -> None:
    unknown = Happening(event=JobEvent.JOB_UNKNOWN, owner="uid-j")
    assert answer(unknown, policies=[{"action": "AbortJob", "event": "Unknown"}]) == "AbortJob"
