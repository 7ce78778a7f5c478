"""What a job waits for before anything is created for it."""

from datetime import timedelta
from typing import Any

import pytest
from support.job_stateful import JobWorld
from support.jobs import task

from batholith.api.jobs.waits import WaitView, explain_wait
from batholith.model import times
from batholith.model.dependencies import parse_dependencies
from batholith.model.names import BEGIN, DEPENDS_ON, JOBS, SUBMITTED_BY, SUBMITTED_NAME
from batholith.wire.jobs import JobSummary, Phase, WaitReason

SPEC = {"minAvailable": 1, "maxRetry": 3, "queue": "q", "tasks": [task("t", 1)]}


def submit(world: JobWorld, name: str, on: str = "", *, begin: str = "", **labels: str) -> None:
    annotations = {SUBMITTED_BY: labels.pop("user", "alice")}
    annotations |= {DEPENDS_ON: on} if on else {}
    annotations |= {BEGIN: begin} if begin else {}
    found = {SUBMITTED_NAME: labels["label"]} if labels else {}
    metadata = {"annotations": annotations, "labels": found}
    world.put(JOBS, f"ns/{name}", metadata=metadata, spec=SPEC)
    world.run(world.run_until_quiet())


def state(world: JobWorld, name: str) -> dict[str, Any]:
    job: dict[str, Any] = world.objects_by_key(JOBS)[f"ns/{name}"]
    found: dict[str, Any] = job["status"]["state"]
    return found


def has_begun(world: JobWorld, name: str) -> bool:
    return world.group(f"ns/{name}") is not None


def finish(world: JobWorld, name: str, phase: str = "Succeeded") -> None:
    """The pod of a job that has begun runs to its end."""
    world.admit(job=f"ns/{name}")
    world.run(world.run_until_quiet())
    world.report_pod(f"ns/{name}-t-0", "Running")
    world.run(world.run_until_quiet())
    world.report_pod(f"ns/{name}-t-0", phase, code=0 if phase == "Succeeded" else 1)
    world.run(world.run_until_quiet())


@pytest.mark.parametrize(
    ("kind", "end", "begins"),
    [
        ("afterok", "Succeeded", True),
        ("afterok", "Failed", False),
        ("afternotok", "Succeeded", False),
        ("afternotok", "Failed", True),
        ("afterany", "Succeeded", True),
        ("afterany", "Failed", True),
    ],
)
def test_a_job_begins_or_fails_when_the_other_one_has_ended(
    world: JobWorld, kind: str, end: str, begins: bool
) -> None:
    submit(world, "first")
    submit(world, "second", f"{kind}:first")
    assert not has_begun(world, "second")
    assert state(world, "second")["reason"] == "WaitingToBegin"
    assert state(world, "second")["message"] == f"waits for {kind}:first (Pending)"
    finish(world, "first", end)
    found = state(world, "second")
    if begins:
        assert has_begun(world, "second")
        assert (found["phase"], found.get("reason", "")) == ("Pending", "")
    else:
        assert (found["phase"], found["reason"]) == ("Failed", "DependencyNeverMet")
        ended = "Completed" if end == "Succeeded" else "Failed"
        text = f"{kind}:first can no longer be met: job first is {ended}"
        assert found["message"] == text
        assert not has_begun(world, "second")


def test_all_dependencies_must_be_met_and_stay_met_when_jobs_are_deleted(world: JobWorld) -> None:
    submit(world, "a")
    submit(world, "b")
    submit(world, "last", "afterok:a,afterany:b")
    finish(world, "a")
    assert not has_begun(world, "last")
    world.delete_job("ns/a")
    world.run(world.kill())
    world.run(world.run_until_quiet())
    assert state(world, "last")["message"] == "waits for afterany:b (Pending)"
    world.delete_job("ns/b")
    world.run(world.run_until_quiet())
    assert has_begun(world, "last")


def test_the_end_of_a_job_counts_that_is_deleted_at_once(world: JobWorld) -> None:
    def on_event(prefix: str, change: str, new: Any, old: Any) -> None:
        world.transitions.on_event(prefix, change, new, old)
        if prefix == JOBS.path() and new and new["status"]["state"]["phase"] == "Completed":
            world.loop.call_soon(world.delete_job, "ns/first")

    submit(world, "first")
    submit(world, "second", "afterok:first")
    world.api.on_change, world.api.response_lag = on_event, 10
    finish(world, "first")
    assert "ns/first" not in world.objects_by_key(JOBS)
    assert has_begun(world, "second")


def test_the_end_of_an_earlier_job_of_the_name_does_not_count(world: JobWorld) -> None:
    submit(world, "first")
    submit(world, "second", "afterok:first")
    finish(world, "first")
    world.delete_job("ns/first")
    world.run(world.run_until_quiet())
    submit(world, "first")
    submit(world, "third", "afterok:first")
    world.delete_job("ns/first")
    world.run(world.run_until_quiet())
    assert state(world, "third")["reason"] == "DependencyNeverMet"


def test_a_job_that_restarts_does_not_wait_again(world: JobWorld) -> None:
    submit(world, "first")
    submit(world, "second", "afterok:first")
    finish(world, "first")
    world.admit(job="ns/second")
    world.run(world.run_until_quiet())
    world.report_pod("ns/second-t-0", "Running")
    world.run(world.run_until_quiet())
    world.delete_job("ns/first")
    world.command("RestartJob", "ns/second")
    world.run(world.run_until_quiet())
    world.finish_deletion("ns/second-t-0")
    world.run(world.run_until_quiet())
    assert state(world, "second")["phase"] == "Pending"
    assert has_begun(world, "second")


def test_a_controller_that_was_down_finds_that_the_other_job_was_deleted(world: JobWorld) -> None:
    submit(world, "first")
    submit(world, "second", "afterany:first")
    world.run(world.kill())
    world.delete_job("ns/first")
    world.run(world.run_until_quiet())
    assert has_begun(world, "second")


@pytest.mark.parametrize(("kind", "begins"), [("afterok", False), ("afterany", True)])
def test_how_a_missing_job_has_ended_is_not_known(world: JobWorld, kind: str, begins: bool) -> None:
    submit(world, "second", f"{kind}:absent")
    assert has_begun(world, "second") == begins
    if not begins:
        assert "job absent does not exist" in state(world, "second")["message"]


def test_a_job_that_waits_can_be_ended(world: JobWorld) -> None:
    submit(world, "first")
    submit(world, "second", "afterok:first")
    world.command("TerminateJob", "ns/second")
    world.run(world.run_until_quiet())
    assert state(world, "second")["phase"] == "Terminated"
    finish(world, "first")
    assert not has_begun(world, "second")


def test_a_job_begins_at_its_time_also_if_the_controller_was_down(world: JobWorld) -> None:
    begin = world.clock.now() + timedelta(hours=1)
    submit(world, "later", begin=times.format(begin))
    submit(world, "other", begin=times.format(begin))
    assert state(world, "later")["message"] == f"begins at {times.format(begin)}"
    world.run(world.pass_time(3590))
    assert not has_begun(world, "later")
    world.run(world.kill())
    world.run(world.pass_time(5))
    world.run(world.start())
    world.run(world.pass_time(20))
    assert has_begun(world, "later")
    assert has_begun(world, "other")


def test_singletons_of_a_user_run_one_after_the_other(world: JobWorld) -> None:
    submit(world, "other-user", "singleton", label="train", user="bob")
    for name in ("a", "b", "c"):
        submit(world, name, "singleton", label="train")
        world.run(world.pass_time(2))
    submit(world, "other-name", "singleton", label="test")
    begun = [name for name in ("a", "b", "c", "other-user", "other-name") if has_begun(world, name)]
    assert begun == ["a", "other-user", "other-name"]
    assert state(world, "c")["message"] == "waits for singleton (a, b)"
    finish(world, "a", "Failed")
    assert (has_begun(world, "b"), has_begun(world, "c")) == (True, False)
    world.delete_job("ns/b")
    world.run(world.run_until_quiet())
    assert has_begun(world, "c")


def test_malformed_annotations_that_were_stored_without_admission_begin_nothing(
    world: JobWorld,
) -> None:
    submit(world, "wrong", "after:x")
    assert not has_begun(world, "wrong")
    assert "its annotations are malformed: 'after:x' is none of" in state(world, "wrong")["message"]


def test_the_reason_is_explained() -> None:
    text = "waits for afterok:first (Running)"
    job = JobSummary("ns", "j", queue="q", phase=Phase.PENDING, reason="WaitingToBegin",
                     message=text)  # fmt: skip
    found = explain_wait(
        WaitView(job=job, podgroups=(), queue=None, now=times.parse("2026-01-01T00:00:00Z"))
    )
    assert (found.waiting, found.reason, found.summary) == (True, WaitReason.BLOCKED, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is none of afterok, afternotok, afterany, singleton"),
        ("afterok", "'afterok' is neither TYPE:JOB nor singleton"),
        ("singleton:x", "'singleton:x' is neither TYPE:JOB nor singleton"),
        ("afterok:", "afterok:"),
        ("afterok:A_b", "a lowercase RFC 1123 subdomain"),
        ("afterok:a,,afterok:b", "'' is none of"),
    ],
)
def test_malformed_dependencies_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_dependencies(text)
