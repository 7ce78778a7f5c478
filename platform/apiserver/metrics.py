"""What the server shows of itself at ``/metrics``, under Kubernetes' names where it has them.

Requests are counted in plain integers; Prometheus' library is loaded by whoever asks first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..httpserver.metrics import ListenerMetrics
from ..kube.supervision import TaskMetrics
from .storage.object_store import ResourceStore

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Of one server."""

    def __init__(
        self, resource_stores: Callable[[], Iterable[ResourceStore]], failures: Mapping[str, int]
    ) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """Answers by method and status; watches count when they begin."""
        self.listeners = ListenerMetrics()
        self._resource_stores = resource_stores
        self._failures = failures

    def render(self) -> bytes:
        """All figures as they are now."""
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
        """Requests, and for each resource the objects and those who watch them."""
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
        for shelf in self._resource_stores():
            named = [shelf.resource.group, shelf.resource.plural]
            objects.add_metric(named, len(shelf))
            watchers.add_metric(named, len(shelf.broadcaster))
        failures = CounterMetricFamily(
            "apiserver_store_failures", "What the store could not do.", labels=["operation"]
        )
        for operation, number in self._failures.items():
            failures.add_metric([operation], number)
        yield from (requests, objects, watchers, failures)
        yield from self.listeners.collect()


_RESOURCE = ("group", "resource")
