"""Metrics of the scheduler, with the names of Volcano's, for its dashboards.

A cycle may run in a thread during a scrape, so the scrape reads the stats of the last decision and
never the scheduler cache.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from ..machinery.clock import Clock
from .framework.decision import Decision, GangStats, QueueStats, SchedulerStats
from .framework.plugin_calls import PluginFailure
from .state.gangs.diagnosis import BudgetUse
from .state.past_usage.decayed_sums import Snapshot
from .state.resources import units_of

_BUCKETS = tuple(0.5 * 2.0**power for power in range(18))
"""Milliseconds: 0.5 to a minute."""

_RATIOS = (0.1, 0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0, 10.0)
"""Predicted divided by actual run times."""

_SUMS = ("allocated", "request", "inqueue")
_LIMIT = "capacity"
"""Volcano's name of a queue's capability in metrics."""
_MEASURES = {"milli_cpu": "cpu", "memory_bytes": "memory"}


class SchedulerMetrics:
    """Metrics of one scheduler, registered with *registry* unless that is ``None``."""

    def __init__(self, registry: CollectorRegistry | None, *, clock: Clock) -> None:
        self._clock = clock
        self._stats = SchedulerStats()
        self._cycle_latency = Histogram(
            "volcano_e2e_scheduling_latency_milliseconds",
            "Latency of a scheduling cycle.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._action_latency = Histogram(
            "volcano_action_scheduling_latency_milliseconds",
            "Latency of an action within a cycle.",
            ("action",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._attempts = Counter(
            "volcano_schedule_attempts",
            "Attempts to schedule a gang, by result.",
            ("result",),
            registry=registry,
        )
        self._disabled_plugins = Gauge(
            "batholith_scheduler_disabled_plugins",
            "Configured plugins of Volcano that are not implemented: 1 for each.",
            ("plugin",),
            registry=registry,
        )
        self._stale_placements = Counter(
            "batholith_scheduler_stale_placements_total",
            "Placements that did not hold any more when they were about to be bound.",
            labelnames=("reason",),
            registry=registry,
        )
        self._replaced_pods = Counter(
            "batholith_scheduler_replaced_pods_total",
            "Pods that the scheduler evicted so that they are created again.",
            labelnames=("reason",),
            registry=registry,
        )
        self._plugin_errors = Counter(
            "batholith_scheduler_plugin_errors",
            "Calls of scheduler plugins that raised, by plugin and extension point.",
            ("plugin", "extension_point"),
            registry=registry,
        )
        self._retries = Counter(
            "batholith_scheduler_retries",
            "Rejected gangs, or groups with equal demand, that were tried again, by reason.",
            ("reason",),
            registry=registry,
        )
        self._start_delays = _start_delays(registry)
        self._prediction_ratio = _prediction_ratio(registry)
        for result in ("scheduled", "unschedulable"):
            self._attempts.labels(result)
        if registry is not None:
            registry.register(self)

    def cycle(self) -> AbstractContextManager[None]:
        """Measure a cycle."""
        return self._measure(self._cycle_latency)

    def action(self, name: str) -> AbstractContextManager[None]:
        """Measure an action; may be called in the thread of a cycle."""
        return self._measure(self._action_latency.labels(name))

    @contextmanager
    def _measure(self, histogram: Histogram) -> Iterator[None]:
        started = self._clock.monotonic()
        yield
        histogram.observe((self._clock.monotonic() - started) * 1000)

    def set_disabled_plugins(self, names: Iterable[str]) -> None:
        """Replace the set of configured plugins that are not implemented."""
        self._disabled_plugins.clear()
        for name in names:
            self._disabled_plugins.labels(name).set(1)

    def count_stale_placements(self, reason: str, count: int) -> None:
        """Count placements that were forgotten for *reason* before they were bound."""
        self._stale_placements.labels(reason).inc(count)

    def record_decision(self, decision: Decision) -> None:
        """Count the attempts of *decision*, and expose its stats."""
        if decision.scheduled:
            self._attempts.labels("scheduled").inc(decision.scheduled)
        if decision.rejected:
            self._attempts.labels("unschedulable").inc(decision.rejected)
        for reason, count in decision.retries:
            self._retries.labels(reason).inc(count)
        for eviction in decision.evictions:
            if eviction.replaced:
                self._replaced_pods.labels(eviction.reason).inc()
        for run in decision.predicted_runs:
            self._prediction_ratio.observe(run.predicted / max(run.took, 1.0))
        for delay in decision.delays:
            self._start_delays.labels(delay.cause.name.lower()).inc()
        self.count_plugin_failures(decision.plugin_failures)
        self._stats = decision.stats

    def count_plugin_failures(self, failures: Iterable[PluginFailure]) -> None:
        """Count calls of plugins that raised."""
        for failure in failures:
            labels = (failure.plugin, failure.extension_point)
            self._plugin_errors.labels(*labels).inc(failure.count)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, all from one decision."""
        stats = self._stats
        yield from _unschedulable(stats.unschedulable)
        yield GaugeMetricFamily(
            "batholith_scheduler_stranded_gangs",
            "Gangs that were never complete and of which pods are bound.",
            value=stats.stranded,
        )
        yield from _queue_metrics(stats.queues)
        if stats.past_usage is not None:
            yield _past_usage(stats.past_usage, self._clock.monotonic())
        yield from _budgets(stats.budgets)


class ReloadMetrics:
    """Metrics of the scheduler configuration."""

    def __init__(self, registry: CollectorRegistry | None, *, clock: Clock) -> None:
        self._clock = clock
        self._reloads = Counter(
            "batholith_scheduler_config_reloads",
            "Reloads of the scheduler configuration after a change, by result.",
            ("result",),
            registry=registry,
        )
        for result in ("success", "error"):
            self._reloads.labels(result)
        self._last_success = Gauge(
            "batholith_scheduler_config_last_success_timestamp_seconds",
            "When the configuration in use was loaded.",
            registry=registry,
        )
        self._last_success.set(clock.now().timestamp())
        self._is_current = Gauge(
            "batholith_scheduler_config_last_reload_successful",
            "1 while the configuration in use is that of the file, else 0.",
            registry=registry,
        )
        self._is_current.set(1)

    def succeeded(self) -> None:
        """Count a configuration that is in use now."""
        self._reloads.labels("success").inc()
        self._last_success.set(self._clock.now().timestamp())
        self._is_current.set(1)

    def failed(self) -> None:
        """Count a configuration that cannot be used."""
        self._reloads.labels("error").inc()
        self._is_current.set(0)


def _start_delays(registry: CollectorRegistry | None) -> Counter:
    return Counter(
        "batholith_scheduler_start_delays",
        "Planned starts of gangs that have become later, by cause.",
        ("cause",),
        registry=registry,
    )


def _prediction_ratio(registry: CollectorRegistry | None) -> Histogram:
    return Histogram(
        "batholith_scheduler_run_time_prediction_ratio",
        "Predicted run time of a gang, divided by the time that it ran.",
        buckets=_RATIOS,
        registry=registry,
    )


def _unschedulable(gangs: tuple[GangStats, ...]) -> Iterator[Metric]:
    tasks = GaugeMetricFamily(
        "volcano_unschedule_task_count", "Unschedulable pods of a gang.", labels=["job_id"]
    )
    for gang in gangs:
        tasks.add_metric([gang.name], gang.pending)
    yield tasks
    yield GaugeMetricFamily(
        "volcano_unschedule_job_count", "Unschedulable gangs.", value=len(gangs)
    )


def _queue_metrics(queues: tuple[QueueStats, ...]) -> Iterator[Metric]:
    weight = GaugeMetricFamily("volcano_queue_weight", "Weight of a queue.", labels=["queue_name"])
    for queue in queues:
        weight.add_metric([queue.name], queue.weight)
    yield weight
    for kind in (*_SUMS, _LIMIT):
        for measure, resource in _MEASURES.items():
            family = GaugeMetricFamily(
                f"volcano_queue_{kind}_{measure}",
                f"{kind.capitalize()} {resource} of a queue.",
                labels=["queue_name"],
            )
            for queue in queues:
                amount = _queue_sum(queue, kind).get(resource, 0)
                # A capability of zero CPU or memory limits nothing.
                if amount or kind != _LIMIT:
                    family.add_metric([queue.name], amount)
            yield family
        yield _scalar_resources(queues, kind)


def _scalar_resources(queues: tuple[QueueStats, ...], kind: str) -> Metric:
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


def _past_usage(snapshot: Snapshot, now: float) -> Metric:
    family = GaugeMetricFamily(
        "batholith_scheduler_queue_past_usage_resource_hours",
        "Used by a queue and those below it in the past, with decay: units of a resource "
        "(CPUs, bytes) times hours.",
        labels=["queue_name", "resource"],
    )
    used = snapshot.used_at(now) / 3600
    for (queue, user), row in zip(snapshot.keys, used.tolist(), strict=True):
        for resource, hours in zip(snapshot.resources, row, strict=True):
            if not user and hours > 0:
                family.add_metric([queue, resource], hours / units_of(resource))
    return family


def _budgets(uses: tuple[BudgetUse, ...]) -> Iterator[Metric]:
    families = (
        ("used", "Used of the budget of a queue in its current window"),
        ("limit", "Budget of a queue"),
    )
    for kind, text in families:
        family = GaugeMetricFamily(
            f"batholith_scheduler_queue_budget_{kind}_resource_hours",
            f"{text}: units of a resource (CPUs, bytes) times hours.",
            labels=["queue_name", "resource"],
        )
        for use in uses:
            hours = use.used if kind == "used" else use.limit
            family.add_metric([use.queue, use.resource], hours / units_of(use.resource))
        yield family


def _queue_sum(queue: QueueStats, kind: str) -> Mapping[str, int]:
    sums = {
        "allocated": queue.allocated,
        "request": queue.requested,
        "inqueue": queue.inqueue,
        _LIMIT: queue.capability,
    }
    return sums[kind]
