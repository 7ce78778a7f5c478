"""The time limit of a job: the controller ends it, and time in which it does not run is free."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.job_simulator import JobSimulator
from support.jobs import job, task

from batholith.model.job import JobPhase
from batholith.model.names import TIME_LIMIT, TIME_LIMIT_WARNING
from batholith.model.pod import PodPhase


def limited(limit: str = "10m", replicas: int = 2, *, warning: str = "") -> JobSimulator:
    """A job with a time limit that runs."""
    created = job(task("t", replicas))
    annotations = {**created.metadata.annotations, TIME_LIMIT: limit}
    if warning:
        annotations[TIME_LIMIT_WARNING] = warning
    metadata = msgspec.structs.replace(created.metadata, annotations=annotations)
    world = JobSimulator(msgspec.structs.replace(created, metadata=metadata))
    world.run_until_stable()
    world.admit(settle=False)
    world.run_all_pods()
    return world


def advance(world: JobSimulator, seconds: float) -> None:
    world.now += timedelta(seconds=seconds)
    world.monotonic_now += seconds
    world.run_until_stable()


def state(world: JobSimulator) -> tuple[str, str]:
    return world.status.state.phase, world.status.state.reason


def test_job_fails_with_the_reason_once_its_pods_have_ended() -> None:
    world = limited()
    assert world.requeue_after == [600]
    advance(world, 599)
    assert state(world) == (JobPhase.RUNNING, "")
    assert world.requeue_after == [1]
    advance(world, 1)
    assert state(world) == (JobPhase.TERMINATING, "DeadlineExceeded")
    assert all(pod.terminating for pod in world.pods.values())
    world.crash()
    world.finish_deletions()
    assert state(world) == (JobPhase.FAILED, "DeadlineExceeded")
    assert world.status.state.message == "it ran for its time limit of 10m"
    assert "DeadlineExceeded" in world.events


def test_job_whose_pods_have_all_succeeded_is_completed_however_late_that_is_seen() -> None:
    world = limited()
    for name in ("t-0", "t-1"):
        world.report_pod(name, PodPhase.SUCCEEDED)
    advance(world, 900)
    assert state(world)[0] == JobPhase.COMPLETED


def test_time_in_which_the_job_is_stopped_does_not_count() -> None:
    world = limited()
    advance(world, 400)
    world.suspend()
    world.finish_deletions(settle=False)
    advance(world, 5000)
    assert state(world)[0] == JobPhase.ABORTED
    world.suspend(False)
    world.crash()
    world.run_until_stable()
    world.admit(settle=False)
    world.run_all_pods()
    advance(world, 199)
    assert state(world)[0] == JobPhase.RUNNING
    advance(world, 1)
    assert state(world)[0] == JobPhase.TERMINATING


def test_attempts_count_together() -> None:
    world = limited()
    advance(world, 400)
    world.send_command("RestartJob")
    world.finish_deletions()
    world.podgroup = None
    world.run_until_stable()
    world.admit(settle=False)
    world.run_all_pods()
    assert world.requeue_after == [200]


@pytest.mark.parametrize("limit", ["", "soon", "-1s"])
def test_malformed_limit_has_no_effect(limit: str) -> None:
    world = limited(limit)
    advance(world, 1e6)
    assert state(world)[0] == JobPhase.RUNNING
    assert "batholith-seconds-run" not in world.status.controlled_resources


@given(suspensions=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 10_000)), max_size=4))
def test_job_runs_for_its_limit_and_no_longer_whenever_it_is_suspended(
    suspensions: list[tuple[int, int]],
) -> None:
    world, ran = limited(), 0
    for running, stopped in suspensions:
        if ran + running >= 600:
            break
        advance(world, running)
        ran += running
        world.suspend()
        world.finish_deletions(settle=False)
        advance(world, stopped)
        world.suspend(False)
        world.admit(settle=False)
        world.run_all_pods()
    advance(world, 599 - ran)
    assert state(world)[0] == JobPhase.RUNNING
    advance(world, 1)
    assert state(world) == (JobPhase.TERMINATING, "DeadlineExceeded")


def test_warned_job_is_ended_earlier_and_its_pods_get_the_rest_of_the_time() -> None:
    world = limited("10m", warning="2m")
    assert world.requeue_after == [480]
    advance(world, 479)
    assert state(world)[0] == JobPhase.RUNNING
    advance(world, 1)
    assert state(world) == (JobPhase.TERMINATING, "DeadlineExceeded")
    assert world.extra_grace == [120]
    assert all(pod.terminating for pod in world.pods.values())
    advance(world, 60)
    world.crash()
    world.run_until_stable()
    assert world.extra_grace == [120], "deleted pods get no other grace period"
    world.finish_deletions()
    assert state(world) == (JobPhase.FAILED, "DeadlineExceeded")
    message = "its time limit is 10m, and it was terminated 2m before that"
    assert world.status.state.message == message


@given(late=st.integers(0, 400), deleted_after=st.integers(0, 400))
def test_pods_get_what_is_left_of_the_warning(late: int, deleted_after: int) -> None:
    world = limited("10m", warning="2m")
    world.now += timedelta(seconds=480 + late)
    assert world.step()
    assert state(world)[0] == JobPhase.TERMINATING
    world.now += timedelta(seconds=deleted_after)
    world.crash()
    world.run_until_stable()
    assert world.extra_grace == [max(120 - late - deleted_after, 0)]


def test_pods_that_a_suspension_deletes_get_their_grace_period_only() -> None:
    world = limited("10m", warning="2m")
    advance(world, 300)
    world.suspend()
    assert world.extra_grace == [0]


@pytest.mark.parametrize("warning", ["10m", "11m", "soon", "-1s"])
def test_warning_that_is_malformed_or_too_long_has_no_effect(warning: str) -> None:
    assert limited("10m", warning=warning).requeue_after == [600]
