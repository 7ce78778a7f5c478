"""Prometheus metrics of listeners."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class InstrumentedListener(Protocol):
    """A listener that reports its metrics."""

    name: str
    buffered_bytes: int

    def __len__(self) -> int:
        """Number of open connections."""
        ...


class ListenerMetrics:
    """Metrics of all listeners of a process."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        self.rejections: Counter[tuple[str, str]] = Counter()
        """Connections and requests rejected or closed, by listener and reason."""
        self._listeners: dict[str, InstrumentedListener] = {}
        if registry is not None:
            registry.register(self)

    def register(self, listener: InstrumentedListener) -> None:
        """Export *listener*, replacing an earlier one of its name."""
        self._listeners[listener.name] = listener

    def collect(self) -> "Iterator[Metric]":
        """Yield all metric families; the first scrape imports the library."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        rejections = CounterMetricFamily(
            "batholith_http_refused",
            "Connections and requests that a listener rejected or closed.",
            labels=["listener", "reason"],
        )
        for key, number in self.rejections.items():
            rejections.add_metric(key, number)
        connections = GaugeMetricFamily(
            "batholith_http_connections", "Open connections.", labels=["listener"]
        )
        unfinished = GaugeMetricFamily(
            "batholith_http_unfinished_bytes",
            "Bytes of incomplete requests in memory.",
            labels=["listener"],
        )
        for name, listener in self._listeners.items():
            connections.add_metric([name], len(listener))
            unfinished.add_metric([name], listener.buffered_bytes)
        yield from (rejections, connections, unfinished)
