"""What a controller that has just taken over reads out of a job's status.

Its forerunner kept in memory which pods it had asked to go. The status mostly says enough to tell
them from those that somebody evicts, and which pods went while nobody looked. Two kinds of pods
that are still leaving by then count as evicted all the same: those of a restarted part of a job
that runs again already, or of which another part was restarted since; and those beyond the replicas
of a task that has been scaled up again meanwhile. To mark each pod before its deletion would cost a
write a pod, for what takes two changes and a crash within one grace period.
"""

from collections import Counter
from collections.abc import Iterator

from ..model.job import Job, JobEvent, JobPhase, TaskSpec
from .effects import Reason
from .pod_tracker import LifecycleEvent, PodInfo, PodTracker
from .pods import name_of, partition_of
from .restarts import RestartTarget


def restore(job: Job, tracker: PodTracker, *, now: float) -> None:
    """Give *ledger* what it would know if the job had been watched all the time.

    *now* is the reading of the monotonic clock. To be called before the first decision.
    """
    replicas = {task.name: task.replicas for task in job.spec.tasks}
    tracker.mark_deleting(
        [
            pod.uid
            for pod in tracker.terminating()
            if pod.index >= replicas.get(pod.task, 0)
            or _was_deleting(job, pod, JobPhase.RESTARTING, JobPhase.PENDING)
        ]
    )
    for happening in _missed_deletions(job, tracker, now):
        tracker.add_event(happening)


def errors_from_status(job: Job) -> dict[Reason, str]:
    """What could not be done for *job* when it was tried last, as far as its status tells.

    Each is struck out as soon as what it tells of is done.
    """
    state = job.status.state
    tried = (Reason.PVC_ERROR, Reason.PLUGIN_ERROR, Reason.FAILED_CREATE)
    return {reason: state.message for reason in tried if reason == state.reason}


def _missed_deletions(job: Job, tracker: PodTracker, now: float) -> Iterator[LifecycleEvent]:
    """Pods that went while nobody looked: the status counts more of a task than there are.

    One of a task is enough to ask its policies.
    """
    letting_go = _deleting_counts(job, tracker) if job.status.terminating else Counter[str]()
    for task in job.spec.tasks:
        recorded = job.status.task_status_count.get(task.name)
        if recorded is None:
            continue
        missing = [_missing_pod(job, task, index) for index in tracker.missing(task.name)]
        others = [pod for pod in missing if not _was_deleting(job, pod, JobPhase.RESTARTING)]
        # Those that are let go are counted as terminating; if none is, perhaps by their phases.
        spared = 0 if job.status.terminating else len(missing) - len(others)
        standing = tracker.index_count(task.name) - letting_go[task.name]
        number = min(sum(recorded.phase.values()), task.replicas) - standing
        if others and number > spared:
            yield LifecycleEvent.from_pod(JobEvent.POD_EVICTED, others[0], occurred_at=now)


def _deleting_counts(job: Job, tracker: PodTracker) -> Counter[str]:
    """How many pods are there, by task, that a restart of a part of the job lets go."""
    pods = (*tracker.active(), *tracker.finished(), *tracker.terminating())
    return Counter(pod.task for pod in pods if _was_deleting(job, pod, JobPhase.RESTARTING))


def _missing_pod(job: Job, task: TaskSpec, index: int) -> PodInfo:
    """A pod that nobody has seen."""
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
    """Whether the status says that *pod* was asked to go, by a restart of a part of the job.

    *phases* are those in which it is believed; of what was made after the restart it says nothing.
    """
    state = job.status.state
    target = RestartTarget.parse(state)
    if state.phase not in phases or target.is_whole_job:
        return False
    return target.matches(pod) and pod.retries < job.status.retry_count
