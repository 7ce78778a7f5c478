"""Metrics of the requests of the REST API."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class ApiMetrics:
    """Metrics of one server; labels are those of the description, so that they are bounded."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._requests = Counter(
            "batholith_rest_requests_total",
            "Requests of the REST API; without a route if no path matches.",
            labelnames=("method", "route", "status"),
            registry=registry,
        )
        self._durations = Histogram(
            "batholith_rest_request_duration_seconds",
            "Time to the head of the response.",
            labelnames=("method", "route"),
            buckets=_BUCKETS,
            registry=registry,
        )
        in_flight = Gauge(
            "batholith_rest_requests_in_flight",
            "Requests whose response is not complete, streams included.",
            registry=registry,
        )
        self.in_flight = 0
        """Requests whose response is not complete."""
        in_flight.set_function(lambda: self.in_flight)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request whose response began after *seconds*."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._durations.labels(method, route).observe(seconds)
