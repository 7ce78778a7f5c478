"""The summary of a job of any kind: what lists and streams contain. Pure.

The phases are those of Volcano's jobs, and Suspended. Kinds without a phase have the one that
follows from their conditions:

* batch/v1: Completed (condition Complete), Failed (Failed), Completing and Terminating (their pods
  end: SuccessCriteriaMet and FailureTarget), Suspended, Running (a pod is ready or has ended),
  else Pending;
* training jobs: Completed (condition Succeeded), Failed, Suspended, Restarting, Running, else
  Pending.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from ...model.job import FINAL_PHASES, Job, JobPhase
from ...model.meta import Condition, ObjectMeta
from ...model.names import DEFAULT_QUEUE, PODGROUP_QUEUE, SCHEDULER_NAME, SUBMITTED_BY
from ...model.podgroup import min_member
from ...model.training.types import ConditionType, JobCondition
from .views import CachedBatchJob, CachedJob, CachedTemplate, CachedTrainingJob

BATCH_TASK = "pods"
"""Name of the only task of a Job of batch/v1."""


class Phase(StrEnum):
    """Phase of a job of any kind."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class JobKindName(StrEnum):
    """Kind of a job, as in paths: the plural of its resource."""

    JOBS = "jobs"
    BATCHJOBS = "batchjobs"
    PYTORCHJOBS = "pytorchjobs"
    TFJOBS = "tfjobs"
    MPIJOBS = "mpijobs"
    XGBOOSTJOBS = "xgboostjobs"
    PADDLEJOBS = "paddlejobs"
    JAXJOBS = "jaxjobs"


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a job: its pods by phase."""

    name: str
    replicas: int
    min_available: int | None
    phases: dict[str, int]


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a job; its fields are those of :class:`~..schemas.jobs.JobOut`."""

    namespace: str
    name: str
    uid: str
    kind: JobKindName
    resource_version: str
    queue: str
    phase: Phase
    reason: str
    message: str
    priority_class_name: str
    suspend: bool
    user: str
    labels: dict[str, str]
    min_available: int
    replicas: int
    completions: int | None
    pending: int
    running: int
    succeeded: int
    failed: int
    terminating: int
    unknown: int
    retry_count: int
    version: int
    tasks: tuple[TaskSummary, ...]
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    running_duration: str | None
    deleting: bool


def is_final(phase: Phase) -> bool:
    """Return whether a job never leaves *phase*."""
    return phase in _FINAL


def summarize_volcano(job: CachedJob | Job) -> JobSummary:
    """Return the summary of a Volcano job."""
    meta, spec, status = job.metadata, job.spec, job.status
    counts = status.task_status_count
    entered = {each.status: each.last_transition_time for each in status.conditions}
    phase = _volcano_phase(status.state.phase)
    return JobSummary(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        kind=JobKindName.JOBS,
        resource_version=meta.resource_version,
        queue=spec.queue,
        phase=phase,
        reason=status.state.reason,
        message=status.state.message,
        priority_class_name=spec.priority_class_name,
        suspend=spec.suspend,
        user=_user(meta),
        labels=meta.labels,
        min_available=spec.min_available,
        replicas=sum(task.replicas for task in spec.tasks),
        completions=None,
        pending=status.pending,
        running=status.running,
        succeeded=status.succeeded,
        failed=status.failed,
        terminating=status.terminating,
        unknown=status.unknown,
        retry_count=status.retry_count,
        version=status.version,
        tasks=tuple(
            TaskSummary(
                name=task.name,
                replicas=task.replicas,
                min_available=task.min_available,
                phases=counts[task.name].phase if task.name in counts else {},
            )
            for task in spec.tasks
        ),
        created_at=meta.creation_timestamp,
        started_at=entered.get(JobPhase.RUNNING),
        finished_at=status.state.last_transition_time if phase in _FINAL else None,
        running_duration=status.running_duration,
        deleting=meta.deletion_timestamp is not None,
    )


def summarize_batch(job: CachedBatchJob) -> JobSummary:
    """Return the summary of a Job of batch/v1."""
    meta, spec, status = job.metadata, job.spec, job.status
    phase, condition = _batch_phase(job)
    ready = min(status.ready or 0, status.active)
    terminating = status.terminating or 0
    phases = _without_zeros(
        Pending=status.active - ready,
        Running=ready,
        Succeeded=status.succeeded,
        Failed=status.failed,
    )
    is_final = phase in _FINAL
    return JobSummary(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        kind=JobKindName.BATCHJOBS,
        resource_version=meta.resource_version,
        queue=_queue_of((spec.template,)),
        phase=phase,
        reason=condition.reason,
        message=condition.message,
        priority_class_name=spec.template.spec.priority_class_name,
        suspend=spec.suspend,
        user=_user(meta),
        labels=meta.labels,
        min_available=min_member(meta.annotations),
        replicas=spec.parallelism,
        completions=spec.completions,
        pending=status.active - ready,
        running=ready,
        succeeded=status.succeeded,
        failed=status.failed,
        terminating=terminating,
        unknown=0,
        retry_count=0,
        version=0,
        tasks=(
            TaskSummary(
                name=BATCH_TASK, replicas=spec.parallelism, min_available=None, phases=phases
            ),
        ),
        created_at=meta.creation_timestamp,
        started_at=status.start_time,
        finished_at=(status.completion_time or condition.last_transition_time)
        if is_final
        else None,
        running_duration=None,
        deleting=meta.deletion_timestamp is not None,
    )


def summarize_training(job: CachedTrainingJob, kind: JobKindName) -> JobSummary:
    """Return the summary of a training job."""
    meta, status = job.metadata, job.status
    policy, replica_specs = job.spec.run_policy, job.spec.replica_specs
    gang = policy.scheduling_policy
    phase, condition = _training_phase(job)
    is_final = phase in _FINAL
    tasks = _training_tasks(job, has_pending=phase not in {*_FINAL, Phase.SUSPENDED})
    replicas = sum(task.replicas for task in tasks)
    templates = [each.template for each in replica_specs.values()]
    classes = (each.spec.priority_class_name for each in templates)
    minimum = gang.min_available if gang is not None else None
    return JobSummary(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        kind=kind,
        resource_version=meta.resource_version,
        queue=(gang.queue if gang is not None else "") or _queue_of(templates),
        phase=phase,
        reason=condition.reason,
        message=condition.message,
        priority_class_name=(gang.priority_class if gang is not None else "")
        or next(filter(None, classes), ""),
        suspend=policy.suspend,
        user=_user(meta),
        labels=meta.labels,
        min_available=replicas if minimum is None else minimum,
        replicas=replicas,
        completions=None,
        pending=sum(task.phases.get("Pending", 0) for task in tasks),
        running=sum(each.active for each in status.replica_statuses.values()),
        succeeded=sum(each.succeeded for each in status.replica_statuses.values()),
        failed=sum(each.failed for each in status.replica_statuses.values()),
        terminating=0,
        unknown=0,
        retry_count=0,
        version=0,
        tasks=tasks,
        created_at=meta.creation_timestamp,
        started_at=status.start_time,
        finished_at=(status.completion_time or condition.last_transition_time)
        if is_final
        else None,
        running_duration=None,
        deleting=meta.deletion_timestamp is not None,
    )


_FINAL = frozenset(Phase(each.value) for each in FINAL_PHASES)
_VOLCANO_PHASES = {each.value: Phase(each.value) for each in JobPhase}
_BATCH_PHASES = {
    "Complete": Phase.COMPLETED,
    "Failed": Phase.FAILED,
    "SuccessCriteriaMet": Phase.COMPLETING,
    "FailureTarget": Phase.TERMINATING,
    "Suspended": Phase.SUSPENDED,
}
"""Phase by condition that is True; the first one decides."""
_TRAINING_PHASES = {
    ConditionType.FAILED: Phase.FAILED,
    ConditionType.SUCCEEDED: Phase.COMPLETED,
    ConditionType.SUSPENDED: Phase.SUSPENDED,
    ConditionType.RESTARTING: Phase.RESTARTING,
    ConditionType.RUNNING: Phase.RUNNING,
    ConditionType.CREATED: Phase.PENDING,
}
"""The same of training jobs."""


def _volcano_phase(text: str) -> Phase:
    return _VOLCANO_PHASES.get(text, Phase.UNKNOWN) if text else Phase.PENDING


def _batch_phase(job: CachedBatchJob) -> tuple[Phase, Condition]:
    """Return the phase, and the condition that it follows from."""
    status = job.status
    true = {each.type: each for each in status.conditions if each.status == "True"}
    for name, phase in _BATCH_PHASES.items():
        if name in true:
            return phase, true[name]
    if job.spec.suspend and not status.active:
        return Phase.SUSPENDED, Condition()
    has_run = status.ready or status.succeeded or status.failed
    return (Phase.RUNNING if has_run else Phase.PENDING), Condition()


def _training_phase(job: CachedTrainingJob) -> tuple[Phase, JobCondition]:
    true = {each.type: each for each in job.status.conditions if each.status == "True"}
    for name, phase in _TRAINING_PHASES.items():
        if name in true:
            return phase, true[name]
    return Phase.PENDING, JobCondition()


def _training_tasks(job: CachedTrainingJob, *, has_pending: bool) -> tuple[TaskSummary, ...]:
    tasks = []
    for name, spec in job.spec.replica_specs.items():
        replicas = 1 if spec.replicas is None else spec.replicas
        status = job.status.replica_statuses.get(name)
        active, succeeded, failed = (
            (status.active, status.succeeded, status.failed) if status is not None else (0, 0, 0)
        )
        pending = max(0, replicas - active - succeeded - failed) if has_pending else 0
        phases = _without_zeros(Pending=pending, Running=active, Succeeded=succeeded, Failed=failed)
        tasks.append(TaskSummary(name=name, replicas=replicas, min_available=None, phases=phases))
    return tuple(tasks)


def _queue_of(templates: Iterable[CachedTemplate]) -> str:
    """Return the queue of pods that no job of Volcano's owns; empty for another scheduler's."""
    scheduled = [each for each in templates if each.spec.scheduler_name == SCHEDULER_NAME]
    if not scheduled:
        return ""
    named = (each.metadata.annotations.get(PODGROUP_QUEUE, "") for each in scheduled)
    return next(filter(None, named), DEFAULT_QUEUE)


def _user(meta: ObjectMeta) -> str:
    return meta.annotations.get(SUBMITTED_BY, "")


def _without_zeros(**counts: int) -> dict[str, int]:
    return {phase: count for phase, count in counts.items() if count}
