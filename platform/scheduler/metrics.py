"""Figures of the scheduler, under the names that dashboards for Volcano know.

Times are measured around decisions, never by what decides. What can be read from the cluster's
picture is read when it is asked for.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from ..machinery.clock import Clock
from .framework.session import Decision
from .state.cache import SchedulerCache
from .state.gangs import QueueInfo

_BUCKETS = tuple(0.5 * 2.0**power for power in range(18))
"""Milliseconds: half of one to a minute."""

_SUMS = ("allocated", "request", "inqueue")
_MEASURES = {"milli_cpu": "cpu", "memory_bytes": "memory"}


class SchedulerMetrics:
    """Registers with *registry*, if there is one."""

    def __init__(
        self, registry: CollectorRegistry | None, cache: SchedulerCache, *, clock: Clock
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._cycle_latency = Histogram(
            "volcano_e2e_scheduling_latency_milliseconds",
            "Time of a scheduling cycle.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._action_latency = Histogram(
            "volcano_action_scheduling_latency_milliseconds",
            "Time of an action within a cycle.",
            ("action",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._attempts = Counter(
            "volcano_schedule_attempts",
            "Tries to place a gang, by how they ended.",
            ("result",),
            registry=registry,
        )
        for result in ("scheduled", "unschedulable"):
            self._attempts.labels(result)
        if registry is not None:
            registry.register(self)

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """Measure a cycle, from what is known to the decision."""
        started = self._clock.monotonic()
        yield
        self._cycle_latency.observe((self._clock.monotonic() - started) * 1000)

    def action(self, name: str) -> AbstractContextManager[None]:
        """Measure an action."""
        return self._measure(self._action_latency.labels(name))

    @contextmanager
    def _measure(self, histogram: Histogram) -> Iterator[None]:
        started = self._clock.monotonic()
        yield
        histogram.observe((self._clock.monotonic() - started) * 1000)

    def record_decision(self, decision: Decision) -> None:
        """Count what *decision* came to."""
        if decision.scheduled:
            self._attempts.labels("scheduled").inc(decision.scheduled)
        if decision.rejected:
            self._attempts.labels("unschedulable").inc(decision.rejected)

    def collect(self) -> Iterator[Metric]:
        """What waits, and what the queues hold."""
        yield from self._unschedulable()
        # A decision may add queues in a thread beside this.
        yield from _queue_metrics(
            [each for each in list(self._cache.queues.values()) if each.object]
        )

    def _unschedulable(self) -> Iterator[Metric]:
        tasks = GaugeMetricFamily(
            "volcano_unschedule_task_count", "Pods that found no place.", labels=["job_id"]
        )
        gangs = 0
        for gang in list(self._cache.gangs.values()):
            if gang.diagnosis is not None and gang.pending_tasks:
                gangs += 1
                tasks.add_metric([gang.name], len(gang.pending_tasks))
        yield tasks
        yield GaugeMetricFamily(
            "volcano_unschedule_job_count", "Gangs that found no place.", value=gangs
        )


def _queue_metrics(queues: list[QueueInfo]) -> Iterator[Metric]:
    weight = GaugeMetricFamily("volcano_queue_weight", "Its weight.", labels=["queue_name"])
    for queue in queues:
        if queue.object is not None:
            weight.add_metric([queue.name], queue.object.spec.weight)
    yield weight
    for kind in _SUMS:
        for measure, resource in _MEASURES.items():
            family = GaugeMetricFamily(
                f"volcano_queue_{kind}_{measure}",
                f"{kind.capitalize()} {resource} of a queue.",
                labels=["queue_name"],
            )
            for queue in queues:
                family.add_metric([queue.name], _queue_sum(queue, kind).get(resource, 0))
            yield family
        yield _scalar_resources(queues, kind)


def _scalar_resources(queues: list[QueueInfo], kind: str) -> Metric:
    family = GaugeMetricFamily(
        f"volcano_queue_{kind}_scalar_resources",
        f"{kind.capitalize()} other resources of a queue, in thousandths.",
        labels=["queue_name", "resource"],
    )
    for queue in queues:
        for resource, amount in _queue_sum(queue, kind).items():
            if resource not in ("cpu", "memory", "pods"):
                family.add_metric([queue.name, resource], amount)
    return family


def _queue_sum(queue: QueueInfo, kind: str) -> dict[str, int]:
    sums = {
        "allocated": queue.allocated,
        "request": queue.requested,
        "inqueue": queue.reserved,
    }
    return sums[kind]
