"""Metrics of work queues and their workers, under the names of client-go and controller-runtime."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from .shards import Shard
from .workqueue_stats import WorkQueueStats


class InstrumentedQueue(Protocol):
    """A work queue that reports its counters."""

    name: str
    owned: Shard
    stats: WorkQueueStats

    def depth(self) -> int:
        """Return the number of dirty keys, including those in processing."""
        ...

    def ages(self) -> list[float]:
        """Return for each key in processing for how many seconds."""
        ...


class WorkQueueMetrics:
    """Collector of work queue metrics, one per registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._queues: dict[str, InstrumentedQueue] = {}
        if registry is not None:
            registry.register(self)

    def register(self, queue: InstrumentedQueue) -> None:
        """Export *queue*, replacing an earlier one of its name."""
        self._queues[queue.name] = queue

    def unregister_shard(self, shard: int) -> None:
        """Export the queues of *shard* no longer."""
        for name, queue in list(self._queues.items()):
            if queue.owned.count > 1 and queue.owned.index == shard:
                del self._queues[name]

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families, with one series per queue."""
        queues = list(self._queues.values())
        yield from _gauges(queues)
        yield from _counters(queues)
        yield from _histograms(queues)
        yield from _reconcile_metrics(queues)


def _gauges(queues: Iterable[InstrumentedQueue]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("workqueue_depth", "Current depth of the queue.", labels=["name"])
    unfinished = GaugeMetricFamily(
        "workqueue_unfinished_work_seconds",
        "Sum of the durations for which keys have been in processing.",
        labels=["name"],
    )
    longest = GaugeMetricFamily(
        "workqueue_longest_running_processor_seconds",
        "Longest duration for which any key has been in processing.",
        labels=["name"],
    )
    for queue in queues:
        ages = queue.ages()
        depth.add_metric([queue.name], queue.depth())
        unfinished.add_metric([queue.name], sum(ages))
        longest.add_metric([queue.name], max(ages, default=0.0))
    yield from (depth, unfinished, longest)


def _counters(queues: Iterable[InstrumentedQueue]) -> Iterator[Metric]:
    adds = CounterMetricFamily("workqueue_adds", "Adds handled by the queue.", labels=["name"])
    retries = CounterMetricFamily("workqueue_retries", "Delayed adds (retries).", labels=["name"])
    timeouts = CounterMetricFamily(
        "batholith_reconcile_timeouts",
        "Reconciles that timed out and were cancelled.",
        labels=["name"],
    )
    for queue in queues:
        adds.add_metric([queue.name], queue.stats.adds)
        retries.add_metric([queue.name], queue.stats.retries)
        timeouts.add_metric([queue.name], queue.stats.timeouts)
    yield from (adds, retries, timeouts)


def _histograms(queues: Iterable[InstrumentedQueue]) -> Iterator[Metric]:
    queue_duration = HistogramMetricFamily(
        "workqueue_queue_duration_seconds", "Time from add to get.", labels=["name"]
    )
    work_duration = HistogramMetricFamily(
        "workqueue_work_duration_seconds", "Time from get to done.", labels=["name"]
    )
    for queue in queues:
        for family, histogram in (
            (queue_duration, queue.stats.queue_duration),
            (work_duration, queue.stats.work_duration),
        ):
            family.add_metric([queue.name], buckets=histogram.buckets(), sum_value=histogram.total)
    yield from (queue_duration, work_duration)


def _reconcile_metrics(queues: Iterable[InstrumentedQueue]) -> Iterator[Metric]:
    labels = ["controller"]
    total = CounterMetricFamily(
        "controller_runtime_reconcile",
        "Reconciles per controller and result.",
        labels=[*labels, "result"],
    )
    errors, terminal, panics = (
        CounterMetricFamily(f"controller_runtime_{name}", text, labels=labels)
        for name, text in (
            ("reconcile_errors", "Reconciles that failed."),
            ("terminal_reconcile_errors", "Reconciles that failed permanently."),
            ("reconcile_panics", "Reconciles that failed with an unexpected exception."),
        )
    )
    workers, active = (
        GaugeMetricFamily(f"controller_runtime_{name}", text, labels=labels)
        for name, text in (
            ("max_concurrent_reconciles", "Maximum number of concurrent reconciles."),
            ("active_workers", "Workers that reconcile now."),
        )
    )
    duration = HistogramMetricFamily(
        "controller_runtime_reconcile_time_seconds", "Duration of reconciles.", labels=labels
    )
    for queue in queues:
        stats, name = queue.stats, [queue.name]
        for result, count in stats.results.items():
            total.add_metric([*name, result], count)
        errors.add_metric(name, stats.results["error"])
        terminal.add_metric(name, stats.terminal_errors)
        panics.add_metric(name, stats.unexpected_errors)
        workers.add_metric(name, stats.workers)
        active.add_metric(name, len(queue.ages()))
        histogram = stats.reconcile_duration
        duration.add_metric(name, buckets=histogram.buckets(), sum_value=histogram.total)
    yield from (total, errors, terminal, panics, workers, active, duration)
