"""Decisions of cycles: immutable, and independent of the scheduler cache."""

from copy import deepcopy

from prometheus_client import CollectorRegistry
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue
from support.scheduler_queues import queue as child_queue

from batholith.machinery.testing import FakeClock
from batholith.scheduler.framework.decision import (
    Decision,
    GangStats,
    QueueAllocation,
    QueueStats,
)
from batholith.scheduler.metrics import SchedulerMetrics
from batholith.scheduler.plugins.placement import GangRef, Placement
from batholith.scheduler.state.nodes.node_matrix import NodeInfo
from batholith.scheduler.state.run_times.predictions import PredictedRun


def test_decision_does_not_change_with_the_cache() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g"), podgroup("h", 1))
    world.upsert(pod("h-0", "h", cpu=9))
    first = world.decision()
    copy = deepcopy(first)
    world.upsert(pod("g-0", "g", node_name="a", phase="Succeeded"), pod("g-1", "g"))
    world.remove(pod("h-0", "h", cpu=9))
    second = world.decision()
    assert first == copy
    assert second.stats != first.stats


def test_decision_has_placements_allocations_and_stats() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g"), podgroup("h", 1))
    world.upsert(*(pod(f"h-{i}", "h", cpu=9) for i in range(2)))
    decision = world.decision()
    gang = GangRef("ns/g", world.cluster.gangs["ns/g"].podgroup)
    observed = NodeInfo("a", {}, (), unschedulable=False)
    assert decision.placements == (Placement("ns", "g-0", "uid-g-0", "a", gang, observed),)
    assert (decision.scheduled, decision.rejected) == (1, 1)
    default = world.cluster.queues.by_name["default"].object
    assert default is not None
    allocated = {"cpu": 1000, "pods": 1}
    assert QueueAllocation(default, allocated) in decision.queue_allocations
    assert decision.stats.queues == (
        QueueStats("default", 1, allocated, {"cpu": 19000, "pods": 3}, {}),
    )
    assert decision.stats.unschedulable == (GangStats("h", 2),)


def test_pending_tasks_are_counted_before_the_first_cycle_after_their_events() -> None:
    world = SchedulerWorld()
    world.upsert(podgroup("g", 1), pod("g-0", "g"), pod("g-1", "g"))
    assert world.core.tasks_to_try(time=0.0, at_most=100) == 2


def test_gang_is_not_unschedulable_in_the_stats_once_it_is_placed_or_deleted() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", cpu=9))
    world.upsert(podgroup("h", 1), pod("h-0", "h", cpu=20))
    assert {each.name for each in world.decision().stats.unschedulable} == {"g", "h"}
    world.upsert(node("b", cpu=16))
    assert {each.name for each in world.decision().stats.unschedulable} == {"h"}
    world.remove(pod("h-0", "h", cpu=20))
    world.remove(podgroup("h", 1))
    assert world.decision().stats.unschedulable == ()


def test_decision_has_the_allocation_of_a_queue_whose_pod_is_being_deleted() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", node_name="a"))
    world.decision()
    world.upsert(pod("g-0", "g", node_name="a", terminating=True))
    (change,) = world.decision().queue_allocations
    assert (change.queue.metadata.name, change.allocated) == ("default", {})


def test_the_capability_of_a_queue_is_a_metric_where_it_limits_something() -> None:
    registry, metrics_of = CollectorRegistry(), "volcano_queue_capacity_"
    metrics = SchedulerMetrics(registry, clock=FakeClock())
    world = SchedulerWorld()
    world.upsert(queue("limited", capability={"cpu": "8", "memory": "0", "example.com/gpu": "0"}))
    metrics.record_decision(world.decision())

    def value(measure: str, queue_name: str, **labels: str) -> float | None:
        given = {"queue_name": queue_name, **labels}
        return registry.get_sample_value(metrics_of + measure, given)

    assert value("milli_cpu", "limited") == 8000
    assert value("memory_bytes", "limited") is None
    assert value("scalar_resources", "limited", resource="example.com/gpu") == 0
    assert value("milli_cpu", "default") is None


def test_predicted_run_times_are_compared_with_actual_ones_in_a_metric() -> None:
    registry, metric = CollectorRegistry(), "batholith_scheduler_run_time_prediction_ratio"
    runs = (PredictedRun(predicted=30.0, took=60.0), PredictedRun(predicted=3.0, took=0.0))
    metrics = SchedulerMetrics(registry, clock=FakeClock())
    metrics.record_decision(Decision(predicted_runs=runs))
    assert registry.get_sample_value(f"{metric}_sum") == 0.5 + 3
    assert registry.get_sample_value(f"{metric}_bucket", {"le": "0.5"}) == 1


def test_what_a_queue_has_counts_for_its_new_parent_once_it_has_one() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), child_queue("old"), child_queue("new"), child_queue("q", parent="old"))
    world.upsert(podgroup("g", 1, queue="q"), pod("g-t-0", "g"))
    allocated = {each.queue.metadata.name for each in world.decision().queue_allocations}
    assert {"q", "old"} <= allocated
    world.upsert(child_queue("q", parent="new"))
    world.upsert(podgroup("h", 1, queue="q"), pod("h-t-0", "h"))
    decision = world.decision()
    allocations = {each.queue.metadata.name: each.allocated for each in decision.queue_allocations}
    assert "old" not in allocations
    assert allocations["new"] == allocations["q"]
