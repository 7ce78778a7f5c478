"""The decision of what a training job needs: a pure function from a view to effects.

A decision follows from the state alone, so that one that was interrupted anywhere is completed by
the next. What the state would not show after an interruption is in the restart record, which is
written first.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from ..machinery.reconcile.controller import RequeueAfter
from ..machinery.reconcile.events import Event
from ..model.lost_pods import lost_at, replaces_nodes
from ..model.meta import HasMeta
from ..model.pod import PodPhase
from ..model.recorded import seconds_to_wait
from ..model.run_times import deadline_of
from ..model.training.types import CleanPodPolicy, ConditionType
from . import gangs, restarts
from .core_types import Pod
from .dependents import changes
from .effects import (
    Announcement,
    CreateObject,
    CreatePodGroup,
    CreatePods,
    CreateServices,
    DeleteJob,
    DeleteObject,
    DeletePodGroup,
    DeletePods,
    DeleteServices,
    Effect,
    Reason,
    RemoveLostPods,
    ReportConflict,
    ReportErrors,
    UpdateObject,
    Write,
    WriteObjects,
    WriteRecord,
    WriteStatus,
)
from .frameworks.base import (
    Evaluation,
    Failed,
    Observation,
    Restarting,
    Running,
    Succeeded,
)
from .pods import sets_restart_policy
from .replica_groups import ReplicaGroup, count, first_failure, replica_groups
from .replica_pods import container_restarts
from .restarts import RestartRecord
from .status import StatusDraft
from .view import TrainingView

T = TypeVar("T", bound=HasMeta)

GANG_RECHECK = 10.0
"""Seconds after which a job that waits for its PodGroup is reconciled again."""

REJECTION_DELAY = 5
"""Age in seconds at which a pod that a kubelet has rejected is deleted and created again."""

OTHER_SCHEDULER = (
    "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
)
RESTART_POLICY_IGNORED = (
    "Restart policy in pod template will be overwritten by restart policy in replica spec"
)


def decide(view: TrainingView) -> list[Effect]:
    """Return what the job of *view* needs.

    Raises:
        QuantityError: a quantity in a template of a gang is malformed.
        msgspec.MsgspecError: a template is malformed.
    """
    draft = StatusDraft(view.framework, view.job, view.now)
    draft.created()
    if draft.is_finished:
        effects = _finished(view, draft)
    elif view.job.spec.run_policy.suspend:
        effects = _suspended(view, draft)
    else:
        if draft.is_true(ConditionType.SUSPENDED):
            draft.resumed()
        effects = _unfinished(view, draft)
    return [*effects, ReportErrors(view.claim_errors)] if view.claim_errors else effects


def _effects(
    view: TrainingView,
    draft: StatusDraft,
    writes: Sequence[Write] = (),
    *,
    requeue_after: float | None = None,
    needs_writes: bool = False,
) -> list[Effect]:
    """Return *writes*, and then the write of the status if it has changed."""
    effects: list[Effect] = []
    if requeue_after is not None:
        effects.append(RequeueAfter(requeue_after))
    if writes:
        effects.append(WriteObjects(tuple(writes)))
    status = draft.status()
    if status != view.job.status:
        effects.append(WriteStatus(status, tuple(draft.announcements), needs_writes))
    return effects


# A job that has ended, or is suspended.


def _finished(view: TrainingView, draft: StatusDraft) -> list[Effect]:
    policy = view.job.spec.run_policy
    writes = [*_clean_up(view, policy.clean_pod_policy), *_podgroup_deletion(view)]
    if draft.is_true(ConditionType.SUCCEEDED):
        draft.no_active(succeeded=True)
    draft.completion_time = draft.completion_time or draft.now
    left = restarts.remaining(draft.completion_time, policy.ttl_seconds_after_finished, view.now)
    if left is not None and view.ttl_waits_for_history:
        left = seconds_to_wait(view.job.metadata.annotations, draft.completion_time, left)
    if policy.suspend:
        left = None
    if left is not None and left <= 0:
        return _effects(view, draft, [*writes, DeleteJob()])
    return _effects(view, draft, writes, requeue_after=left)


def _suspended(view: TrainingView, draft: StatusDraft) -> list[Effect]:
    writes = [*_deletions(view), *_podgroup_deletion(view), *_object_deletions(view)]
    draft.no_active()
    draft.suspended()
    return _effects(view, draft, writes)


def _clean_up(view: TrainingView, policy: str | None) -> Iterator[Write]:
    """Yield what a cleanPodPolicy deletes of a finished job. A Service stays if its pod does."""
    if policy == CleanPodPolicy.ALL:
        yield from _deletions(view)
    elif policy == CleanPodPolicy.RUNNING:
        active = (PodPhase.RUNNING, PodPhase.PENDING)
        yield from _deletions(
            view, {pod.metadata.name for pod in view.pods if pod.phase not in active}
        )


def _deletions(view: TrainingView, kept: Collection[str] = ()) -> Iterator[Write]:
    """Yield the deletions of all pods and Services except those whose names are in *kept*."""
    if pods := tuple(_not_terminating(view.pods, kept)):
        yield DeletePods(pods)
    if services := tuple(_not_terminating(view.services, kept)):
        yield DeleteServices(services)


def _not_terminating(objects: Iterable[T], kept: Collection[str] = ()) -> Iterator[T]:
    for each in objects:
        if each.metadata.deletion_timestamp is None and each.metadata.name not in kept:
            yield each


def _podgroup_deletion(view: TrainingView) -> Iterator[Write]:
    gang, group = view.gang, view.podgroup
    if gang is None or group is None or group.metadata.deletion_timestamp:
        return
    if view.controls(group.metadata):
        yield DeletePodGroup(gang.resource, group.metadata)


# A job that runs or is to run.


def _unfinished(view: TrainingView, draft: StatusDraft) -> list[Effect]:
    if view.size_error:
        return _fail(view, draft, view.size_error)
    meta = view.job.metadata
    groups = replica_groups(view, draft.start_time)
    known = restarts.parse(meta.annotations, meta.uid)
    failed = [pod.metadata.uid for group in groups for pod in group.restarting]
    # A deleted pod may show up again if its watch is late for minutes; it must not count twice.
    existing = view.observed_pods | {pod.metadata.uid for pod in view.pods}
    record = known.add(failed, existing)
    if message := _exceeded_limit(view, draft, groups, record):
        left = _deadline(view, draft)
        if left is None or left > 0:  # pods that are deleted no longer show their restarts
            record = msgspec.structs.replace(record, backoff_limit_exceeded=True)
        return [WriteRecord(record)] if record != known else _fail(view, draft, message)
    gang_writes, delayed = _gang_writes(view)
    if delayed:
        left = _deadline(view, draft)
        soon = GANG_RECHECK if left is None else min(left, GANG_RECHECK)
        return _effects(view, draft, gang_writes, requeue_after=soon)
    draft.start_time = draft.start_time or draft.now
    _evaluate(view, draft, groups)
    if draft.is_finished:
        return _effects(view, draft)
    if record != known:
        return [WriteRecord(record, tuple(_restart_announcements(view, groups, known)))]
    writes = [*gang_writes, *_writes(view, groups)]
    return _effects(view, draft, writes, requeue_after=_requeue_after(view, draft, groups))


def _requeue_after(
    view: TrainingView, draft: StatusDraft, groups: Sequence[ReplicaGroup]
) -> float | None:
    """Return the seconds until the job's deadline, or until a rejected pod is replaced."""
    delays = [_replacement_delay(view, pod) for group in groups for pod in group.rejected]
    delays += [(at - view.now).total_seconds() for _, at in _lost_pods(view)]
    deadline = _deadline(view, draft)
    times_left = [*(each for each in delays if each > 0), *([] if deadline is None else [deadline])]
    return min(times_left, default=None)


def _deadline(view: TrainingView, draft: StatusDraft) -> float | None:
    """Return the seconds until the job's deadline, if it has one and was started."""
    policy, annotations = view.job.spec.run_policy, view.job.metadata.annotations
    seconds = deadline_of(policy.active_deadline_seconds, annotations)
    return restarts.remaining(draft.start_time, seconds, view.now)


def _exceeded_limit(
    view: TrainingView, draft: StatusDraft, groups: Sequence[ReplicaGroup], record: RestartRecord
) -> str:
    """Return the message of the limit that the job exceeds; empty if it exceeds none."""
    name, policy = view.job.metadata.name, view.job.spec.run_policy
    restarted = record.count + sum(
        container_restarts(pod)
        for group in groups
        if restarts.counts_restarts(group.restart_policy)
        for pod in group.current.values()
    )
    if record.backoff_limit_exceeded or restarts.backoff_limit_exceeded(
        policy.backoff_limit, restarted
    ):
        message = f"Job {name} has failed because it has reached the specified backoff limit"
        return _with_cause(message, groups)
    left = _deadline(view, draft)
    if left is not None and left <= 0:
        return f"Job {name} has failed because it was active longer than specified deadline"
    return ""


def _with_cause(message: str, groups: Sequence[ReplicaGroup]) -> str:
    """Return *message*, which is the training operator's, with the pod that failed and why."""
    cause = first_failure(groups)
    if not cause:
        return message
    return f"{message} {cause}" if message.endswith(".") else f"{message}: {cause}"


def _fail(view: TrainingView, draft: StatusDraft, message: str) -> list[Effect]:
    """Delete everything, under any cleanPodPolicy, then fail the job."""
    draft.no_active()
    draft.failed(message)
    writes = [*_deletions(view), *_podgroup_deletion(view)]
    return _effects(view, draft, writes, needs_writes=True)


# The status.


def _evaluate(view: TrainingView, draft: StatusDraft, groups: Sequence[ReplicaGroup]) -> None:
    """Set the counts and the conditions that follow from the pods."""
    name = view.job.metadata.name
    counts = {
        group.replica_type: count(
            group, terminating_counts_as_failed=view.framework.terminating_counts_as_failed
        )
        for group in groups
    }
    draft.set_counts(counts)
    for group in groups:
        if group.fails_job:
            message = f'job "{name}" is failing because "{group.replica_type}" replica(s) failed.'
            draft.failed(_with_cause(message, groups))
            return
    restarting = [group.replica_type for group in groups if group.restarting]
    seen = Observation(
        job=view.job,
        counts=counts,
        pods={group.replica_type: group.current for group in groups},
        restarting=bool(restarting) or draft.is_true(ConditionType.RESTARTING),
    )
    results = [
        Failed(_with_cause(each.message, groups), each.reason) if isinstance(each, Failed) else each
        for each in view.framework.evaluate(seen)
    ]
    if restarting:
        results.append(Restarting(_restart_message(name, restarting[0])))
    # Restarts of failed pods are announced when the record is written.
    _apply(draft, results, announced=bool(restarting))


def _apply(draft: StatusDraft, results: Sequence[Evaluation], *, announced: bool) -> None:
    """Set the conditions of *results*. A job that has ended is not restarting, and one that is
    restarting is not running."""
    end = next((each for each in results if isinstance(each, Succeeded | Failed)), None)
    restart = next((each for each in results if isinstance(each, Restarting)), None)
    running = next((each for each in results if isinstance(each, Running)), None)
    if running is not None and (end is not None or restart is None):
        draft.running(running.message)
    match end:
        case Succeeded(message):
            draft.succeeded(message)
        case Failed(message, reason):
            draft.failed(message, reason)
        case None if restart is not None:
            draft.restarting(restart.message, announced=announced)


def _restart_message(job: str, replica_type: str) -> str:
    return f"job {job} is restarting because {replica_type} replica(s) failed."


def _restart_announcements(
    view: TrainingView, groups: Sequence[ReplicaGroup], known: RestartRecord
) -> Iterator[Announcement]:
    """Announce each replica type with failed pods that the record does not have yet."""
    reason = f"{view.framework.kind.name}{Reason.RESTARTING}"
    for group in groups:
        if any(pod.metadata.uid not in known.pods for pod in group.restarting):
            message = _restart_message(view.job.metadata.name, group.replica_type)
            yield Announcement(Event(reason, message, warning=True), "restarted")


# The gang.


def _gang_writes(view: TrainingView) -> tuple[Sequence[Write], bool]:
    """Return what the PodGroup needs, and whether the pods must wait for it."""
    gang, group = view.gang, view.podgroup
    if gang is None:
        return [], False
    if group is None:
        spec = gang.spec(view.job, {}, view.priorities)
        return [CreatePodGroup(gang.resource, spec)], gang.delays("")
    if not view.controls(group.metadata):
        name = view.job.metadata.name
        message = f'PodGroup "{name}" already exists and is not controlled by this job'
        return [ReportConflict(message, Reason.POD_GROUP_NOT_CREATED)], True
    if group.metadata.deletion_timestamp:
        return [], True
    desired = gang.spec(view.job, group.spec, view.priorities)
    changed = gangs.changes(group.spec, desired)
    writes = [UpdateObject(gang.resource, group.metadata, {"spec": changed})] if changed else []
    return writes, gang.delays(group.status.phase)


# Pods, Services and other objects.


def _writes(view: TrainingView, groups: Sequence[ReplicaGroup]) -> Iterator[Write]:
    current = {group.replica_type: group.current for group in groups}
    for effect in (*_object_deletions(view), *_object_writes(view, current)):
        yield effect
        if isinstance(effect, ReportConflict):
            return
    yield from _pod_writes(view, groups)
    if view.framework.kind.has_services:
        yield from _service_writes(groups)


def _object_deletions(view: TrainingView) -> Iterator[Write]:
    for desired in view.framework.obsolete_objects(view.job):
        existing = view.find_object(desired.resource, desired.name)
        if existing is None or existing.metadata.deletion_timestamp:
            continue
        if view.controls(existing.metadata):
            yield DeleteObject(desired.resource, existing.metadata)


def _object_writes(view: TrainingView, pods: Mapping[str, Mapping[int, Pod]]) -> Iterator[Write]:
    for desired in view.framework.objects(view.job, pods, view.settings):
        resource = desired.resource
        if not view.served(resource):
            text = f"{resource.kind} of {resource.api_version} is not served"
            yield Event(Reason.RESOURCE_NOT_SERVED, text, warning=True)
            continue
        existing = view.find_object(resource, desired.name)
        if existing is None:
            yield CreateObject(desired)
        elif not view.controls(existing.metadata):
            text = view.conflict_message(resource, desired.name)
            yield ReportConflict(text, Reason.RESOURCE_EXISTS)
        elif existing.metadata.deletion_timestamp:
            yield ReportConflict(f"{resource.kind} {desired.name} is terminating")
        elif patch := changes(existing, desired):
            yield UpdateObject(resource, existing.metadata, patch)


def _pod_writes(view: TrainingView, groups: Sequence[ReplicaGroup]) -> Iterator[Write]:
    for pod in (each for group in groups for each in group.pods.unindexed):
        text = f"Pod {pod.metadata.name} is ignored: its label replica-index is no integer"
        yield Event(Reason.INVALID_INDEX, text, warning=True)
    deleted = [
        pod
        for group in groups
        for pod in (*group.pods.excess, *group.restarting, *group.rejected)
        if not pod.is_terminating and _replacement_delay(view, pod) <= 0
    ]
    if deleted:
        yield DeletePods(tuple(deleted))
    if lost := tuple(pod for pod, at in _lost_pods(view) if at <= view.now):
        yield RemoveLostPods(lost)
    by_type = {group.replica_type: group for group in groups}
    for replica_type in view.framework.creation_order(view.job):
        group = by_type[replica_type]
        if missing := group.pods.missing(group.replicas):
            if view.gang is not None and view.gang.names_other_scheduler(view.job):
                yield Event(Reason.SET_SCHEDULER_NAME, OTHER_SCHEDULER, warning=True)
            if sets_restart_policy(view.job, replica_type):
                yield Event(Reason.SET_RESTART_POLICY, RESTART_POLICY_IGNORED, warning=True)
            yield CreatePods(replica_type, tuple(missing))


def _replacement_delay(view: TrainingView, pod: Pod) -> float:
    """Return the seconds until *pod* may be deleted.

    A node may reject a pod again and again; without a delay it would be created in a loop.
    """
    if not pod.is_rejected:
        return 0.0
    left = restarts.remaining(pod.metadata.creation_timestamp, REJECTION_DELAY, view.now)
    return max(left or 0.0, 0.0)


def _lost_pods(view: TrainingView) -> list[tuple[Pod, datetime]]:
    """Return the pods that are lost with their nodes, now or at some time, if the job replaces
    these."""
    if not replaces_nodes(view.job.metadata.annotations, default=True):
        return []
    found = (
        (pod, lost_at(pod.metadata.deletion_timestamp, pod.status.conditions)) for pod in view.pods
    )
    return [(pod, at) for pod, at in found if at is not None]


def _service_writes(groups: Sequence[ReplicaGroup]) -> Iterator[Write]:
    deleted = [service for group in groups for service in _not_terminating(group.services.excess)]
    if deleted:
        yield DeleteServices(tuple(deleted))
    for group in groups:
        if missing := group.services.missing(group.replicas):
            yield CreateServices(group.replica_type, tuple(missing))
