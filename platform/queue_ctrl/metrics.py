"""PodGroups of each queue by phase, as gauges computed when scraped."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from .counts import PodGroupCounts

_PHASES = ("inqueue", "pending", "running", "unknown", "completed")


ListCounts = Callable[[], Iterable[tuple[str, PodGroupCounts]]]
"""Lists the queues of a controller with their counts."""


class QueueMetrics:
    """``volcano_queue_pod_group_<phase>_count`` for every queue that exists."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._sources: list[ListCounts] = []
        if registry is not None:
            registry.register(self)

    def add(self, list_counts: ListCounts) -> None:
        """Export the counts of a controller."""
        self._sources.append(list_counts)

    def remove(self, list_counts: ListCounts) -> None:
        """Export them no longer."""
        self._sources.remove(list_counts)

    def collect(self) -> Iterator[Metric]:
        """Yield one family per phase, with one series per queue."""
        families = {
            phase: GaugeMetricFamily(
                f"volcano_queue_pod_group_{phase}_count",
                f"PodGroups of the queue that are {phase}.",
                labels=["queue_name"],
            )
            for phase in _PHASES
        }
        for queue, counts in (each for list_counts in self._sources for each in list_counts()):
            for phase, family in families.items():
                family.add_metric([queue], getattr(counts, phase))
        yield from families.values()
