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
from .state.cache import Cluster
from .state.gangs import Queue

_BUCKETS = tuple(0.5 * 2.0**power for power in range(18))
"""Milliseconds: half of one to a minute."""

_SUMS = ("allocated", "request", "inqueue")
_MEASURES = {"milli_cpu": "cpu", "memory_bytes": "memory"}


class SchedulerMetrics:
    """Registers with *registry*, if there is one."""

    def __init__(
        self, registry: CollectorRegistry | None, cluster: Cluster, *, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._cycles = Histogram(
            "volcano_e2e_scheduling_latency_milliseconds",
            "Time of a scheduling cycle.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._actions = Histogram(
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
        self._cycles.observe((self._clock.monotonic() - started) * 1000)

    def action(self, name: str) -> AbstractContextManager[None]:
        """Measure an action."""
        return self._timed(self._actions.labels(name))

    @contextmanager
    def _timed(self, histogram: Histogram) -> Iterator[None]:
        started = self._clock.monotonic()
        yield
        histogram.observe((self._clock.monotonic() - started) * 1000)

    def decided(self, decision: Decision) -> None:
        """Count what *decision* came to."""
        if decision.scheduled:
            self._attempts.labels("scheduled").inc(decision.scheduled)
        if decision.refused:
            self._attempts.labels("unschedulable").inc(decision.refused)

    def collect(self) -> Iterator[Metric]:
        """What waits, and what the queues hold."""
        yield from self._waiting()
        # A decision may add queues in a thread beside this.
        yield from _of_queues([each for each in list(self._cluster.queues.values()) if each.object])

    def _waiting(self) -> Iterator[Metric]:
        tasks = GaugeMetricFamily(
            "volcano_unschedule_task_count", "Pods that found no place.", labels=["job_id"]
        )
        gangs = 0
        for gang in list(self._cluster.gangs.values()):
            if gang.finding is not None and gang.waiting:
                gangs += 1
                tasks.add_metric([gang.name], len(gang.waiting))
        yield tasks
        yield GaugeMetricFamily(
            "volcano_unschedule_job_count", "Gangs that found no place.", value=gangs
        )


def _of_queues(queues: list[Queue]) -> Iterator[Metric]:
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
                family.add_metric([queue.name], _sum(queue, kind).get(resource, 0))
            yield family
        yield _scalars(queues, kind)


def _scalars(queues: list[Queue], kind: str) -> Metric:
    family = GaugeMetricFamily(
        f"volcano_queue_{kind}_scalar_resources",
        f"{kind.capitalize()} other resources of a queue, in thousandths.",
        labels=["queue_name", "resource"],
    )
    for queue in queues:
        for resource, amount in _sum(queue, kind).items():
            if resource not in ("cpu", "memory", "pods"):
                family.add_metric([queue.name, resource], amount)
    return family


def _sum(queue: Queue, kind: str) -> dict[str, int]:
    sums = {
        "allocated": queue.allocated,
        "request": queue.requested,
        "inqueue": queue.reserved,
    }
    return sums[kind]
