"""State that a new leader restores from a job's status.

The previous leader kept in memory which pods it had deleted. From the status the new leader can
mostly distinguish them from evicted pods, and find pods that were deleted while no controller ran.
Two kinds of terminating pods count as evicted although the controller deleted them: those of a
partial restart, if the job runs again or another target was restarted since; and those beyond the
replicas of a task that was scaled up again since. A mark on each pod before its deletion would cost
a write per pod, for what takes two changes and a crash within one grace period.
"""

from collections import Counter
from collections.abc import Iterator

from ...model.job import Job, JobEvent, JobPhase, TaskSpec
from ...model.job_podgroup import partition_of
from ...model.job_reasons import Reason
from ..pods import name_of
from ..tracker.pod_info import LifecycleEvent, PodInfo
from ..tracker.pod_tracker import PodTracker
from .restarts import target_from_status


def restore(job: Job, tracker: PodTracker, *, now: float) -> None:
    """Restore what *tracker* would hold if this controller had watched the job all the time.

    *now* is the time on the monotonic clock. Must be called before the first decision.
    """
    replicas = {task.name: task.replicas for task in job.spec.tasks}
    tracker.mark_deleting(
        [
            pod.uid
            for pod in tracker.terminating()
            if pod.index >= replicas.get(pod.task, 0)
            or pod.rejection
            or _was_deleting(job, pod, JobPhase.RESTARTING, JobPhase.PENDING)
        ]
    )
    for event in _missed_deletions(job, tracker, now):
        tracker.add_event(event)


def errors_from_status(job: Job) -> dict[Reason, str]:
    """Return the persistent error that the status of *job* names, until an attempt succeeds."""
    state = job.status.state
    persistent = (Reason.PVC_ERROR, Reason.PLUGIN_ERROR, Reason.FAILED_CREATE)
    return {reason: state.message for reason in persistent if reason == state.reason}


def _missed_deletions(job: Job, tracker: PodTracker, now: float) -> Iterator[LifecycleEvent]:
    """Yield evictions that no controller observed: the status counts more pods than exist.

    One event per task is enough to evaluate its policies.
    """
    deleting = _deleting_counts(job, tracker) if job.status.terminating else Counter[str]()
    for task in job.spec.tasks:
        recorded = job.status.task_status_count.get(task.name)
        if recorded is None:
            continue
        missing = [_missing_pod(job, task, index) for index in tracker.missing(task.name)]
        others = [pod for pod in missing if not _was_deleting(job, pod, JobPhase.RESTARTING)]
        # Deleted pods are counted as terminating; if there are none, they may be counted by phase.
        expected = 0 if job.status.terminating else len(missing) - len(others)
        existing = tracker.index_count(task.name) - deleting[task.name]
        number = min(sum(recorded.phase.values()), task.replicas) - existing
        if others and number > expected:
            yield LifecycleEvent.from_pod(JobEvent.POD_EVICTED, others[0], occurred_at=now)


def _deleting_counts(job: Job, tracker: PodTracker) -> Counter[str]:
    """Return the number of existing pods that a partial restart deletes, by task."""
    pods = (*tracker.active(), *tracker.finished(), *tracker.terminating())
    return Counter(pod.task for pod in pods if _was_deleting(job, pod, JobPhase.RESTARTING))


def _missing_pod(job: Job, task: TaskSpec, index: int) -> PodInfo:
    """Return a pod that no controller has observed."""
    return PodInfo(
        uid="",
        name=name_of(job, task.name, index),
        owner=job.metadata.uid,
        task=task.name,
        index=index,
        version=job.status.version,
        partition=partition_of(task, index),
    )


def _was_deleting(job: Job, pod: PodInfo, *phases: JobPhase) -> bool:
    """Whether the partial restart that the status names deletes *pod*.

    Only in *phases*, and only for a pod that was created before the restart.
    """
    target = target_from_status(job.status)
    if job.status.state.phase not in phases or target.is_whole_job:
        return False
    return target.matches(pod) and pod.retries < job.status.retry_count
