"""Figures about our requests, under the names that client-go uses."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
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
            buckets=SECONDS,
            registry=self._registry,
        )
        self.limiter_wait = Histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Time that requests waited for our own rate limit.",
            ("verb", "host"),
            buckets=SECONDS,
            registry=self._registry,
        )
        self._owners: set[str] = set()

    def report_limiter(self, owner: str, saturation: Callable[[], float]) -> None:
        """Register ``<owner>_rate_limiter_use``, read (0 to 1) at each scrape; once an owner."""
        if owner in self._owners:
            return
        self._owners.add(owner)
        gauge = Gauge(
            f"{owner}_rate_limiter_use",
            "How much of the client-side rate limit is used, from 0 to 1.",
            registry=self._registry,
        )
        gauge.set_function(saturation)
