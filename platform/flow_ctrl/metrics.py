"""Metrics of JobFlows, under the names that dashboards for Volcano use."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric, UnknownMetricFamily

from ..model.flow import FlowPhase

_NAMES = {
    FlowPhase.SUCCEED: "volcano_jobflow_succeed_phase_count",
    FlowPhase.FAILED: "volcano_jobflow_failed_phase_count",
}


class FlowMetrics:
    """Counts finished flows by namespace.

    The counters are exported without a type, because the client library would add ``_total`` to
    the name of a counter, which dashboards do not expect.
    """

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._finished: Counter[tuple[FlowPhase, str]] = Counter()
        if registry is not None:
            registry.register(self)

    def phase_entered(self, namespace: str, phase: FlowPhase) -> None:
        """Count the transition of a flow to *phase*."""
        if phase in _NAMES:
            self._finished[phase, namespace] += 1

    def namespace_emptied(self, namespace: str) -> None:
        """Delete the series of a namespace without flows."""
        for phase in _NAMES:
            self._finished.pop((phase, namespace), None)

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family per final phase."""
        for phase, name in _NAMES.items():
            family = UnknownMetricFamily(
                name, f"Times that a JobFlow became {phase}.", labels=("jobflow_namespace",)
            )
            for (ended, namespace), number in self._finished.items():
                if ended == phase:
                    family.add_metric([namespace], number)
            yield family
