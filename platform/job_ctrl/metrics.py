"""Figures of jobs, under the names that dashboards for Volcano know."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric, UnknownMetricFamily

from ..model.job import Job, JobPhase

_NAMES = {
    JobPhase.COMPLETED: "volcano_job_completed_phase_count",
    JobPhase.FAILED: "volcano_job_failed_phase_count",
}
_LABELS = ("job_name", "queue_name")


class JobMetrics:
    """Counts how jobs end; a job's series goes with the job.

    They are counters, but exported without a type: the client library would add ``_total`` to the
    name of a counter, and dashboards would not find it.
    """

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._ends: Counter[tuple[str, str, str]] = Counter()
        if registry is not None:
            registry.register(self)

    def entered(self, job: Job, phase: str) -> None:
        """*job* has just come into *phase*."""
        if phase in _NAMES:
            self._ends[phase, job.metadata.key, job.spec.queue] += 1

    def gone(self, job: Job) -> None:
        """*job* was deleted."""
        for phase in _NAMES:
            self._ends.pop((phase, job.metadata.key, job.spec.queue), None)

    def collect(self) -> Iterator[Metric]:
        """One family for each way to end."""
        for phase, name in _NAMES.items():
            family = UnknownMetricFamily(name, f"Times that a job became {phase}.", labels=_LABELS)
            for (ended, *labels), number in self._ends.items():
                if ended == phase:
                    family.add_metric(labels, number)
            yield family
