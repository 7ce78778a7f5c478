"""Figures of work queues, under the names that client-go's dashboards know."""

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
    """A queue as the collector sees it."""

    name: str
    stats: WorkQueueStats

    def depth(self) -> int:
        """Keys that need work, whether or not they are being worked on."""
        ...

    def ages(self) -> list[float]:
        """Seconds that each key in work has been in work."""
        ...


class WorkQueueMetrics:
    """One for each registry; queues register themselves."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._queues: dict[str, InstrumentedQueue] = {}
        if registry is not None:
            registry.register(self)

    def register(self, queue: InstrumentedQueue) -> None:
        """Report *queue* from now on, in the place of an earlier one of its name."""
        self._queues[queue.name] = queue

    def collect(self) -> Iterator[Metric]:
        """All families with one series a queue."""
        queues = list(self._queues.values())
        yield from _gauges(queues)
        yield from _counters(queues)
        yield from _histograms(queues)


def _gauges(queues: Iterable[InstrumentedQueue]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("workqueue_depth", "Keys that need work.", labels=["name"])
    unfinished = GaugeMetricFamily(
        "workqueue_unfinished_work_seconds",
        "Sum of the times that the keys in work have been in work.",
        labels=["name"],
    )
    longest = GaugeMetricFamily(
        "workqueue_longest_running_processor_seconds",
        "Longest time that any key has been in work.",
        labels=["name"],
    )
    for queue in queues:
        ages = queue.ages()
        depth.add_metric([queue.name], queue.depth())
        unfinished.add_metric([queue.name], sum(ages))
        longest.add_metric([queue.name], max(ages, default=0.0))
    yield from (depth, unfinished, longest)


def _counters(queues: Iterable[InstrumentedQueue]) -> Iterator[Metric]:
    adds = CounterMetricFamily("workqueue_adds", "Adds that were accepted.", labels=["name"])
    retries = CounterMetricFamily("workqueue_retries", "Adds for later.", labels=["name"])
    timeouts = CounterMetricFamily(
        "batholith_reconcile_timeouts",
        "Reconciles that took too long and were cancelled.",
        labels=["name"],
    )
    for queue in queues:
        adds.add_metric([queue.name], queue.stats.adds)
        retries.add_metric([queue.name], queue.stats.retries)
        timeouts.add_metric([queue.name], queue.stats.timeouts)
    yield from (adds, retries, timeouts)


def _histograms(queues: Iterable[InstrumentedQueue]) -> Iterator[Metric]:
    waited = HistogramMetricFamily(
        "workqueue_queue_duration_seconds", "Time from add to get.", labels=["name"]
    )
    worked = HistogramMetricFamily(
        "workqueue_work_duration_seconds", "Time from get to done.", labels=["name"]
    )
    for queue in queues:
        for family, figures in (
            (waited, queue.stats.queue_duration),
            (worked, queue.stats.work_duration),
        ):
            family.add_metric([queue.name], buckets=figures.buckets(), sum_value=figures.total)
    yield from (waited, worked)
