"""Metrics of the server at ``/metrics``, under the names that Kubernetes uses if there are any.

Requests are counted in plain integers; the Prometheus library is imported on the first scrape.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ...httpserver.metrics import ListenerMetrics
from ...kube.supervision import TaskMetrics
from .storage.resource_store import ResourceStore

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Metrics of one server."""

    def __init__(
        self, resource_stores: Callable[[], Iterable[ResourceStore]], failures: Mapping[str, int]
    ) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """Responses by method and status; watches are counted when they start."""
        self.listeners = ListenerMetrics()
        self._resource_stores = resource_stores
        self._failures = failures

    def render(self) -> bytes:
        """Render the current values."""
        from prometheus_client import (
            CollectorRegistry,
            GCCollector,
            ProcessCollector,
            generate_latest,
        )

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        registry.register(self)
        registry.register(TaskMetrics())
        return generate_latest(registry)

    def collect(self) -> "Iterator[Metric]":
        """Yield requests, and objects and watchers by resource."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily(
            "apiserver_request", "Answered requests.", labels=["verb", "code"]
        )
        for (verb, code), number in self.requests.items():
            requests.add_metric([verb, str(code)], number)
        objects = GaugeMetricFamily("apiserver_resource_objects", "Objects.", labels=_RESOURCE)
        watchers = GaugeMetricFamily(
            "apiserver_registered_watchers", "Watches that are open.", labels=_RESOURCE
        )
        for resource_store in self._resource_stores():
            named = [resource_store.resource.group, resource_store.resource.plural]
            objects.add_metric(named, len(resource_store))
            watchers.add_metric(named, len(resource_store.broadcaster))
        failures = CounterMetricFamily(
            "apiserver_store_failures", "What the store could not do.", labels=["operation"]
        )
        for operation, number in self._failures.items():
            failures.add_metric([operation], number)
        yield from (requests, objects, watchers, failures)
        yield from self.listeners.collect()


_RESOURCE = ("group", "resource")
