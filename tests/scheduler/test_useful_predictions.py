"""Predictions of run times count only where they are better than the median of all gangs."""

import random

from scheduler.test_run_times import annotated, learn, run_time, running
from support.planned_starts import backfilling
from support.scheduler import SchedulerWorld, node, pod

from batholith.model.run_times import Basis
from batholith.scheduler.state.run_times.predictions import (
    COMPARED_RUNS,
    LEAST_COMPARED,
    Pattern,
    Predictions,
    Usefulness,
)
from batholith.scheduler.state.run_times.run_times import UNKNOWN, RunTime

EVE, BOB = ("default", "eve", "train-#"), ("default", "bob", "test-#")


def observe(predictions: Predictions, pattern: Pattern, seconds: float) -> None:
    """A gang ends, which was predicted when it started."""
    predictions.observe(pattern, seconds, predictions.usual(pattern))


def independent(predictions: Predictions, count: int) -> None:
    """Gangs of one pattern end whose run times have nothing in common."""
    rng = random.Random(1)  # not for cryptography
    for _ in range(count):
        observe(predictions, EVE, rng.lognormvariate(5, 2))


def test_without_a_relation_of_run_times_nothing_is_predicted() -> None:
    predictions = Predictions()
    independent(predictions, LEAST_COMPARED)  # the first of them had no prediction
    assert predictions.of_pattern(EVE) == predictions.usual(EVE)
    independent(predictions, 1)
    assert predictions.usual(EVE) is not None
    assert predictions.of_pattern(EVE) is None


def test_useless_predictions_count_again_only_once_they_are_clearly_better() -> None:
    given, useless = Usefulness(), Usefulness()
    for usefulness in (given, useless):
        for _ in range(COMPARED_RUNS // 2 + 1):
            usefulness.observe(1000, None)
    for _ in range(LEAST_COMPARED):
        useless.observe(100, 2000)
    assert not useless.is_given
    for _ in range(3 * LEAST_COMPARED):
        given.observe(100, 830)  # the median, which is 1000, is wrong by a little more
        useless.observe(100, 830)
    assert given.is_given
    assert not useless.is_given
    for _ in range(LEAST_COMPARED // 2):
        useless.observe(100, 100)
    assert useless.is_given


def test_predictions_count_again_once_users_differ() -> None:
    predictions = Predictions()
    independent(predictions, 2 * COMPARED_RUNS)
    rng = random.Random(2)  # not for cryptography
    for _ in range(COMPARED_RUNS):
        observe(predictions, EVE, rng.lognormvariate(9, 1))
        observe(predictions, BOB, rng.lognormvariate(3, 1))
    assert predictions.of_pattern(EVE) == predictions.usual(EVE)


def test_predictions_count_where_all_gangs_run_for_nearly_as_long() -> None:
    predictions = Predictions()
    rng = random.Random(3)  # not for cryptography
    for _ in range(2 * COMPARED_RUNS):
        observe(predictions, EVE, rng.uniform(80, 120))
    assert predictions.of_pattern(EVE) is not None


def test_gang_has_no_estimate_while_predictions_are_of_no_use() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"))
    learn(world, "g-1", 40)
    world.upsert(annotated("g-2"), annotated("g-3", time_limit="1m"))
    assert run_time(world, "g-2") == RunTime(40.0, Basis.PREDICTION)
    independent(world.cluster.run_times.predictions, 2 * COMPARED_RUNS)
    assert run_time(world, "g-2") == UNKNOWN
    assert run_time(world, "g-3") == RunTime(60.0, Basis.LIMIT)


def test_no_start_is_planned_while_predictions_are_of_no_use() -> None:
    world = SchedulerWorld(backfilling())
    world.upsert(node("n", cpu=4))
    learn(world, "g-1", 40)
    world.upsert(annotated("g-2"), running("g-2-0", "g-2", 120, cpu=2))
    world.upsert(annotated("g-3"), pod("g-3-0", "g-3", cpu=4))
    world.upsert(annotated("g-4"), pod("g-4-0", "g-4", cpu=2))
    assert world.schedule() == {}, "g-4 would delay the planned start"
    plan, gang = world.core.caches.start_plan, world.cluster.gangs["ns/g-3"]
    assert plan.reservations.keys() == {"ns/g-3"}
    assert gang.estimated_start is not None

    independent(world.cluster.run_times.predictions, 2 * COMPARED_RUNS)
    assert world.schedule() == {"g-4-0": "n"}
    assert plan.reservations.keys() == set()
    assert gang.estimated_start is None

    world.upsert(annotated("g-5", time_limit="1h"), pod("g-5-0", "g-5", cpu=1))
    world.schedule()
    assert plan.reservations, "the run time of one gang is known"
