"""Why a job waits: from its status, its PodGroup and its queue. Pure.

It reports what is known, and by which component. Whether a scheduler runs is not known: of a
PodGroup that no scheduler has reported on, only the age is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from ...model import times
from ...model.described_podgroup import podgroup_of
from ...model.job_reasons import Reason
from ...model.meta import ObjectMeta
from ...model.names import SCHEDULER_NAME, SUBMISSION, WHY
from ...model.podgroup import PodGroup, PodGroupCondition, PodGroupPhase, PodGroupStatus
from ...model.queue import Queue, QueueState
from ...wire.jobs import Explanation, JobSummary, Phase, WaitReason
from .advice import HELD, NO_ADVICE, Advice, Observed, advise, is_held
from .explanations import decode_explanation
from .pod_views import JobPod
from .summaries import is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Whether and why a job waits."""

    waiting: bool
    reason: WaitReason
    summary: str
    advice: Advice = NO_ADVICE
    podgroup: PodGroup | None = None
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """What is known of a job."""

    job: JobSummary
    podgroups: tuple[PodGroup, ...]
    queue: Queue | None
    """The queue of the job, if it exists."""
    queues_are_known: bool = True
    """Whether it is known which queues exist: the caller may have no right to list them."""

    now: datetime
    failure: str = ""
    """Which pod failed and why, if the message of the failed job does not name it."""
    pods: Sequence[JobPod] = ()
    """Pods of a job that starts, runs or has failed."""
    stopped_by: str = ""
    """Who has terminated or suspended the job through the REST API, if anyone has."""


_BLOCKING = frozenset(
    {
        Reason.WAITING.value,
        Reason.PVC_ERROR.value,
        Reason.PLUGIN_ERROR.value,
        Reason.PODGROUP_ERROR.value,
        Reason.FAILED_CREATE.value,
        Reason.GANG_UNSATISFIABLE.value,
    }
)
_STOPPING = frozenset({Phase.ABORTING, Phase.COMPLETING, Phase.TERMINATING})
_UNFINISHED = frozenset({PodGroupPhase.PENDING.value, ""})


def explain_wait(view: WaitView) -> Wait:
    """Return whether and why the job waits; the first reason that applies."""
    found = _explain(view)
    seen = Observed(
        job=view.job,
        reason=found.reason,
        summary=found.summary,
        explanation=found.explanation,
        pods=view.pods,
        now=view.now,
    )
    return replace(found, advice=advise(seen))


def _explain(view: WaitView) -> Wait:
    job, podgroup = view.job, newest(view.podgroups)
    found = _by_lifecycle(view)
    if found is not None:
        return Wait(waiting=found[0], reason=found[1], summary=found[2], podgroup=podgroup)
    explanation = None
    if podgroup is not None:
        explanation = decode_explanation(podgroup.metadata.annotations.get(WHY, ""))
    if explanation is not None:
        return Wait(
            waiting=True,
            reason=WaitReason.UNSCHEDULABLE,
            summary=explanation.message or explanation.reason,
            podgroup=podgroup,
            explanation=explanation,
        )
    if job.phase is Phase.RUNNING:
        reason, text, waiting = WaitReason.NOT_WAITING, _running(job), False
    else:
        reason, text = _by_state(view, podgroup)
        waiting = True
    return Wait(waiting=waiting, reason=reason, summary=text, podgroup=podgroup)


def newest(podgroups: Iterable[PodGroup]) -> PodGroup | None:
    """Return the PodGroup that was created last."""

    def order(podgroup: PodGroup) -> tuple[str, str]:
        return podgroup.metadata.creation_timestamp or "", podgroup.metadata.name

    return max(podgroups, key=order, default=None)


def described_podgroup(pods: Iterable[JobPod]) -> PodGroup | None:
    """Return the PodGroup that the newest of *pods* describes instead of having one, or what is
    known of the one of Kubernetes itself that it names.

    Its condition and its explanation are those of the pod while that waits for a node.
    """
    unfinished = [pod for pod in pods if not pod.is_finished]
    pod = max(unfinished, key=lambda pod: pod.metadata.creation_timestamp or "", default=None)
    if pod is None:
        return None
    if pod.spec.node_name:
        return _podgroup_of(pod, PodGroupStatus(phase=PodGroupPhase.RUNNING))
    conditions = tuple(
        PodGroupCondition(
            type="Unschedulable",
            status="True",
            reason=each.reason,
            message=each.message,
            last_transition_time=each.last_transition_time,
        )
        for each in pod.status.conditions
        if (each.type, each.status) == ("PodScheduled", "False")
    )
    found = _podgroup_of(pod, PodGroupStatus(conditions=conditions))
    why = pod.metadata.annotations.get(WHY)
    if found is None or not why:
        return found
    annotations = {**found.metadata.annotations, WHY: why}
    metadata = msgspec.structs.replace(found.metadata, annotations=annotations)
    return msgspec.structs.replace(found, metadata=metadata)


def _podgroup_of(pod: JobPod, status: PodGroupStatus) -> PodGroup | None:
    group = pod.spec.scheduling_group
    if group is None:
        return podgroup_of(pod.metadata, status)
    meta = ObjectMeta(name=group.pod_group_name, namespace=pod.metadata.namespace)
    return PodGroup(metadata=meta, status=status)


def _by_lifecycle(view: WaitView) -> tuple[bool, WaitReason, str] | None:
    """Return what follows from the phase of the job alone."""
    job = view.job
    if is_final(job.phase):
        if view.stopped_by:
            return False, WaitReason.FINISHED, f"the job was terminated by {view.stopped_by}"
        known = view.failure if view.failure not in job.message else ""
        text = ": ".join(filter(None, (str(job.phase), job.message, known)))
        return False, WaitReason.FINISHED, f"the job has finished: {text}"
    if job.deleting:
        return False, WaitReason.DELETING, "the job is being deleted"
    if job.phase in _STOPPING:
        text = f"the job is {job.phase}: {job.terminating} of its pods are being terminated"
        return False, WaitReason.STOPPING, text
    if job.suspend and SUBMISSION in job.labels:
        text = "its submission is not complete: its working directory is not stored yet"
        return True, WaitReason.SUSPENDED, text
    if job.suspend:
        text = "the job is suspended by its spec; it starts once suspend is false"
        return True, WaitReason.SUSPENDED, HELD if is_held(job) else text
    if job.phase is Phase.SUSPENDED:
        return True, WaitReason.SUSPENDED, "the job is suspended, and about to be resumed"
    if job.phase is Phase.ABORTED:
        stopped = f"was suspended by {view.stopped_by}" if view.stopped_by else "is aborted"
        text = f"the job {stopped}; it starts again once it is resumed"
        return True, WaitReason.ABORTED, HELD if is_held(job) else text
    if job.phase is Phase.RESTARTING:
        text = f"the job restarts: {job.terminating} of its pods are still being terminated"
        return True, WaitReason.RESTARTING, text
    return None


def _running(job: JobSummary) -> str:
    text = f"the job runs: {job.running} of {job.replicas} pods"
    return f"{text}; {job.pending} are pending" if job.pending else text


def _by_state(view: WaitView, podgroup: PodGroup | None) -> tuple[WaitReason, str]:
    """Return why a job waits for which no scheduler has written an explanation."""
    job = view.job
    if podgroup is not None and (condition := _unschedulable(podgroup)) is not None:
        text = condition.message or condition.reason
        return WaitReason.UNSCHEDULABLE, text or "the scheduler reports no reason"
    is_admitted = podgroup is not None and podgroup.status.phase not in _UNFINISHED
    if job.reason in _BLOCKING and job.message:
        return WaitReason.BLOCKED, job.message
    if not is_admitted and job.queue and view.queues_are_known:
        if view.queue is None:
            return WaitReason.QUEUE_NOT_FOUND, f"queue {job.queue!r} does not exist"
        state = view.queue.status.state or QueueState.OPEN
        if state != QueueState.OPEN:
            return WaitReason.QUEUE_NOT_OPEN, f"queue {job.queue!r} is {state}, not Open"
    if podgroup is None:
        return _without_podgroup(job)
    if not is_admitted:
        return WaitReason.NOT_REPORTED, _not_reported(podgroup, job, view.now)
    return WaitReason.STARTING, _starting(job, podgroup)


def _without_podgroup(job: JobSummary) -> tuple[WaitReason, str]:
    if job.reason == Reason.PODGROUP_PENDING and job.message:
        return WaitReason.UNSCHEDULABLE, job.message  # of its pod, which could not be read
    if job.queue:
        return WaitReason.NO_PODGROUP, "the PodGroup of the job does not exist yet"
    text = "the pods of the job are scheduled one by one: their conditions and events report why"
    return WaitReason.NO_GANG, f"{text} they wait"


def _not_reported(podgroup: PodGroup, job: JobSummary, now: datetime) -> str:
    text = f"the PodGroup waits to be admitted to queue {job.queue!r}"
    created = podgroup.metadata.creation_timestamp
    age = f" since {int((now - times.parse(created)).total_seconds())} s" if created else ""
    return f"{text}{age}, and no scheduler ({SCHEDULER_NAME}) has reported why"


def _starting(job: JobSummary, podgroup: PodGroup) -> str:
    exist = job.pending + job.running + job.succeeded + job.failed
    return (
        f"the PodGroup is {podgroup.status.phase}: {exist} of {job.replicas} pods exist, "
        f"{job.running} run"
    )


def _unschedulable(podgroup: PodGroup) -> PodGroupCondition | None:
    """Return the newest condition that is true, if its type is Unschedulable."""
    true = [each for each in podgroup.status.conditions if each.status == "True"]
    found = max(true, key=lambda each: each.last_transition_time or "", default=None)
    return found if found is not None and found.type == "Unschedulable" else None
