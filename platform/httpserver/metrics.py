"""Counts of what listeners accepted and refused, as Prometheus reads them."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class InstrumentedListener(Protocol):
    """A listener as the collector sees it."""

    name: str
    buffered_bytes: int

    def __len__(self) -> int:
        """Open connections."""
        ...


class ListenerMetrics:
    """Of all listeners of a process."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        self.rejections: Counter[tuple[str, str]] = Counter()
        """Connections and requests that were refused or closed, by listener and reason."""
        self._listeners: dict[str, InstrumentedListener] = {}
        if registry is not None:
            registry.register(self)

    def register(self, listener: InstrumentedListener) -> None:
        """Report *listener* from now on, in the place of an earlier one of its name."""
        self._listeners[listener.name] = listener

    def collect(self) -> "Iterator[Metric]":
        """All families; the library is loaded by the first scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        refused = CounterMetricFamily(
            "batholith_http_refused",
            "Connections and requests that a listener refused or closed.",
            labels=["listener", "reason"],
        )
        for key, number in self.rejections.items():
            refused.add_metric(key, number)
        connections = GaugeMetricFamily(
            "batholith_http_connections", "Open connections.", labels=["listener"]
        )
        held = GaugeMetricFamily(
            "batholith_http_unfinished_bytes",
            "Bytes in memory of requests that are not complete.",
            labels=["listener"],
        )
        for name, listener in self._listeners.items():
            connections.add_metric([name], len(listener))
            held.add_metric([name], listener.buffered_bytes)
        yield from (refused, connections, held)
