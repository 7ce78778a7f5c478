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
from .pod_tracker import Entry, Happening, Ledger
from .pods import name_of, partition_of
from .restarts import Target


def catch_up(job: Job, ledger: Ledger, *, now: float) -> None:
    """Give *ledger* what it would know if the job had been watched all the time.

    *now* is the reading of the monotonic clock. To be called before the first decision.
    """
    replicas = {task.name: task.replicas for task in job.spec.tasks}
    ledger.doom(
        [
            pod.uid
            for pod in ledger.leaving()
            if pod.index >= replicas.get(pod.task, 0)
            or _let_go(job, pod, JobPhase.RESTARTING, JobPhase.PENDING)
        ]
    )
    for happening in _lost(job, ledger, now):
        ledger.note(happening)


def obstacles_of(job: Job) -> dict[Reason, str]:
    """What could not be done for *job* when it was tried last, as far as its status tells.

    Each is struck out as soon as what it tells of is done.
    """
    state = job.status.state
    tried = (Reason.CLAIM_ERROR, Reason.PLUGIN_ERROR, Reason.FAILED_CREATE)
    return {reason: state.message for reason in tried if reason == state.reason}


def _lost(job: Job, ledger: Ledger, now: float) -> Iterator[Happening]:
    """Pods that went while nobody looked: the status counts more of a task than there are.

    One of a task is enough to ask its policies.
    """
    letting_go = _letting_go(job, ledger) if job.status.terminating else Counter[str]()
    for task in job.spec.tasks:
        recorded = job.status.task_status_count.get(task.name)
        if recorded is None:
            continue
        missing = [_gone(job, task, index) for index in ledger.missing(task.name)]
        others = [pod for pod in missing if not _let_go(job, pod, JobPhase.RESTARTING)]
        # Those that are let go are counted as terminating; if none is, perhaps by their phases.
        spared = 0 if job.status.terminating else len(missing) - len(others)
        standing = ledger.present(task.name) - letting_go[task.name]
        number = min(sum(recorded.phase.values()), task.replicas) - standing
        if others and number > spared:
            yield Happening.of(JobEvent.POD_EVICTED, others[0], since=now)


def _letting_go(job: Job, ledger: Ledger) -> Counter[str]:
    """How many pods are there, by task, that a restart of a part of the job lets go."""
    pods = (*ledger.live(), *ledger.done(), *ledger.leaving())
    return Counter(pod.task for pod in pods if _let_go(job, pod, JobPhase.RESTARTING))


def _gone(job: Job, task: TaskSpec, index: int) -> Entry:
    """A pod that nobody has seen."""
    return Entry(
        uid="",
        name=name_of(job, task.name, index),
        owner=job.metadata.uid,
        task=task.name,
        index=index,
        version=job.status.version,
        partition=partition_of(task, index),
    )


def _let_go(job: Job, pod: Entry, *phases: JobPhase) -> bool:
    """Whether the status says that *pod* was asked to go, by a restart of a part of the job.

    *phases* are those in which it is believed; of what was made after the restart it says nothing.
    """
    state = job.status.state
    target = Target.read(state)
    if state.phase not in phases or target.everything:
        return False
    return target.hits(pod) and pod.retries < job.status.retry_count
