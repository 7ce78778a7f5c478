"""PodGroups of each queue by phase, as gauges computed when scraped."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from .counts import PodGroupCounts

_PHASES = ("inqueue", "pending", "running", "unknown", "completed")


class QueueMetrics:
    """``volcano_queue_pod_group_<phase>_count`` for every queue that exists."""

    def __init__(self, list_counts: Callable[[], Iterable[tuple[str, PodGroupCounts]]]) -> None:
        self._list_counts = list_counts

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
        for queue, counts in self._list_counts():
            for phase, family in families.items():
                family.add_metric([queue], getattr(counts, phase))
        yield from families.values()
