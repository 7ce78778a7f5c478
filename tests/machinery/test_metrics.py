"""What Prometheus sees of a queue."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from batholith.machinery.controller import ShardedQueue
from batholith.machinery.limiters import Exponential
from batholith.machinery.metrics import WorkQueueMetrics
from batholith.machinery.testing import FakeClock


class World:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = WorkQueueMetrics(self.registry)
        self.clock = FakeClock()
        self.queue = self.make("job")

    def make(self, name: str) -> ShardedQueue:
        return ShardedQueue(
            name=name, limiter=Exponential(1, 60), clock=self.clock, metrics=self.metrics
        )

    def value(self, metric: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(metric, {"name": "job", **labels})


@pytest.fixture
def world() -> World:
    return World()


def test_all_series_are_there_at_zero(world: World) -> None:
    for metric in (
        "workqueue_depth",
        "workqueue_adds_total",
        "workqueue_retries_total",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
        "workqueue_queue_duration_seconds_count",
        "workqueue_work_duration_seconds_count",
    ):
        assert world.value(metric) == 0, metric


def test_a_key_on_its_way_through_the_queue(world: World) -> None:
    """INV-MX-1 to INV-MX-3; INV-MX-4 holds as figures are only ever added to."""
    queue, shard = world.queue, world.queue.shards[0]
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert (world.value("workqueue_depth"), world.value("workqueue_adds_total")) == (2, 2)
    world.clock.tick(0.05)
    assert shard.get_nowait() == "a"
    world.clock.tick(3)
    assert shard.get_nowait() == "b"
    queue.add("a")
    assert world.value("workqueue_depth") == 1
    world.clock.tick(2)
    assert world.value("workqueue_unfinished_work_seconds") == pytest.approx(7)
    assert world.value("workqueue_longest_running_processor_seconds") == pytest.approx(5)
    shard.done("a")
    shard.done("b")
    assert world.value("workqueue_work_duration_seconds_count") == 2
    assert world.value("workqueue_work_duration_seconds_sum") == pytest.approx(7)
    assert world.value("workqueue_queue_duration_seconds_bucket", le="0.1") == 1
    assert world.value("workqueue_queue_duration_seconds_bucket", le="10.0") == 2
    assert world.value("workqueue_queue_duration_seconds_bucket", le="+Inf") == 2


def test_retries_are_the_adds_for_later(world: World) -> None:
    world.queue.add("a")
    world.queue.add_after("b", 5)
    world.queue.add_after("b", 7)
    world.queue.add_after("c", 0)
    world.queue.add_rate_limited("d")
    assert world.value("workqueue_retries_total") == 4
    assert world.value("workqueue_adds_total") == 2


def test_queues_share_the_families_of_one_registry(world: World) -> None:
    world.make("queue").add("root")
    text = generate_latest(world.registry).decode()
    assert text.count("# TYPE workqueue_depth gauge") == 1
    assert 'workqueue_depth{name="queue"} 1.0' in text
    assert 'workqueue_depth{name="job"} 0.0' in text
