"""Metrics of Jobs, under the names of kube-controller-manager."""

from collections import Counter

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as CounterMetric

from .conditions import Outcome
from .core_types import TRACKING_FINALIZER, CompletionMode, Job, JobStatus, Pod, PolicyAction
from .effects import CreationReason, SyncAction
from .indexes import IndexSet

_FINISHED = frozenset({"Succeeded", "Failed"})
_SYNC_LABELS = ("completion_mode", "result", "action")
_DURATION_BUCKETS = tuple(0.004 * 2**number for number in range(15))
_DELETION_BUCKETS = tuple(0.1 * 2**number for number in range(14))


class BatchJobMetrics:
    """Counters of syncs, Jobs and pods."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._registry = registry
        self._sync_duration = Histogram(
            "job_controller_job_sync_duration_seconds",
            "Duration of a sync of a Job.",
            _SYNC_LABELS,
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._syncs = self._counter("job_syncs", "Syncs of Jobs.", *_SYNC_LABELS)
        self._jobs_finished = self._counter(
            "jobs_finished", "Finished Jobs.", "completion_mode", "result", "reason"
        )
        self._pods_finished = self._counter(
            "job_pods_finished", "Counted pods.", "completion_mode", "result"
        )
        self._indexes_finished = self._counter(
            "job_finished_indexes", "Finished indexes.", "status", "backoffLimit"
        )
        self._pods_created = self._counter(
            "job_pods_creation", "Creations of pods.", "reason", "status"
        )
        self._policy_actions = self._counter(
            "pod_failures_handled_by_failure_policy",
            "Failed pods to which a rule of the pod failure policy was applied.",
            "action",
        )
        self._tracked = self._counter(
            "terminated_pods_tracking_finalizer",
            "Finished pods with the tracking finalizer: found (add) and released (delete).",
            "event",
        )
        self._external = self._counter(
            "jobs_by_external_controller", "Jobs of other controllers.", "controller_name"
        )
        self._deletion_delay = Histogram(
            "ttl_after_finished_controller_job_deletion_duration_seconds",
            "Time from the expiry of a finished Job to its deletion.",
            buckets=_DELETION_BUCKETS,
            registry=registry,
        )

    def _counter(self, name: str, text: str, *labels: str) -> CounterMetric:
        return CounterMetric(f"job_controller_{name}", text, labels, registry=self._registry)

    def synced(self, job: Job, action: SyncAction, *, seconds: float, failed: bool) -> None:
        """Count a sync."""
        labels = (_mode(job), "error" if failed else "success", action)
        self._sync_duration.labels(*labels).observe(seconds)
        self._syncs.labels(*labels).inc()

    def status_written(self, job: Job, new: JobStatus) -> None:
        """Count the pods and indexes that a status write has added."""
        old, mode = job.status, _mode(job)
        succeeded = new.succeeded - old.succeeded
        if job.is_indexed:
            per_index = job.spec.backoff_limit_per_index is not None
            limit = "perIndex" if per_index else "global"
            failed = _total(new.failed_indexes, job) - _total(old.failed_indexes, job)
            _add(self._indexes_finished, succeeded, "succeeded", limit)
            _add(self._indexes_finished, failed, "failed", limit)
        _add(self._pods_finished, succeeded, mode, "succeeded")
        _add(self._pods_finished, new.failed - old.failed, mode, "failed")

    def policy_applied(self, actions: Counter[PolicyAction]) -> None:
        """Count applied rules of the pod failure policy."""
        for action, number in actions.items():
            _add(self._policy_actions, number, action)

    def finished(self, job: Job, outcome: Outcome) -> None:
        """Count a finished Job."""
        result = "succeeded" if outcome.is_success else "failed"
        self._jobs_finished.labels(_mode(job), result, outcome.reason).inc()

    def pods_created(self, reason: CreationReason, *, created: int, failed: int) -> None:
        """Count creations of pods."""
        _add(self._pods_created, created, reason, "succeeded")
        _add(self._pods_created, failed, reason, "failed")

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Count a finished pod that has, or has no longer, the tracking finalizer."""
        before, after = _is_tracked(old), _is_tracked(new)
        if before != after:
            self._tracked.labels("add" if after else "delete").inc()

    def external_job_added(self, controller_name: str) -> None:
        """Count a Job of another controller."""
        self._external.labels(controller_name).inc()

    def expired_job_deleted(self, *, delay: float) -> None:
        """Observe the deletion of a Job *delay* seconds after its expiry."""
        self._deletion_delay.observe(max(delay, 0.0))


def _mode(job: Job) -> str:
    return CompletionMode.INDEXED if job.is_indexed else CompletionMode.NON_INDEXED


def _total(text: str | None, job: Job) -> int:
    return IndexSet.parse(text, job.completions).total if text else 0


def _is_tracked(pod: Pod | None) -> bool:
    if pod is None or pod.status.phase not in _FINISHED:
        return False
    return TRACKING_FINALIZER in pod.metadata.finalizers


def _add(counter: CounterMetric, number: int, *labels: str) -> None:
    if number > 0:
        counter.labels(*labels).inc(number)
