"""Metrics of work queues, under the names of client-go."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from .workqueue_stats import WorkQueueStats


class InstrumentedQueue(Protocol):
    """A work queue that reports its counters."""

    name: str
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

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families, with one series per queue."""
        queues = list(self._queues.values())
        yield from _gauges(queues)
        yield from _counters(queues)
        yield from _histograms(queues)


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
