"""Metrics of requests and informers, under the names that client-go uses."""

from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

DURATION_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Upper bounds of the histograms' buckets, in seconds."""


class ClientMetrics:
    """Request metrics of one process; create one per registry and pass it to all clients."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = CollectorRegistry() if registry is None else registry
        self.requests = Counter(
            "rest_client_requests",
            "Responses by status code; <error> when there was no response.",
            ("code", "method", "host"),
            registry=self._registry,
        )
        self.retries = Counter(
            "rest_client_request_retries",
            "Retried requests by the status code that caused the retry.",
            ("code", "verb", "host"),
            registry=self._registry,
        )
        self.duration = Histogram(
            "rest_client_request_duration_seconds",
            "From sending a request to its complete response (watches: to the headers).",
            ("verb", "host"),
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )
        self.limiter_wait = Histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Time that requests waited for the client-side rate limiter.",
            ("verb", "host"),
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )
        self.events = Counter(
            "batholith_events",
            "Events recorded, by result.",
            ("result",),
            registry=self._registry,
        )
        self._limiter_owners: set[str] = set()
        self._informer_collector = _InformerCollector()
        self._registry.register(self._informer_collector)

    def for_host(self, host: str) -> "HostMetrics":
        """Return the metrics of one server."""
        return HostMetrics(self, host)

    def register_informer(self, informer: "InstrumentedInformer") -> None:
        """Export the counts of *informer* at each scrape until it ends or is garbage collected."""
        self._informer_collector.informers.add(informer)

    def unregister_informer(self, informer: "InstrumentedInformer") -> None:
        """Forget an *informer* that has ended: it is not expected to be current."""
        self._informer_collector.informers.discard(informer)

    def informers(self) -> list["InstrumentedInformer"]:
        """Return the informers of this process that run, or have not run yet."""
        return list(self._informer_collector.informers)

    def register_rate_limiter(self, owner: str, saturation: Callable[[], float]) -> None:
        """Register ``<owner>_rate_limiter_use``, read (0 to 1) at each scrape; once an owner."""
        if owner in self._limiter_owners:
            return
        self._limiter_owners.add(owner)
        gauge = Gauge(
            f"{owner}_rate_limiter_use",
            "How much of the client-side rate limit is used, from 0 to 1.",
            registry=self._registry,
        )
        gauge.set_function(saturation)


class HostMetrics:
    """Metrics of one server; caches the label look-ups, a tenth of a small request."""

    def __init__(self, metrics: ClientMetrics, host: str) -> None:
        self._metrics = metrics
        self._host = host
        self._response_counters: dict[tuple[str, str], Counter] = {}
        self._durations: dict[str, Histogram] = {}

    def count_response(self, method: str, code: str) -> None:
        """Count a response, or ``<error>``."""
        counter = self._response_counters.get((method, code))
        if counter is None:
            counter = self._metrics.requests.labels(code, method, self._host)
            self._response_counters[method, code] = counter
        counter.inc()

    def observe_duration(self, method: str, seconds: float) -> None:
        """Observe the duration of a request."""
        histogram = self._durations.get(method)
        if histogram is None:
            histogram = self._metrics.duration.labels(method, self._host)
            self._durations[method] = histogram
        histogram.observe(seconds)

    def observe_limiter_wait(self, method: str, seconds: float) -> None:
        """Observe how long the rate limiter delayed a request."""
        self._metrics.limiter_wait.labels(method, self._host).observe(seconds)

    def count_retry(self, method: str, code: str) -> None:
        """Count a retry by the status code that caused it."""
        self._metrics.retries.labels(code, method, self._host).inc()


class InformerCounts(Protocol):
    """Counts of an informer."""

    @property
    def objects(self) -> int: ...
    @property
    def added(self) -> int: ...
    @property
    def updated(self) -> int: ...
    @property
    def deleted(self) -> int: ...
    @property
    def lists(self) -> int: ...
    @property
    def watches(self) -> int: ...
    @property
    def short_watches(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def undecodable(self) -> int: ...
    @property
    def handler_errors(self) -> int: ...


class MonitoredInformer(Protocol):
    """An informer that reports whether it is current."""

    name: str

    @property
    def synced(self) -> bool:
        """Whether the initial list is complete."""
        ...

    @property
    def is_absent(self) -> bool:
        """Whether the cluster lacks the resource, and may do so."""
        ...

    @property
    def stale_seconds(self) -> float:
        """Seconds since the watch failed; 0 while the informer is current."""
        ...


class InstrumentedInformer(MonitoredInformer, Protocol):
    """An informer that also reports its counts."""

    def stats(self) -> InformerCounts:
        """Return the current counts."""
        ...


_INFORMER_COUNTERS = {
    "reflector_lists": ("lists", "Complete lists."),
    "reflector_watches": ("watches", "Watches that the server accepted."),
    "reflector_short_watches": ("short_watches", "Watches that the server ended at once."),
    "batholith_cache_failures": ("failures", "Lists and watches that failed."),
    "batholith_cache_unreadable": ("undecodable", "Objects that could not be decoded."),
    "batholith_cache_handler_errors": ("handler_errors", "Event handler calls that raised."),
    "batholith_cache_added": ("added", "Objects added."),
    "batholith_cache_updated": ("updated", "Objects updated."),
    "batholith_cache_deleted": ("deleted", "Objects deleted."),
}


class _InformerCollector(Collector):
    """Reads the informers' own counts at each scrape, so that events pay nothing for metrics."""

    def __init__(self) -> None:
        self.informers: WeakSet[InstrumentedInformer] = WeakSet()

    def collect(self) -> Iterable[Metric]:
        counts = [(informer.name, informer.stats()) for informer in self.informers]
        objects = GaugeMetricFamily(
            "batholith_cache_objects", "Objects in the store.", labels=["name"]
        )
        for name, total in _sum_by_name((name, one.objects) for name, one in counts).items():
            objects.add_metric([name], total)
        yield objects
        stale = GaugeMetricFamily(
            "batholith_cache_out_of_touch_seconds",
            "Time since the watch failed; 0 while the informer is current.",
            labels=["name"],
        )
        longest: dict[str, float] = {}
        for informer in self.informers:
            longest[informer.name] = max(informer.stale_seconds, longest.get(informer.name, 0.0))
        for name, seconds in longest.items():
            stale.add_metric([name], seconds)
        yield stale
        for metric, (field, text) in _INFORMER_COUNTERS.items():
            family = CounterMetricFamily(metric, text, labels=["name"])
            for name, total in _sum_by_name(
                (name, getattr(one, field)) for name, one in counts
            ).items():
                family.add_metric([name], total)
            yield family


def _sum_by_name(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sum over the informers of one resource, which differ in selectors only."""
    totals: dict[str, int] = {}
    for name, number in pairs:
        totals[name] = totals.get(name, 0) + number
    return totals
