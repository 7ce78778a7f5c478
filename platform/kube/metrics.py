"""Figures about our requests, under the names that client-go uses."""

from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

DURATION_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Upper bounds of the histograms' buckets, in seconds."""


class ClientMetrics:
    """Counts requests of one process; make one per registry and share it between clients."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = CollectorRegistry() if registry is None else registry
        self.requests = Counter(
            "rest_client_requests",
            "Answered requests by status code; <error> when there was no answer.",
            ("code", "method", "host"),
            registry=self._registry,
        )
        self.retries = Counter(
            "rest_client_request_retries",
            "Requests sent again, by the code that caused it.",
            ("code", "verb", "host"),
            registry=self._registry,
        )
        self.duration = Histogram(
            "rest_client_request_duration_seconds",
            "From sending a request to its whole answer (watches: to the headers).",
            ("verb", "host"),
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )
        self.limiter_wait = Histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Time that requests waited for our own rate limit.",
            ("verb", "host"),
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )
        self.events = Counter(
            "batholith_events",
            "Events recorded, by what became of them.",
            ("result",),
            registry=self._registry,
        )
        self._limiter_owners: set[str] = set()
        self._informer_collector = _InformerCollector()
        self._registry.register(self._informer_collector)

    def for_host(self, host: str) -> "HostMetrics":
        """The figures about one server."""
        return HostMetrics(self, host)

    def register_informer(self, informer: "InstrumentedInformer") -> None:
        """Show the figures of *cache* at each scrape for as long as it lives."""
        self._informer_collector.informers.add(informer)

    def informers(self) -> list["InstrumentedInformer"]:
        """The caches of this process."""
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
    """The same for one server, with the label look-ups (a tenth of a small request) remembered."""

    def __init__(self, metrics: ClientMetrics, host: str) -> None:
        self._metrics = metrics
        self._host = host
        self._response_counters: dict[tuple[str, str], Counter] = {}
        self._durations: dict[str, Histogram] = {}

    def count_response(self, method: str, code: str) -> None:
        """Count an answer, or ``<error>``."""
        counter = self._response_counters.get((method, code))
        if counter is None:
            counter = self._metrics.requests.labels(code, method, self._host)
            self._response_counters[method, code] = counter
        counter.inc()

    def observe_duration(self, method: str, seconds: float) -> None:
        """Note how long a request took."""
        histogram = self._durations.get(method)
        if histogram is None:
            histogram = self._metrics.duration.labels(method, self._host)
            self._durations[method] = histogram
        histogram.observe(seconds)

    def observe_limiter_wait(self, method: str, seconds: float) -> None:
        """Note how long a request waited for our rate limit."""
        self._metrics.limiter_wait.labels(method, self._host).observe(seconds)

    def count_retry(self, method: str, code: str) -> None:
        """Count a repetition and the answer that caused it."""
        self._metrics.retries.labels(code, method, self._host).inc()


class InformerCounts(Protocol):
    """The counts of a cache."""

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


class InstrumentedInformer(Protocol):
    """A cache that can be asked for its counts."""

    name: str

    @property
    def synced(self) -> bool:
        """Whether the first list is complete."""
        ...

    @property
    def stale_seconds(self) -> float:
        """Seconds for which the server could not be followed; 0 while it can."""
        ...

    def stats(self) -> InformerCounts:
        """The counts now."""
        ...


_INFORMER_COUNTERS = {
    "reflector_lists": ("lists", "Complete lists."),
    "reflector_watches": ("watches", "Watches that the server began to answer."),
    "reflector_short_watches": ("short_watches", "Watches that the server ended at once."),
    "batholith_cache_failures": ("failures", "Lists and watches that failed or broke."),
    "batholith_cache_unreadable": ("undecodable", "Objects that did not fit the view."),
    "batholith_cache_handler_errors": ("handler_errors", "Calls of handlers that failed."),
    "batholith_cache_added": ("added", "Objects that came."),
    "batholith_cache_updated": ("updated", "Objects that changed."),
    "batholith_cache_deleted": ("deleted", "Objects that went."),
}


class _InformerCollector(Collector):
    """Reads the caches' own counts at each scrape, so that events pay nothing for figures."""

    def __init__(self) -> None:
        self.informers: WeakSet[InstrumentedInformer] = WeakSet()

    def collect(self) -> Iterable[Metric]:
        counts = [(cache.name, cache.stats()) for cache in self.informers]
        held = GaugeMetricFamily("batholith_cache_objects", "Objects held.", labels=["name"])
        for name, total in _sum_by_name((name, one.objects) for name, one in counts).items():
            held.add_metric([name], total)
        yield held
        silent = GaugeMetricFamily(
            "batholith_cache_out_of_touch_seconds",
            "Time for which the server could not be followed.",
            labels=["name"],
        )
        longest: dict[str, float] = {}
        for cache in self.informers:
            longest[cache.name] = max(cache.stale_seconds, longest.get(cache.name, 0.0))
        for name, seconds in longest.items():
            silent.add_metric([name], seconds)
        yield silent
        for metric, (field, text) in _INFORMER_COUNTERS.items():
            family = CounterMetricFamily(metric, text, labels=["name"])
            for name, total in _sum_by_name(
                (name, getattr(one, field)) for name, one in counts
            ).items():
                family.add_metric([name], total)
            yield family


def _sum_by_name(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add up caches of the same resource: they differ only in what they select."""
    totals: dict[str, int] = {}
    for name, number in pairs:
        totals[name] = totals.get(name, 0) + number
    return totals
