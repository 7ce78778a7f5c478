"""Figures of jobs, under the names that dashboards for Volcano know."""

from prometheus_client import CollectorRegistry, Counter

from ..model.job import Job, JobPhase

_LABELS = ("job_name", "queue_name")


class JobMetrics:
    """Counts how jobs end; a job's series goes with the job."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        own = registry or CollectorRegistry()
        self._ends = {
            JobPhase.COMPLETED: Counter(
                "volcano_job_completed_phase_count", "Jobs completed.", _LABELS, registry=own
            ),
            JobPhase.FAILED: Counter(
                "volcano_job_failed_phase_count", "Jobs failed.", _LABELS, registry=own
            ),
        }

    def entered(self, job: Job, phase: str) -> None:
        """*job* has just come into *phase*."""
        counter = self._ends.get(JobPhase(phase))
        if counter is not None:
            counter.labels(job.metadata.key, job.spec.queue).inc()

    def gone(self, job: Job) -> None:
        """*job* was deleted."""
        for counter in self._ends.values():
            counter.remove(job.metadata.key, job.spec.queue)
