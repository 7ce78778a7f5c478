"""How long gangs run: what is known, in which order it counts, and what former gangs predict."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planned_starts import backfilling
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model import names
from batholith.model.meta import ObjectMeta, OwnerReference
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.model.run_times import Basis, deadline_of, limit_of, seconds_of
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.state.gangs.gang import Gang
from batholith.scheduler.state.run_times.predictions import (
    MAX_PATTERNS,
    PredictedRun,
    Predictions,
    pattern_of,
)
from batholith.scheduler.state.run_times.run_times import UNKNOWN, RunTime


def annotated(name: str, size: int = 1, **annotations: str) -> PodGroup:
    """A PodGroup with Batholith's annotations, ``_`` for ``-``."""
    found = podgroup(name, size)
    prefixed = {f"batholith.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    metadata = msgspec.structs.replace(found.metadata, annotations=prefixed)
    return msgspec.structs.replace(found, metadata=metadata)


def running(name: str, group: str, started: int, deadline: int | None = None, **more: Any) -> Pod:
    """A pod that runs on node ``n`` since *started*."""
    found = pod(name, group, node_name="n", phase="Running", **more)
    spec = msgspec.structs.replace(found.spec, active_deadline_seconds=deadline)
    at = f"1970-01-01T00:{started // 60:02}:{started % 60:02}Z"
    status = msgspec.structs.replace(found.status, start_time=at)
    return msgspec.structs.replace(found, spec=spec, status=status)


def limited_queue(name: str, parent: str = "", **annotations: str) -> Queue:
    found = queue(name)
    prefixed = {f"batholith.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return msgspec.structs.replace(
        found,
        metadata=msgspec.structs.replace(found.metadata, annotations=prefixed),
        spec=msgspec.structs.replace(found.spec, parent=parent),
    )


def gang_of(world: SchedulerWorld, name: str) -> Gang:
    return world.cluster.gangs[f"ns/{name}"]


def run_time(world: SchedulerWorld, name: str) -> RunTime:
    return world.cluster.run_times.of(gang_of(world, name))


def learn(world: SchedulerWorld, name: str, seconds: int, **annotations: str) -> None:
    """Let a gang of one pod run for so long."""
    world.time = 100.0
    world.upsert(annotated(name, 1, **annotations), running(f"{name}-0", name, 100))
    world.schedule()
    world.time = 100.0 + seconds
    world.upsert(pod(f"{name}-0", name, node_name="n", phase="Succeeded"))
    world.schedule()


def test_what_is_enforced_counts_before_estimates_and_those_before_predictions() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"))
    assert run_time_of(world) == UNKNOWN
    learn(world, "g-1", 40)
    assert run_time_of(world) == RunTime(40.0, Basis.PREDICTION)
    world.upsert(limited_queue("default", default_time_limit="50s"))
    assert run_time_of(world) == RunTime(50.0, Basis.ESTIMATE)
    own = {"running_estimate": "1m"}
    assert run_time_of(world, **own) == RunTime(60.0, Basis.ESTIMATE)
    own["active_deadline_seconds"] = "70"
    assert run_time_of(world, **own) == RunTime(70.0, Basis.LIMIT)
    own["time_limit"] = "1m20s"
    assert run_time_of(world, **own) == RunTime(80.0, Basis.LIMIT)


def run_time_of(world: SchedulerWorld, **annotations: str) -> RunTime:
    world.upsert(annotated("g-2", 1, **annotations))
    world.schedule()
    return run_time(world, "g-2")


def test_longest_deadline_of_the_pods_is_the_limit_if_each_has_one() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"), podgroup("g", 2))
    world.upsert(running("g-0", "g", 0, deadline=60), running("g-1", "g", 0, deadline=90))
    assert run_time(world, "g") == RunTime(90.0, Basis.LIMIT)
    world.upsert(running("g-2", "g", 0))
    assert run_time(world, "g") == UNKNOWN


def test_default_of_the_nearest_queue_above_counts() -> None:
    world = SchedulerWorld()
    world.upsert(
        limited_queue("top", default_time_limit="3h"),
        limited_queue("middle", "top", default_time_limit="2h"),
        limited_queue("leaf", "middle"),
        podgroup("g", 1, queue="leaf"),
    )
    assert run_time(world, "g") == RunTime(7200.0, Basis.ESTIMATE)


@pytest.mark.parametrize("text", ["", "0s", "-1h", "soon", "5"])
def test_malformed_annotations_count_as_missing(text: str) -> None:
    annotations = {names.TIME_LIMIT: text, names.ACTIVE_DEADLINE: "-3"}
    assert seconds_of(annotations, names.TIME_LIMIT) is None
    assert limit_of(annotations) is None


@pytest.mark.parametrize(
    ("active_deadline", "limit", "expected"),
    [(None, "", None), (60, "", 60), (None, "2m", 120), (60, "2m", 60), (180, "2m", 120)],
)
def test_the_lesser_of_deadline_and_limit_ends_other_jobs(
    active_deadline: int | None, limit: str, expected: float | None
) -> None:
    assert deadline_of(active_deadline, {names.TIME_LIMIT: limit}) == expected


def test_gang_ends_after_its_limit_and_grace_period_from_when_its_minimum_ran() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"), annotated("g", 2, time_limit="1m"))
    world.upsert(running("g-0", "g", 10))
    ends = world.cluster.run_times.expected_end
    assert ends(gang_of(world, "g"), now=15.0) == 15 + 60 + 30
    world.upsert(running("g-1", "g", 20), running("g-2", "g", 40))
    assert ends(gang_of(world, "g"), now=45.0) == 20 + 60 + 30
    assert ends(gang_of(world, "g"), now=500.0) == 500


@given(seconds=st.integers(1, 1000), now=st.integers(0, 100_000))
def test_estimate_that_is_exceeded_is_doubled_until_it_covers_now(seconds: int, now: int) -> None:
    world = SchedulerWorld()
    world.upsert(node("n"), annotated("g", running_estimate=f"{seconds}s"))
    world.upsert(running("g-0", "g", 5))
    end = world.cluster.run_times.expected_end(gang_of(world, "g"), float(now))
    assert end is not None
    assert end > now
    factor = (end - 5) / seconds
    assert factor == 1 or (factor in [2.0**n for n in range(1, 20)] and end <= 2 * now + 5)


def test_prediction_of_gangs_that_ended_at_once_is_exceeded_and_doubled() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"))
    learn(world, "g-1", 0)
    world.upsert(podgroup("g-2", 1), running("g-2-0", "g-2", 100))
    assert run_time(world, "g-2") == RunTime(1.0, Basis.PREDICTION)
    end = world.cluster.run_times.expected_end(gang_of(world, "g-2"), 110.0)
    assert end == 100 + 16


def test_prediction_that_is_exceeded_is_followed_by_the_next_longer_run() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"))
    for number, seconds in enumerate((60, 200, 60, 90, 60)):
        learn(world, f"g-{number}", seconds)
    world.time = 1000.0
    world.upsert(podgroup("g-9", 1), running("g-9-0", "g-9", 1000))
    world.schedule()
    for elapsed, expected in ((59, 60), (60, 90), (90, 200), (200, 240)):
        end = world.cluster.run_times.expected_end(gang_of(world, "g-9"), 1000.0 + elapsed)
        assert end == 1000 + expected


def test_what_others_take_does_not_change_the_prediction_of_a_gang_that_runs() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"))
    learn(world, "g-1", 60)
    world.time = 100.0
    world.upsert(podgroup("g-2", 1), running("g-2-0", "g-2", 100))
    world.schedule()
    for number in range(3, 7):
        learn(world, f"g-{number}", 1)
    end = world.cluster.run_times.expected_end(gang_of(world, "g-2"), 110.0)
    assert end == 100 + 60


def test_what_others_take_changes_for_how_long_a_gang_that_waits_is_expected_to_run() -> None:
    world = SchedulerWorld(backfilling())
    world.upsert(node("n", cpu=4), annotated("other", time_limit="1h"))
    world.upsert(running("other-0", "other", 100, cpu=2))
    world.upsert(podgroup("g-9", 1), pod("g-9-0", "g-9", cpu=4))
    world.time = 100.0
    world.schedule()
    waiting = gang_of(world, "g-9")
    assert waiting.estimated_seconds is None
    for name, seconds, expected in (("g-1", 40, 40.0), ("g-2", 60, 50.0)):
        learn(world, name, seconds)
        world.cluster.scheduling_queue.activate(waiting)
        world.schedule()
        assert waiting.estimated_seconds == expected


def test_prediction_is_the_median_of_the_last_five_gangs_of_user_queue_and_pattern() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"))
    for number, seconds in enumerate((70, 30, 50)):
        learn(world, f"train-{number}", seconds)
    world.upsert(podgroup("test-99", 1), podgroup("train-98", 1, queue="other"))
    world.upsert(podgroup("train-99", 1), annotated("train-97", submitted_by="eve"))
    assert run_time(world, "train-99") == RunTime(50.0, Basis.PREDICTION)
    for name in ("test-99", "train-98", "train-97"):
        assert run_time(world, name) == UNKNOWN
    for number, seconds in enumerate((20, 1, 20), start=3):
        learn(world, f"train-{number}", seconds)
    assert run_time(world, "train-99") == RunTime(20.0, Basis.PREDICTION)


def test_gang_that_is_deleted_or_rejected_while_it_runs_teaches_nothing() -> None:
    world = SchedulerWorld()
    world.time = 100.0
    world.upsert(node("n"), podgroup("g-1", 1), running("g-1-0", "g-1", 100))
    world.schedule()
    world.time = 200.0
    world.remove(running("g-1-0", "g-1", 100))
    world.schedule()
    assert world.cluster.run_times.predictions.encode() == "[]"


def test_end_is_learned_if_pods_and_podgroup_are_deleted_before_the_next_cycle() -> None:
    world = SchedulerWorld()
    world.time = 100.0
    group = annotated("g-1", 1, submitted_by="eve")
    world.upsert(node("n"), group, running("g-1-0", "g-1", 100))
    world.schedule()
    world.time = 130.0
    finished = pod("g-1-0", "g-1", node_name="n", phase="Succeeded")
    world.upsert(finished)
    world.remove(group)
    world.remove(finished)
    world.schedule()
    world.upsert(annotated("g-2", submitted_by="eve"))
    assert run_time(world, "g-2") == RunTime(30.0, Basis.PREDICTION)


def test_prediction_at_the_start_is_compared_with_the_run_time() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"))
    learn(world, "g-1", 40)
    world.time = 200.0
    world.upsert(podgroup("g-2", 1), running("g-2-0", "g-2", 200))
    assert world.decision().predicted_runs == ()
    learn(world, "g-3", 60)
    world.time = 280.0
    world.upsert(pod("g-2-0", "g-2", node_name="n", phase="Succeeded"))
    assert world.decision().predicted_runs == (PredictedRun(predicted=40.0, took=80.0),)
    assert world.decision().predicted_runs == ()


def test_generated_names_of_one_owner_have_one_pattern() -> None:
    predictions = Predictions()
    for number, name in enumerate(("podgroup-1f3c", "podgroup-77ab")):
        gang = Gang(f"ns/{name}")
        owner = OwnerReference(name=f"sweep-{number}-x7k2p", controller=True)
        meta = ObjectMeta(name=name, namespace="ns", owner_references=(owner,))
        gang.set_podgroup(PodGroup(metadata=meta))
        assert (predictions.predict(gang) is None) is (number == 0)
        predictions.observe(pattern_of(gang), 10.0)


def test_predictions_are_restored_after_a_restart_and_bounded() -> None:
    before, after = Predictions(), Predictions()
    for number in range(MAX_PATTERNS + 5):
        gang = Gang(f"ns/{'x' * (number % 7 + 1)}{chr(97 + number % 26)}")
        gang.set_podgroup(podgroup(gang.name, 1, queue=f"q{number}"))
        before.observe(pattern_of(gang), float(number))
    assert len(json.loads(before.encode())) == MAX_PATTERNS
    after.observe(pattern_of(gang), 7.0)
    after.restore(before.encode())
    assert after.predict(gang) == 7.0
    assert json.loads(after.encode())[:-1] == json.loads(before.encode())[:-1]
    with pytest.raises(ValueError, match="Expected"):
        after.restore("[1]")
