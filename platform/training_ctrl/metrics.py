"""Metrics of training jobs, under the names of training-operator."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from .effects import Counted

_LABELS = ("job_namespace", "framework")


class TrainingMetrics:
    """Counters of jobs and of the objects that are created and deleted for them."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def jobs(result: str) -> Counter:
            return counter(f"training_operator_jobs_{result}", f"Jobs {result}.", _LABELS)

        self._jobs = {
            "created": jobs("created"),
            "deleted": jobs("deleted"),
            "successful": jobs("successful"),
            "failed": jobs("failed"),
            "restarted": jobs("restarted"),
        }
        self.created_pods = counter("created_pods", "Pods created.")
        self.deleted_pods = counter("deleted_pods", "Pods deleted by the controller.")
        self.failed_pods = counter("failed_pods", "Pods that entered phase Failed.")
        self.created_services = counter("succeeded_service_creation", "Services created.")
        self.failed_services = counter("failed_service_creation", "Services not created.")
        self.created_podgroups = counter("created_pod_groups", "PodGroups created.")
        self.deleted_podgroups = counter("deleted_pod_groups", "PodGroups deleted.")
        self.served = Gauge(
            "batholith_training_kind_served",
            "Whether the API server has the kind, so that its jobs are reconciled.",
            ("kind",),
            registry=registry,
        )

    def count_job(self, event: Counted, *, namespace: str, framework: str) -> None:
        """Count what happened to a job."""
        self._jobs[event].labels(namespace, framework).inc()

    def count_deleted_job(self, *, namespace: str, framework: str) -> None:
        """Count a job that was deleted after its time to live."""
        self._jobs["deleted"].labels(namespace, framework).inc()
