"""Budgets of queues: gangs wait, or their queue is last, until a window of time ends."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from support.examples import examples
from support.fair_share import CONFIGURATION, START, FairWorld, annotated_queue
from support.scheduler import podgroup

from batholith.api.jobs.explanations import decode_explanation
from batholith.machinery.testing import FakeClock
from batholith.model import times
from batholith.model.budgets import Budget, budget_of, budget_problems
from batholith.model.meta import ObjectMeta
from batholith.model.names import TIME_LIMIT
from batholith.model.queue import Queue
from batholith.scheduler.metrics import SchedulerMetrics
from batholith.scheduler.state.core_types import PriorityClass
from batholith.scheduler.state.gangs.diagnosis import BudgetUse
from batholith.wire.jobs import ExhaustedBudget

HOUR, DAY = 3600.0, 86400.0


def limited(name: str = "default", budget: str = "cpu=2", policy: str = "hard") -> Queue:
    return annotated_queue(name, budget=budget, budget_window="24h", budget_policy=policy)


def exhausted_world() -> FairWorld:
    """A queue that has used its two CPU-hours of the day by one o'clock, and still runs a gang."""
    world = FairWorld()
    world.upsert(limited())
    world.submit("g", cpu=2)
    assert world.cycle() == ["g"]
    world.advance(HOUR)
    return world


def test_gang_waits_for_the_next_window_once_the_budget_is_used_up() -> None:
    world = exhausted_world()
    world.submit("h")
    assert world.cycle() == []
    diagnosis = world.cluster.gangs["ns/h"].diagnosis
    assert diagnosis is not None
    assert diagnosis.reason == "BudgetExhausted"
    assert diagnosis.budget == BudgetUse("default", "cpu", 2000, 2000, START + DAY)
    assert diagnosis.message == (
        'queue "default" has used its budget: 2 of 2 cpu-hours; '
        "it may use more from 2026-01-06T00:00:00Z on"
    )
    assert world.running.keys() == {"g"}, "what runs is not ended"


def test_waiting_gang_is_tried_when_the_window_ends_and_not_before() -> None:
    world = exhausted_world()
    world.submit("h")
    world.cycle()
    world.end(["g"])
    world.advance(10 * HOUR)
    assert world.cycle() == []
    assert world.cluster.scheduling_queue.next_due() is not None
    world.advance(13 * HOUR - 1)
    assert world.cycle() == []
    due = world.cluster.scheduling_queue.next_due()
    assert due == START + DAY, "the scheduler runs a cycle then"
    world.advance(1)
    assert world.cycle() == ["h"]


def test_gang_that_is_not_admitted_yet_waits_without_pods() -> None:
    world = exhausted_world()
    new = podgroup("h", 1, phase="Pending", resources={"cpu": 1})
    world.upsert(new)
    world.run()
    assert world.cluster.gangs["ns/h"].phase == "Pending"
    assert world.cluster.gangs["ns/h"].diagnosis.reason == "BudgetExhausted"  # type: ignore[union-attr]
    world.advance(23 * HOUR)
    world.run()
    assert world.cluster.gangs["ns/h"].phase == "Inqueue"


def test_raised_budget_wakes_the_gangs_that_wait_for_it() -> None:
    world = exhausted_world()
    world.submit("h")
    world.cycle()
    world.upsert(limited(budget="cpu=20"))
    assert world.cycle() == ["h"]


def test_other_queues_are_not_affected() -> None:
    world = exhausted_world()
    world.upsert(annotated_queue("other"))
    world.submit("h", queue="other")
    assert world.cycle() == ["h"]


def test_budget_of_a_queue_limits_the_queues_below_it() -> None:
    world = FairWorld()
    world.upsert(limited("team"))
    world.upsert(annotated_queue("one", parent="team"), annotated_queue("two", parent="team"))
    world.submit("g", queue="one", cpu=2)
    world.cycle()
    world.advance(HOUR)
    world.submit("h", queue="two")
    assert world.cycle() == []
    assert world.cluster.gangs["ns/h"].diagnosis.budget.queue == "team"  # type: ignore[union-attr]


def test_queue_over_its_soft_budget_is_last() -> None:
    world = FairWorld(cpus=1)
    world.upsert(limited(policy="soft"))
    world.upsert(annotated_queue("other"))
    for name, hours in (("default", 2), ("other", 4)):
        world.submit(f"old-{name}", queue=name)
        world.cycle()
        world.advance(hours * HOUR)
        world.end([f"old-{name}"])
        world.run()
    world.submit("mine")
    world.submit("other", queue="other")
    assert world.cycle() == ["other"], "which has used more"
    world.end(["other"])
    assert world.cycle() == ["mine"], "no other queue needs it"


def test_gang_that_has_lost_a_pod_gets_another_one_in_spite_of_the_budget() -> None:
    world = FairWorld()
    world.upsert(limited())
    world.upsert(podgroup("g", 2))
    world.submit_pod("g-0", "g")
    world.submit_pod("g-1", "g")
    assert len(world.run().placements) == 2
    world.advance(2 * HOUR)
    world.remove(world.pod_objects["uid-g-1"])
    world.submit_pod("g-2", "g")
    assert [each.name for each in world.run().placements] == ["g-2"]


def test_budget_of_a_device_counts_devices_only() -> None:
    world = FairWorld()
    world.upsert(limited(budget="nvidia.com/gpu=1"))
    world.submit("g", cpu=2)
    world.cycle()
    world.advance(10 * HOUR)
    world.submit("h")
    assert world.cycle() == ["h"]


@pytest.mark.parametrize(("budget", "evicted"), [("cpu=2", 0), ("cpu=200", 1)])
def test_pods_are_not_evicted_for_a_gang_that_waits_for_a_budget(budget: str, evicted: int) -> None:
    world = FairWorld(CONFIGURATION.replace("allocate, backfill", "allocate, preempt"))
    high = PriorityClass(metadata=ObjectMeta(name="high"), value=10)
    world.cluster.update_priority_class(None, high)
    world.upsert(limited(budget=budget))
    world.submit("g", cpu=4, minimum=0)
    world.cycle()
    world.advance(HOUR)
    world.submit("h", priority_class="high")
    assert len(world.run().evictions) == evicted


def test_explanation_has_the_budget_as_data() -> None:
    world = exhausted_world()
    world.submit("h")
    report = next(each for each in world.run().reports if each.key == "ns/h")
    assert report.why is not None
    annotation = report.why.encode()
    expected = {
        "queue": "default",
        "resource": "cpu",
        "used": "2",
        "limit": "2",
        "until": "2026-01-06T00:00:00Z",
    }
    assert json.loads(annotation)["budget"] == expected
    assert json.loads(annotation)["stage"] == "quota"
    decoded = decode_explanation(annotation)
    assert decoded is not None
    assert decoded.budget == ExhaustedBudget(**expected)


def test_metrics_have_what_is_used_and_the_limit() -> None:
    world, registry = FairWorld(), CollectorRegistry()
    metrics = SchedulerMetrics(registry, clock=FakeClock())
    world.upsert(limited(budget="cpu=10,memory=3Gi"))
    world.submit("g", cpu=2)
    world.cycle()
    world.advance(HOUR)
    metrics.record_decision(world.run())

    def hours(kind: str, resource: str) -> float | None:
        name = f"batholith_scheduler_queue_budget_{kind}_resource_hours"
        labels = {"queue_name": "default", "resource": resource}
        return registry.get_sample_value(name, labels)

    assert (hours("used", "cpu"), hours("limit", "cpu")) == (2, 10)
    assert (hours("used", "memory"), hours("limit", "memory")) == (0, 3 * 2**30)


def test_start_of_a_gang_that_waits_for_a_budget_is_not_planned() -> None:
    """Nothing is kept for it."""
    text = CONFIGURATION + (
        "configurations:\n- name: allocate\n  arguments: {backfilling: conservative}\n"
    )
    world = FairWorld(text)
    world.upsert(limited(), annotated_queue("other"))
    for name, queue_name in (("g", "default"), ("o", "other")):
        world.submit(name, queue=queue_name, cpu=2, limit="3h")
    assert world.cycle() == ["g", "o"]
    world.submit("big", cpu=4, limit="1h")
    world.run()
    plan = world.core.caches.start_plan
    assert plan.reservations.keys() == {"ns/big"}
    world.advance(HOUR)
    world.end(["g"])
    world.run()
    assert plan.reservations.keys() == set()
    world.submit("long", queue="other", cpu=2, limit="100h")
    assert world.cycle() == ["long"]


def test_start_of_a_gang_that_is_not_admitted_and_waits_for_a_budget_is_not_estimated() -> None:
    text = CONFIGURATION + ("configurations:\n- name: allocate\n  arguments: {backfilling: easy}\n")
    world = FairWorld(text)
    world.upsert(limited())
    world.submit("g", cpu=2, limit="3h")
    assert world.cycle() == ["g"]
    world.advance(HOUR)
    new = podgroup("h", 1, phase="Pending", resources={"cpu": 1})
    metadata = replace(new.metadata, annotations={TIME_LIMIT: "1h"})
    world.upsert(replace(new, metadata=metadata))
    world.run()
    gang = world.cluster.gangs["ns/h"]
    assert gang.diagnosis is not None
    assert gang.diagnosis.reason == "BudgetExhausted"
    assert gang.estimated_start is None


# -- clocks and restarts ---------------------------------------------------------------------------


def used(world: FairWorld, name: str = "default") -> float:
    """CPU-hours of the current window."""
    budgets = world.cluster.past_usage.budgets
    budgets.publish()
    (use,) = (each for each in budgets.published if each.queue == name)
    return use.used / 1000


def test_use_is_divided_among_windows_and_does_not_decay() -> None:
    world = FairWorld()
    world.upsert(limited(budget="cpu=100"))
    world.submit("g", cpu=2)
    world.cycle()
    world.advance(20 * HOUR)
    world.run()
    assert used(world) == pytest.approx(40)
    world.advance(10 * HOUR)
    world.run()
    assert used(world) == pytest.approx(12), "since midnight"


def test_wrong_wall_clock_does_not_grant_a_budget_again() -> None:
    world = FairWorld()
    world.upsert(limited(budget="cpu=100"))
    world.submit("g", cpu=2)
    world.cycle()
    world.advance(HOUR)
    world.run()
    for wrong in (30 * DAY, -30 * DAY):
        world.time += wrong
        world.run()
        assert used(world) == 0
        world.time -= wrong
        world.run()
        assert used(world) == pytest.approx(2)


def restarted(world: FairWorld, down: float) -> FairWorld:
    other = FairWorld()
    other.time = world.time + down
    for each in world.cluster.queues.by_name.values():
        if each.object is not None:
            other.upsert(each.object)
    other.upsert(*(g.podgroup for g in world.cluster.gangs.values() if g.podgroup is not None))
    other.upsert(*world.pod_objects.values())
    other.running = dict(world.running)
    other.cluster.past_usage.restore(world.cluster.past_usage.encode(world.now, world.time))
    other.run()
    return other


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30 * 3600)), min_size=1, max_size=6))
@example([(False, 30 * 3600), (True, 600)])
def test_use_is_the_same_after_restarts(steps: list[tuple[bool, int]]) -> None:
    world = FairWorld()
    world.upsert(limited(budget="cpu=1000"))
    world.submit("g", cpu=2)
    world.cycle()
    for restart, seconds in steps:
        if restart:
            world = restarted(world, seconds)
        else:
            world.advance(seconds)
    world.run()
    midnight = world.time - world.time % DAY
    since = max(midnight, START)
    assert used(world) == pytest.approx((world.time - since) / HOUR * 2, rel=1e-6, abs=2e-3)


def test_budget_that_is_set_later_counts_from_then_on() -> None:
    world = FairWorld()
    world.submit("g", cpu=2)
    world.cycle()
    world.advance(HOUR)
    world.upsert(limited(budget="cpu=100"))
    world.run()
    world.advance(HOUR)
    world.run()
    assert used(world) == pytest.approx(2)


def test_windows_begin_at_midnight_and_those_of_weeks_on_monday() -> None:
    week = Budget({"cpu": "1"}, 7 * DAY, is_hard=True)
    start, end = week.window_at(times.parse("2026-11-27T08:00:00Z").timestamp())
    assert datetime.fromtimestamp(start, UTC) == datetime(2026, 11, 23, tzinfo=UTC)
    assert datetime.fromtimestamp(end, UTC) == datetime(2026, 11, 30, tzinfo=UTC)
    day = Budget({"cpu": "1"}, DAY, is_hard=True)
    assert day.window_at(START) == (START, START + DAY)


# -- annotations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"budget": "cpu=1000"}, Budget({"cpu": "1000"}, 720 * HOUR, is_hard=True)),
        (
            {
                "budget": "memory=10Gi,nvidia.com/gpu=2",
                "budget-window": "1h",
                "budget-policy": "soft",
            },
            Budget({"memory": "10Gi", "nvidia.com/gpu": "2"}, HOUR, is_hard=False),
        ),
        ({}, None),
        ({"budget": "cpu"}, None),
    ],
)
def test_annotations_are_read(annotations: dict[str, str], expected: Budget | None) -> None:
    assert (
        budget_of({f"batholith.io/{name}": text for name, text in annotations.items()}) == expected
    )


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({"budget": ""}, "is no resource of nodes"),
        ({"budget": "gpu=1"}, "is no resource of nodes"),
        ({"budget": "cpu=1,cpu=2"}, "is given twice"),
        ({"budget": "cpu=0"}, "must be more than 0"),
        ({"budget": "cpu=-1"}, "must be more than 0"),
        ({"budget": "cpu=many"}, "must be a quantity"),
        ({"budget": "cpu"}, "must be a quantity"),
        ({"budget": "cpu=1, memory=1Gi"}, "is no resource of nodes"),
        ({"budget": "cpu=1", "budget-window": "1s"}, "must be at least 1m"),
        ({"budget": "cpu=1", "budget-window": "7d"}, "unknown unit"),
        ({"budget": "cpu=1", "budget-policy": "firm"}, "must be hard or soft"),
        ({"budget-window": "24h"}, "has no effect without batholith.io/budget"),
        ({"budget-policy": "soft"}, "has no effect without batholith.io/budget"),
    ],
)
def test_malformed_annotations_are_named(annotations: dict[str, str], problem: str) -> None:
    prefixed = {f"batholith.io/{name}": text for name, text in annotations.items()}
    (found,) = budget_problems(prefixed)
    assert found[0] == f"batholith.io/{list(annotations)[-1]}"
    assert problem in found[2]
    assert budget_of(prefixed) is None
