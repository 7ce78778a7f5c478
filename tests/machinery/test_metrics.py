"""Prometheus metrics of a work queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from batholith.machinery.controller import ShardedQueue
from batholith.machinery.metrics import WorkQueueMetrics
from batholith.machinery.rate_limiters import ExponentialFailureRateLimiter
from batholith.machinery.testing import FakeClock


class MetricsWorld:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = WorkQueueMetrics(self.registry)
        self.clock = FakeClock()
        self.queue = self.make_queue("job")

    def make_queue(self, name: str) -> ShardedQueue:
        return ShardedQueue(
            name=name,
            limiter=ExponentialFailureRateLimiter(1, 60),
            clock=self.clock,
            metrics=self.metrics,
        )

    def value(self, metric: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(metric, {"name": "job", **labels})


@pytest.fixture
def world() -> MetricsWorld:
    return MetricsWorld()


def test_all_series_exist_at_zero(world: MetricsWorld) -> None:
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


def test_metrics_of_a_key_passing_through_the_queue(world: MetricsWorld) -> None:
    """INV-MX-1 to INV-MX-3; INV-MX-4 holds because counters are only incremented."""
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


class QueueModel:
    """A queue under random operations, and the expected metrics."""

    def __init__(self) -> None:
        self.world = MetricsWorld()
        self.dirty: set[str] = set()
        self.processing: set[str] = set()
        self.get_count = self.done_count = 0
        self.before = dict.fromkeys(
            ("adds_total", "retries_total", "work_duration_seconds_sum"), 0.0
        )

    def step(self, what: str, key: str) -> None:
        queue, shard = self.world.queue, self.world.queue.shards[0]
        if what in ("add", "retry"):
            queue.add(key) if what == "add" else queue.add_after(key, 0)
            self.dirty.add(key)
        elif what == "get" and self.dirty - self.processing:
            got = shard.get_nowait()
            assert got is not None
            self.dirty.remove(got)
            self.processing.add(got)
            self.get_count += 1
        elif what == "done" and key in self.processing:
            shard.done(key)
            self.processing.remove(key)
            self.done_count += 1

    def metric(self, name: str) -> float:
        value = self.world.value(f"workqueue_{name}")
        assert value is not None
        return value

    def check(self) -> None:
        assert self.metric("depth") == len(self.dirty)
        assert self.metric("adds_total") - self.get_count == self.metric("depth")
        assert self.metric("work_duration_seconds_count") == self.done_count
        now = {name: self.metric(name) for name in self.before}
        assert all(now[name] >= before for name, before in self.before.items())
        self.before = now


@given(
    st.lists(st.tuples(st.sampled_from(["add", "get", "done", "retry"]), st.sampled_from("abc")))
)
def test_inv_mx_metrics_agree_under_random_operations(steps: list[tuple[str, str]]) -> None:
    """INV-MX-1 to INV-MX-4, after each step."""
    story = QueueModel()
    for what, key in steps:
        story.world.clock.tick(0.1)
        story.step(what, key)
        story.check()


def test_retries_count_delayed_adds(world: MetricsWorld) -> None:
    world.queue.add("a")
    world.queue.add_after("b", 5)
    world.queue.add_after("b", 7)
    world.queue.add_after("c", 0)
    world.queue.add_rate_limited("d")
    assert world.value("workqueue_retries_total") == 4
    assert world.value("workqueue_adds_total") == 2


def test_queues_share_the_families_of_one_registry(world: MetricsWorld) -> None:
    world.make_queue("queue").add("root")
    text = generate_latest(world.registry).decode()
    assert text.count("# TYPE workqueue_depth gauge") == 1
    assert 'workqueue_depth{name="queue"} 1.0' in text
    assert 'workqueue_depth{name="job"} 0.0' in text


def test_metrics_of_reconciles_have_the_names_of_controller_runtime(world: MetricsWorld) -> None:
    stats = world.queue.stats

    def value(name: str, **labels: str) -> float | None:
        full_name = f"controller_runtime_{name}"
        return world.registry.get_sample_value(full_name, {"controller": "job", **labels})

    for result in ("success", "error", "requeue", "requeue_after"):
        assert value("reconcile_total", result=result) == 0
    stats.results["success"] = 3
    stats.results["error"] = 2
    stats.terminal_errors = stats.unexpected_errors = 1
    stats.workers = 4
    stats.reconcile_duration.observe(0.3)
    world.queue.add("a")
    world.queue.shards[0].get_nowait()
    assert value("reconcile_total", result="success") == 3
    assert value("reconcile_errors_total") == 2
    assert value("terminal_reconcile_errors_total") == 1
    assert value("reconcile_panics_total") == 1
    assert value("max_concurrent_reconciles") == 4
    assert value("active_workers") == 1
    assert value("reconcile_time_seconds_count") == 1
    assert value("reconcile_time_seconds_bucket", le="0.25") == 0
    assert value("reconcile_time_seconds_bucket", le="0.3") == 1
