"""Metrics of finished jobs."""

from prometheus_client import CollectorRegistry
from support.jobs import job

from batholith.job_ctrl.metrics import JobMetrics


def test_quirk_6_ends_are_counted_by_job_and_forgotten_with_it() -> None:
    registry = CollectorRegistry()
    metrics, of = JobMetrics(registry), job()
    labels = {"job_name": "ns/j", "queue_name": "default"}
    for phase in ("Running", "Completed", "Failed"):
        metrics.phase_entered(of, phase)
    for end in ("completed", "failed"):
        name = f"volcano_job_{end}_phase_count"
        assert registry.get_sample_value(name, labels) == 1
    metrics.job_deleted(of)
    metrics.job_deleted(of)
    assert registry.get_sample_value("volcano_job_failed_phase_count", labels) is None
