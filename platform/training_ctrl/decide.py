"""The decision of what a job needs: a pure function from a view to a plan.

A plan follows from the state alone, so that one that was interrupted anywhere is completed by the
next. What the state would not show after an interruption is in the restart record, which is written
first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ..model.recorded import seconds_to_wait
from ..model.training.types import ConditionType
from . import clean_up, gangs, restarts
from .core_types import Pod
from .dependents import differing
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
    Plan,
    Reason,
    ReportConflict,
    UpdateObject,
    UpdatePodGroup,
    Warn,
)
from .gangs import Gang
from .observation import (
    Evaluation,
    Failed,
    Observation,
    ReplicaCounts,
    Restarting,
    Running,
    Succeeded,
)
from .pods import sets_restart_policy
from .replica_groups import ReplicaGroup, count, first_failure, replica_groups
from .replica_pods import container_restarts
from .restarts import RestartRecord
from .status import StatusDraft
from .view import View

GANG_RECHECK = 10.0
"""Seconds after which a job that waits for its PodGroup is reconciled again."""

REJECTION_DELAY = 5
"""Minimum age of a pod that a kubelet rejected when it is deleted and created again."""

OTHER_SCHEDULER = (
    "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
)
RESTART_POLICY_IGNORED = (
    "Restart policy in pod template will be overwritten by restart policy in replica spec"
)


def plan(view: View) -> Plan:
    """Return what the job of *view* needs.

    Raises:
        QuantityError: a quantity in a template of a gang is malformed.
        msgspec.MsgspecError: a template is malformed.
    """
    draft = StatusDraft(view.framework, view.job, view.now)
    draft.created()
    if draft.is_finished:
        return _finished(view, draft)
    if view.job.spec.run_policy.suspend:
        return _suspended(view, draft)
    if draft.is_true(ConditionType.SUSPENDED):
        draft.resumed()
    return _unfinished(view, draft)


# A job that has ended, or is suspended.


def _finished(view: View, draft: StatusDraft) -> Plan:
    policy = view.job.spec.run_policy
    deletions = clean_up.of_finished_job(policy.clean_pod_policy, view.pods, view.services)
    effects = [*_deletions(deletions), *_podgroup_deletion(view)]
    if draft.is_true(ConditionType.SUCCEEDED):
        draft.no_active(succeeded=True)
    draft.completion_time = draft.completion_time or draft.now
    left = restarts.remaining(draft.completion_time, policy.ttl_seconds_after_finished, view.now)
    if left is not None and view.ttl_waits_for_history:
        left = seconds_to_wait(view.job.metadata.annotations, draft.completion_time, left)
    if policy.suspend:
        left = None
    if left is not None and left <= 0:
        effects.append(DeleteJob())
    return _plan(draft, effects, requeue_after=left)


def _suspended(view: View, draft: StatusDraft) -> Plan:
    deletions = clean_up.of_unfinished_job(view.pods, view.services)
    effects = [*_deletions(deletions), *_podgroup_deletion(view), *_object_deletions(view)]
    draft.no_active()
    draft.suspended()
    return _plan(draft, effects)


def _deletions(deletions: clean_up.Deletions) -> Iterator[Effect]:
    if deletions.pods:
        yield DeletePods(deletions.pods)
    if deletions.services:
        yield DeleteServices(deletions.services)


def _podgroup_deletion(view: View) -> Iterator[Effect]:
    group = view.podgroup
    if group is None or group.metadata.deletion_timestamp or not view.controls(group.metadata):
        return
    yield DeletePodGroup(group.metadata)


def _plan(
    draft: StatusDraft, effects: Sequence[Effect] = (), *, requeue_after: float | None = None
) -> Plan:
    return Plan(
        effects=tuple(effects),
        status=draft.status(),
        transitions=tuple(draft.transitions),
        requeue_after=requeue_after,
    )


# A job that runs or is to run.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replicas:
    """The replica types of a job, and its restart record with what has failed now."""

    groups: tuple[ReplicaGroup, ...]
    known: RestartRecord
    record: RestartRecord

    @property
    def restarts(self) -> int:
        """Restarts that count towards the backoffLimit: of containers, and of pods."""
        return self.record.count + sum(
            container_restarts(pod)
            for group in self.groups
            if restarts.counts_restarts(group.restart_policy)
            for pod in group.current.values()
        )

    def newly_failed(self, group: ReplicaGroup) -> bool:
        """Whether pods of *group* are restarted that were not counted before."""
        return any(pod.metadata.uid not in self.known.pods for pod in group.restarting)

    @property
    def changed_record(self) -> RestartRecord | None:
        """The record, if it must be written."""
        return None if self.record == self.known else self.record


def _unfinished(view: View, draft: StatusDraft) -> Plan:
    if view.size_error:
        return _end(view, draft, view.size_error)
    meta = view.job.metadata
    groups = replica_groups(view, draft.start_time)
    known = restarts.parse(meta.annotations, meta.uid)
    failed = [pod.metadata.uid for group in groups for pod in group.restarting]
    record = known.add(failed, {pod.metadata.uid for pod in view.pods})
    replicas = _Replicas(groups=groups, known=known, record=record)
    if message := _exceeded_limit(view, draft, replicas):
        return _end_by_limit(view, draft, replicas, message)
    gang_effects, delayed = _gang_effects(view)
    if delayed:
        left = _deadline(view, draft)
        soon = GANG_RECHECK if left is None else min(left, GANG_RECHECK)
        return _plan(draft, gang_effects, requeue_after=soon)
    counts = {
        group.replica_type: count(
            group,
            terminating_counts_as_failed=view.framework.terminating_counts_as_failed,
        )
        for group in groups
    }
    draft.set_counts(counts)
    draft.start_time = draft.start_time or draft.now
    _evaluate(view, draft, replicas, counts)
    if draft.is_finished:
        return _plan(draft)
    return Plan(
        record=replicas.changed_record,
        restarts=tuple(_restart_announcements(view, replicas)),
        effects=(*gang_effects, *_effects(view, replicas)),
        status=draft.status(),
        transitions=tuple(draft.transitions),
        requeue_after=_requeue_after(view, draft, replicas),
    )


def _requeue_after(view: View, draft: StatusDraft, replicas: _Replicas) -> float | None:
    """Return the seconds until the job's deadline, or until a rejected pod is replaced."""
    delays = [_replacement_delay(view, pod) for group in replicas.groups for pod in group.rejected]
    deadline = _deadline(view, draft)
    times_left = [*(each for each in delays if each > 0), *([] if deadline is None else [deadline])]
    return min(times_left, default=None)


def _deadline(view: View, draft: StatusDraft) -> float | None:
    """Return the seconds until the job's deadline, if it has one and was started."""
    seconds = view.job.spec.run_policy.active_deadline_seconds
    return restarts.remaining(draft.start_time, seconds, view.now)


def _exceeded_limit(view: View, draft: StatusDraft, replicas: _Replicas) -> str:
    """Return the message of the limit that the job exceeds; empty if it exceeds none."""
    name, policy = view.job.metadata.name, view.job.spec.run_policy
    if replicas.record.backoff_limit_exceeded or restarts.backoff_limit_exceeded(
        policy.backoff_limit, replicas.restarts
    ):
        message = f"Job {name} has failed because it has reached the specified backoff limit"
        return _with_cause(message, replicas)
    left = _deadline(view, draft)
    if left is not None and left <= 0:
        return f"Job {name} has failed because it was active longer than specified deadline"
    return ""


def _with_cause(message: str, replicas: _Replicas) -> str:
    """Return the training operator's *message*, then which pod failed and why."""
    cause = first_failure(replicas.groups)
    if not cause:
        return message
    return f"{message} {cause}" if message.endswith(".") else f"{message}: {cause}"


def _end_by_limit(view: View, draft: StatusDraft, replicas: _Replicas, message: str) -> Plan:
    """Delete everything, under any cleanPodPolicy, then fail the job."""
    left = _deadline(view, draft)
    if left is None or left > 0:  # pods that are deleted no longer show their restarts
        record = msgspec.structs.replace(replicas.record, backoff_limit_exceeded=True)
        replicas = _Replicas(groups=replicas.groups, known=replicas.known, record=record)
    return _end(view, draft, message, record=replicas.changed_record)


def _end(
    view: View, draft: StatusDraft, message: str, *, record: RestartRecord | None = None
) -> Plan:
    deletions = clean_up.of_unfinished_job(view.pods, view.services)
    draft.no_active()
    draft.failed(message)
    return Plan(
        record=record,
        effects=(*_deletions(deletions), *_podgroup_deletion(view)),
        status=draft.status(),
        status_needs_effects=True,
        transitions=tuple(draft.transitions),
    )


# The status.


def _evaluate(
    view: View, draft: StatusDraft, replicas: _Replicas, counts: dict[str, ReplicaCounts]
) -> None:
    """Set the conditions that follow from the pods."""
    name = view.job.metadata.name
    for group in replicas.groups:
        if group.fails_job:
            message = f'job "{name}" is failing because "{group.replica_type}" replica(s) failed.'
            draft.failed(_with_cause(message, replicas))
            return
    restarting = [group.replica_type for group in replicas.groups if group.restarting]
    seen = Observation(
        job=view.job,
        counts=counts,
        pods={group.replica_type: group.current for group in replicas.groups},
        restarting=bool(restarting) or draft.is_true(ConditionType.RESTARTING),
    )
    results = [
        Failed(_with_cause(each.message, replicas), each.reason)
        if isinstance(each, Failed)
        else each
        for each in view.framework.evaluate(seen)
    ]
    if restarting:
        results.append(Restarting(_restart_message(name, restarting[0])))
    announced = any(replicas.newly_failed(group) for group in replicas.groups)
    _apply(draft, results, announced=announced)


def _apply(draft: StatusDraft, results: Sequence[Evaluation], *, announced: bool) -> None:
    """Set the conditions of *results*: an end precedes restarts, and these precede Running."""
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


def _restart_announcements(view: View, replicas: _Replicas) -> Iterator[Announcement]:
    for group in replicas.groups:
        if replicas.newly_failed(group):
            yield Announcement(
                reason=f"{view.framework.kind.name}{Reason.RESTARTING}",
                message=_restart_message(view.job.metadata.name, group.replica_type),
                warning=True,
                counted="restarted",
            )


# The gang.


def _gang_effects(view: View) -> tuple[list[Effect], bool]:
    """Return what the PodGroup needs, and whether the pods must wait for it."""
    gang, group = view.gang, view.podgroup
    if gang is None:
        return [], False
    if group is None:
        effects: list[Effect] = [CreatePodGroup(gang.spec(view.job, {}, view.priorities))]
        return effects, gang.delays("")
    if not view.controls(group.metadata):
        name = view.job.metadata.name
        message = f'PodGroup "{name}" already exists and is not controlled by this job'
        return [ReportConflict(Reason.POD_GROUP_NOT_CREATED, message)], True
    if group.metadata.deletion_timestamp:
        return [], True
    return _podgroup_update(view, gang), gang.delays(group.status.phase)


def _podgroup_update(view: View, gang: Gang) -> list[Effect]:
    group = view.podgroup
    if group is None:
        return []
    desired = gang.spec(view.job, group.spec, view.priorities)
    changed = gangs.changes(group.spec, desired)
    return [UpdatePodGroup(group.metadata, changed)] if changed else []


# Pods, Services and other objects.


def _effects(view: View, replicas: _Replicas) -> Iterator[Effect]:
    current = {group.replica_type: group.current for group in replicas.groups}
    for effect in (*_object_deletions(view), *_object_effects(view, current)):
        yield effect
        if isinstance(effect, ReportConflict):
            return
    yield from _pod_effects(view, replicas)
    if view.framework.kind.has_services:
        yield from _service_effects(replicas)


def _object_deletions(view: View) -> Iterator[Effect]:
    for desired in view.framework.obsolete_objects(view.job):
        existing = view.find_object(desired.resource, desired.name)
        if existing is None or existing.metadata.deletion_timestamp:
            continue
        if view.controls(existing.metadata):
            yield DeleteObject(desired, existing.metadata)


def _object_effects(view: View, pods: Mapping[str, Mapping[int, Pod]]) -> Iterator[Effect]:
    kind = view.framework.kind.name
    for desired in view.framework.objects(view.job, pods, view.settings):
        resource = desired.resource
        if not view.served(resource):
            text = f"{resource.kind} of {resource.api_version} is not served"
            yield Warn(Reason.RESOURCE_NOT_SERVED, text)
            continue
        existing = view.find_object(resource, desired.name)
        if existing is None:
            yield CreateObject(desired)
        elif not view.controls(existing.metadata):
            text = (
                f'Resource "{desired.name}" of {kind}Kind "{resource.kind}" already exists '
                f"and is not managed by {kind}"
            )
            yield ReportConflict(Reason.RESOURCE_EXISTS, text)
        elif existing.metadata.deletion_timestamp:
            yield ReportConflict("", f"{resource.kind} {desired.name} is terminating")
        elif fields := differing(desired, existing):
            yield UpdateObject(desired, existing, fields)


def _pod_effects(view: View, replicas: _Replicas) -> Iterator[Effect]:
    for pod in (each for group in replicas.groups for each in group.pods.unindexed):
        text = f"Pod {pod.metadata.name} is ignored: its label replica-index is no integer"
        yield Warn(Reason.INVALID_INDEX, text)
    deleted = [
        pod
        for group in replicas.groups
        for pod in (*group.pods.excess, *group.restarting, *group.rejected)
        if not pod.is_terminating and _replacement_delay(view, pod) <= 0
    ]
    if deleted:
        yield DeletePods(tuple(deleted))
    by_type = {group.replica_type: group for group in replicas.groups}
    for replica_type in view.framework.creation_order(view.job):
        group = by_type[replica_type]
        if missing := group.pods.missing(group.replicas):
            if view.gang is not None and view.gang.names_other_scheduler(view.job):
                yield Warn(Reason.SET_SCHEDULER_NAME, OTHER_SCHEDULER)
            if sets_restart_policy(view.job, replica_type):
                yield Warn(Reason.SET_RESTART_POLICY, RESTART_POLICY_IGNORED)
            yield CreatePods(replica_type, tuple(missing))


def _replacement_delay(view: View, pod: Pod) -> float:
    """Return the seconds until *pod* is deleted: one that its node rejects again and again must not
    be created again and again without a delay."""
    if not pod.is_rejected:
        return 0.0
    left = restarts.remaining(pod.metadata.creation_timestamp, REJECTION_DELAY, view.now)
    return max(left or 0.0, 0.0)


def _service_effects(replicas: _Replicas) -> Iterator[Effect]:
    deleted = [
        service
        for group in replicas.groups
        for service in group.services.excess
        if service.metadata.deletion_timestamp is None
    ]
    if deleted:
        yield DeleteServices(tuple(deleted))
    for group in replicas.groups:
        if missing := group.services.missing(group.replicas):
            yield CreateServices(group.replica_type, tuple(missing))
