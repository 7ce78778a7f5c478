"""Metrics of jobs, under the names that dashboards for Volcano use."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import Metric, UnknownMetricFamily

from ..model.job import Job, JobPhase

_NAMES = {
    JobPhase.COMPLETED: "volcano_job_completed_phase_count",
    JobPhase.FAILED: "volcano_job_failed_phase_count",
}
_LABELS = ("job_name", "queue_name")
_MIN_BUCKET, _MAX_BUCKET, _BUCKET_COUNT = 50.0, 60000.0, 30
_BUCKETS = tuple(
    _MIN_BUCKET * (_MAX_BUCKET / _MIN_BUCKET) ** (number / (_BUCKET_COUNT - 1))
    for number in range(_BUCKET_COUNT)
)
"""Milliseconds."""


class JobMetrics:
    """Counts completed and failed jobs; the series of a job is deleted with the job.

    They are counters exported without a type, because the client library would add ``_total`` to
    the name of a counter, which dashboards do not expect.
    """

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._finished: Counter[tuple[str, str, str]] = Counter()
        self._delays = Histogram(
            "volcano_controller_job_to_pod_creation_latency_milliseconds",
            "Time from the creation of a job to that of a pod, from their creationTimestamps.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._rejected = CounterMetric(
            "batholith_job_rejected_pods_total",
            "Pods that a kubelet rejected before a container started; they are created again.",
            labelnames=("reason",),
            registry=registry,
        )
        self._unplaced = CounterMetric(
            "batholith_job_unplaced_total",
            "Jobs of which pods were created without a node despite placement at creation.",
            labelnames=("reason",),
            registry=registry,
        )
        if registry is not None:
            registry.register(self)

    def pod_rejected(self, reason: str) -> None:
        """Count a pod that a kubelet rejected for *reason*."""
        self._rejected.labels(reason).inc()

    def job_unplaced(self, reason: str) -> None:
        """Count a job of which pods are created without a node for *reason*."""
        self._unplaced.labels(reason).inc()

    def phase_entered(self, job: Job, phase: str) -> None:
        """Count the transition of *job* to *phase*."""
        if phase in _NAMES:
            self._finished[phase, job.metadata.key, job.spec.queue] += 1

    def pod_created(self, job: Job, created_at: str | None) -> None:
        """Observe the creation of a pod of *job* with this ``creationTimestamp``."""
        since = job.metadata.creation_timestamp
        if since and created_at:
            delay = datetime.fromisoformat(created_at) - datetime.fromisoformat(since)
            self._delays.observe(delay.total_seconds() * 1000)

    def job_deleted(self, job: Job) -> None:
        """Delete the series of *job*."""
        for phase in _NAMES:
            self._finished.pop((phase, job.metadata.key, job.spec.queue), None)

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family per final phase."""
        for phase, name in _NAMES.items():
            family = UnknownMetricFamily(name, f"Times that a job became {phase}.", labels=_LABELS)
            for (ended, *labels), number in self._finished.items():
                if ended == phase:
                    family.add_metric(labels, number)
            yield family
