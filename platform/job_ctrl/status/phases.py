"""What the controller does with a job in each phase, and when the phase ends. Pure.

Which phases an action leads to is the same for the REST API, and therefore in
:mod:`batholith.model.job_actions`; the transitions here follow from the pods.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ...machinery.reconcile.controller import RequeueAfter
from ...machinery.reconcile.events import Event
from ...model import times
from ...model.arrays import max_parallel
from ...model.controlled_resources import MET_DEPENDENCIES
from ...model.job import FINAL_PHASES, Action, JobPhase
from ...model.job_actions import Transition, transitions_from
from ...model.job_podgroup import dependencies_met
from ...model.job_reasons import Reason
from ...model.lost_pods import replaces_nodes
from ...model.names import TIME_LIMIT, TIME_LIMIT_WARNING
from ...model.pod import PodPhase
from ...model.recorded import seconds_to_wait
from ...model.run_times import warning_of
from .. import podgroups
from ..creation.dependencies import DependencyState
from ..effects import (
    CreatePodGroup,
    CreatePods,
    DeleteJob,
    DeletePluginObjects,
    DeletePodGroup,
    DeletePods,
    Effect,
    EnsurePluginObjects,
    EnsureVolumeClaims,
    RemoveLostPods,
    SetStatus,
    UpdatePodGroup,
)
from ..tracker.pod_info import PodCounts, PodInfo
from . import next_status, policies
from .job_view import JobView

MAX_RETRY_REACHED, PODS_FAILED, TOO_MANY_PODS = "MaxRetryReached", "PodsFailed", "TooManyPods"
"""Reasons of failed jobs."""


class PhaseRules(ABC):
    """The rules of one phase."""

    def __init__(self, phase: JobPhase) -> None:
        self.phase = phase
        self._transitions = transitions_from(phase)

    def transitions(self, view: JobView) -> Mapping[str, Transition]:
        """Return the transitions by action; one that is not listed has no effect in this phase.

        A job that ``spec.suspend`` has stopped is not resumed by an action.
        """
        if view.job.spec.suspend and Action.RESUME_JOB in self._transitions:
            return {}  # it has no other transition
        return self._transitions

    @property
    def can_be_resumed(self) -> bool:
        """Whether the job is stopped, or being stopped, until it is resumed."""
        return Action.RESUME_JOB in self._transitions

    def fail(self, view: JobView) -> list[Effect]:
        """Return how the job fails, if it must; this precedes ``spec.suspend`` and Commands."""
        return []

    def step(self, view: JobView) -> list[Effect]:
        """Return the next step of the job: an action of a policy, the next phase, or a sync."""
        handled, action = policies.apply_policies(view, self.transitions(view))
        return [*handled, *(action or self.enter_next_phase(view) or self.sync(view))]

    def enter_next_phase(self, view: JobView) -> list[Effect]:
        """Return the effects of the transition that the pods require, if any."""
        transition = self.next_transition(view)
        if transition is None:
            return []
        new = next_status.apply_transition(
            view, transition, reason=transition.reason, message=transition.message
        )
        return [SetStatus(new, immediate=True)]

    def next_transition(self, view: JobView) -> Transition | None:
        """Return the transition that the pods require; ``None`` if the job stays in the phase."""
        return None

    @abstractmethod
    def sync(self, view: JobView) -> Iterator[Effect]:
        """Yield what brings the objects of the job to the state that the phase requires."""


class _Active(PhaseRules):
    """The job has a PodGroup, the plugins' objects and pods, which are created and updated."""

    def fail(self, view: JobView) -> list[Effect]:
        """Fail a job with more pods than the controller lists."""
        return _fail_too_large(view)

    def sync(self, view: JobView) -> Iterator[Effect]:
        """Create and update all objects of the job."""
        rejected = [pod for pod in view.pod_tracker.excess() if pod.rejection]
        # First, because an error in the rest ends this sync and delays the next one. If a rejected
        # pod was deleted without this write, a new leader would take it for an evicted one.
        yield from _update_counts(view, immediate=bool(view.last_errors or rejected))
        if view.pvcs_stale and self.phase is JobPhase.PENDING:
            yield EnsureVolumeClaims()
            return
        if view.plugin_objects_stale:
            yield EnsurePluginObjects()
        if view.podgroup is None and view.without_podgroup is None:
            yield CreatePodGroup(view.podgroup_spec)
        elif view.podgroup is not None and not view.podgroup_terminating:
            changes = podgroups.spec_patch(view.podgroup.spec, view.podgroup_spec)
            if changes:
                yield UpdatePodGroup(changes, view.podgroup.metadata)
        if not view.podgroup_terminating:
            yield from _warn_unschedulable(view)
        yield from _delete_obsolete_pods(view, rejected)
        yield from _remove_lost_pods(view)
        if view.admitted:
            yield from _create_missing_pods(view)


class Pending(_Active):
    """Waiting for the queue, or for ``minAvailable`` pods to run."""

    def step(self, view: JobView) -> list[Effect]:
        """Wait for the dependencies of the job, then as in other phases."""
        found = view.dependencies
        effects = [] if found is None else _wait_for_dependencies(view, found)
        if effects or (found is not None and found.waiting):
            return effects
        return super().step(view)

    def next_transition(self, view: JobView) -> Transition | None:
        """Running once ``minAvailable`` pods run or have finished."""
        pods = view.pod_counts
        if pods.in_phase(PodPhase.RUNNING) + pods.finished < view.job.spec.min_available:
            return None
        return Transition(to=JobPhase.RUNNING)


class Running(_Active):
    """At least ``minAvailable`` pods run or have finished."""

    def fail(self, view: JobView) -> list[Effect]:
        """End a job that has run for its time limit, unless its pods end it."""
        transition = self.next_transition(view)
        is_ending = transition is not None and transition.to in FINAL_PHASES
        return super().fail(view) or ([] if is_ending else _end_at_time_limit(view))

    def sync(self, view: JobView) -> Iterator[Effect]:
        """Also sync again when the job is to be ended."""
        yield from super().sync(view)
        left = view.seconds_until_sigterm
        if left is not None:
            yield RequeueAfter(left)

    def next_transition(self, view: JobView) -> Transition | None:
        """Final when enough pods succeeded or all finished; Pending when too few run."""
        spec, pods = view.job.spec, view.pod_counts
        succeeded = pods.in_phase(PodPhase.SUCCEEDED)
        if not view.total_replicas:
            return None
        if spec.min_success is not None and succeeded >= spec.min_success:
            return Transition(to=JobPhase.COMPLETED, bumps_version=True)
        if pods.finished >= view.total_replicas:
            final = _final_phase(view, pods)
            if final is JobPhase.COMPLETED:
                return Transition(to=final, bumps_version=True)
            message = _failure_message(view, pods)
            return Transition(to=final, bumps_version=True, reason=PODS_FAILED, message=message)
        if pods.in_phase(PodPhase.PENDING) > view.total_replicas - spec.min_available:
            return Transition(to=JobPhase.PENDING)
        return None


class Restarting(PhaseRules):
    """Some or all pods are being deleted, to be created again in phase Pending."""

    def fail(self, view: JobView) -> list[Effect]:
        """Fail a job without retries left, or with too many pods.

        A job that was stopped and resumed before that would exceed its limit of retries.
        """
        transition = self.next_transition(view)
        if transition is not None and transition.to in FINAL_PHASES:
            return self.enter_next_phase(view)
        return _fail_too_large(view)

    def step(self, view: JobView) -> list[Effect]:
        """Delete the old pods, then leave the phase. Creates nothing."""
        obsolete = tuple(_pods_to_delete(view))
        if obsolete:
            return [DeletePods(obsolete)]
        if view.restart_target.is_whole_job and view.podgroup is not None:
            # The restarted job is queued with a new PodGroup. The job stays in this phase until the
            # old one is deleted, so that a PodGroup observed in this phase is always the old one.
            uid = view.podgroup.metadata.uid
            delete: list[Effect] = [] if view.podgroup_terminating else [DeletePodGroup(uid)]
            return [*delete, *self.sync(view)]
        return super().step(view)

    def next_transition(self, view: JobView) -> Transition | None:
        """Failed when the retries are used up; else Pending once enough pods can be created.

        The current spec counts: the job may have been scaled since it ran. The caller has already
        requested the deletion of all pods that the restart replaces.
        """
        spec, status = view.job.spec, view.job.status
        if status.retry_count >= spec.max_retry and not view.resuming:
            used = f"retries used up: {status.retry_count} of {spec.max_retry}"
            message = f"{status.state.message}; {used}" if status.state.message else used
            return Transition(
                to=JobPhase.FAILED, bumps_version=True, reason=MAX_RETRY_REACHED, message=message
            )
        if view.total_replicas - view.pod_counts.terminating >= spec.min_available:
            return Transition(to=JobPhase.PENDING)
        return None

    def sync(self, view: JobView) -> Iterator[Effect]:
        """Update the counts while pods are being deleted."""
        yield from _update_counts(view)
        yield from _remove_lost_pods(view)


class Ended(PhaseRules):
    """Stopped until it is resumed, or finished: only finished pods remain."""

    def sync(self, view: JobView) -> Iterator[Effect]:
        """Delete everything except the finished pods; an expired job is deleted itself."""
        obsolete = (*view.pod_tracker.active(), *view.pod_tracker.excess())
        if obsolete:
            yield DeletePods(obsolete, view.rest_of_warning)
        if view.podgroup is not None and not view.podgroup_terminating:
            yield DeletePodGroup(view.podgroup.metadata.uid)
        counted = next_status.update_counts(view)
        unmarked = next_status.without_plugin_keys(counted)
        if unmarked != counted:
            yield DeletePluginObjects()
        if unmarked != view.job.status:
            yield SetStatus(unmarked, immediate=False)
        yield from _apply_ttl(view)


class Ending(Ended):
    """An action ends the job, in phase *then* once no pod is left that has not finished."""

    def __init__(self, phase: JobPhase, *, then: JobPhase) -> None:
        super().__init__(phase)
        self._then = then

    def next_transition(self, view: JobView) -> Transition | None:
        """The phase that follows, when all remaining pods have finished."""
        if view.pod_counts.unfinished:
            return None
        is_late = view.job.status.state.reason == Reason.DEADLINE_EXCEEDED
        return Transition(to=JobPhase.FAILED if is_late else self._then)


RULES: Mapping[JobPhase, PhaseRules] = {
    rules.phase: rules
    for rules in (
        Pending(JobPhase.PENDING),
        Running(JobPhase.RUNNING),
        Restarting(JobPhase.RESTARTING),
        Ending(JobPhase.ABORTING, then=JobPhase.ABORTED),
        Ended(JobPhase.ABORTED),
        Ending(JobPhase.COMPLETING, then=JobPhase.COMPLETED),
        Ended(JobPhase.COMPLETED),
        Ending(JobPhase.TERMINATING, then=JobPhase.TERMINATED),
        Ended(JobPhase.TERMINATED),
        Ended(JobPhase.FAILED),
    )
}


def _final_phase(view: JobView, pods: PodCounts) -> JobPhase:
    """Return Completed or Failed for a job whose pods have all finished."""
    spec = view.job.spec
    if spec.min_success is not None:  # not reached, or the job would be Completed
        return JobPhase.FAILED
    needed = sum(
        task.replicas if task.min_available is None else task.min_available for task in spec.tasks
    )
    if spec.min_available >= needed:
        for task in spec.tasks:
            phases = pods.tasks.get(task.name)
            if phases and phases.get(PodPhase.SUCCEEDED, 0) < (task.min_available or 0):
                return JobPhase.FAILED
    enough = pods.in_phase(PodPhase.SUCCEEDED) >= spec.min_available
    return JobPhase.COMPLETED if enough else JobPhase.FAILED


def _failure_message(view: JobView, pods: PodCounts) -> str:
    """Return how many pods failed, and the first of them."""
    failed = pods.in_phase(PodPhase.FAILED)
    if not failed:
        succeeded = pods.in_phase(PodPhase.SUCCEEDED)
        return f"{succeeded} of {view.total_replicas} pods succeeded, which are too few"
    return f"{failed} of {view.total_replicas} pods failed: {view.first_failure}"


def _fail_too_large(view: JobView) -> list[Effect]:
    """Fail a job with more pods than the controller lists, before anything is created for it."""
    if not view.size_error:
        return []
    transition = Transition(to=JobPhase.FAILED, bumps_version=True)
    new = next_status.apply_transition(
        view, transition, reason=TOO_MANY_PODS, message=view.size_error
    )
    return [
        SetStatus(new, immediate=True),
        Event(Reason.TOO_MANY_PODS, view.size_error, warning=True),
    ]


def _wait_for_dependencies(view: JobView, found: DependencyState) -> list[Effect]:
    """Record dependencies that were met; while others are not, create nothing."""
    if found.never:
        transition = Transition(to=JobPhase.FAILED, bumps_version=True)
        new = next_status.apply_transition(
            view, transition, reason=Reason.DEPENDENCY_NEVER_MET, message=found.never
        )
        event = Event(Reason.DEPENDENCY_NEVER_MET, found.never, warning=True)
        return [SetStatus(new, immediate=True), event]
    if found.met != view.job.status.controlled_resources.get(MET_DEPENDENCIES, ""):
        return [SetStatus(next_status.with_met_dependencies(view, found.met), immediate=True)]
    if not found.waiting:
        return []
    check = [] if found.check_after is None else [RequeueAfter(found.check_after)]
    return [*_update_counts(view, immediate=True), *check]


def _end_at_time_limit(view: JobView) -> list[Effect]:
    """Terminate a job at its time limit, or the warning before; it fails once its pods have
    ended."""
    if view.seconds_until_sigterm is None or view.seconds_until_sigterm > 0:
        return []
    annotations = view.job.metadata.annotations
    message = f"it ran for its time limit of {annotations[TIME_LIMIT]}"
    if warning_of(annotations):
        message = (
            f"its time limit is {annotations[TIME_LIMIT]}, and it was terminated"
            f" {annotations[TIME_LIMIT_WARNING]} before that"
        )
    transition = Transition(to=JobPhase.TERMINATING, bumps_version=True)
    new = next_status.apply_transition(
        view, transition, reason=Reason.DEADLINE_EXCEEDED, message=message
    )
    return [
        SetStatus(new, immediate=True),
        Event(Reason.DEADLINE_EXCEEDED, message, warning=True),
    ]


def _update_counts(view: JobView, *, immediate: bool = False) -> Iterator[Effect]:
    counted = next_status.update_counts(view)
    if counted != view.job.status:
        yield SetStatus(counted, immediate=immediate)


def _delete_obsolete_pods(view: JobView, rejected: list[PodInfo]) -> Iterator[Effect]:
    """Delete pods of earlier versions and excess ones; rejected pods only when that is due."""
    tracker = view.pod_tracker
    due_at = {pod.uid: tracker.replace_at(pod) for pod in rejected}
    later = [until for until in due_at.values() if until > view.monotonic_now]
    yield from policies.requeue_at(view, *later)
    obsolete = tuple(
        pod
        for pod in (*tracker.outdated(view.job.status.version), *tracker.excess())
        if due_at.get(pod.uid, view.monotonic_now) <= view.monotonic_now
    )
    for pod in obsolete:
        if pod.rejection:
            message = f"pod {pod.name} was rejected by its node ({pod.rejection}), and is replaced"
            yield Event(Reason.POD_REJECTED, message, warning=True)
    if obsolete:
        yield DeletePods(obsolete)


def _remove_lost_pods(view: JobView) -> Iterator[Effect]:
    """Remove the pods that were lost with their nodes, if the job permits that: their names are
    needed for those that replace them."""
    if not replaces_nodes(view.job.metadata.annotations, default=False):
        return
    found = [(pod, pod.lost_at) for pod in view.pod_tracker.lost() if pod.lost_at is not None]
    if lost := tuple(pod for pod, at in found if at <= view.now):
        others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        message = f"pod {lost[0].name}{others}: lost with the node, to be replaced"
        yield Event(Reason.POD_LOST, message, warning=True)
        yield RemoveLostPods(lost)
    if later := [at for _, at in found if at > view.now]:
        yield RequeueAfter((min(later) - view.now).total_seconds())


def _create_missing_pods(view: JobView) -> Iterator[Effect]:
    """Create the missing pods of tasks whose dependencies are met, as many as may run at a time."""
    limit = max_parallel(view.job.metadata.annotations)
    missing = {
        task.name: tuple(_next_pods(view, task.name, limit))
        for task in view.job.spec.tasks
        if view.pod_tracker.index_count(task.name) < task.replicas
        and dependencies_met(task, partial(_has_started, view))
    }
    if any(missing.values()):
        without = view.without_podgroup
        yield CreatePods(missing, without.description if without is not None else "")


def _next_pods(view: JobView, task: str, limit: int | None) -> Sequence[int]:
    """Return the indices of pods to create: the lowest missing ones.

    So a creation whose outcome is not known is repeated, and no other pod is created instead.
    """
    missing = view.pod_tracker.missing(task)
    if limit is None:
        return missing
    return missing[: max(limit - view.pod_tracker.unfinished_count(task), 0)]


def _has_started(view: JobView, name: str) -> bool:
    """Whether a task has started ``minAvailable`` pods; true for a name without a task."""
    task = next((task for task in view.job.spec.tasks if task.name == name), None)
    if task is None or task.min_available is None:
        return True
    pods = view.pod_counts
    succeeded = pods.tasks.get(name, {}).get(PodPhase.SUCCEEDED, 0)
    return succeeded + pods.ready.get(name, 0) >= task.min_available


def _pods_to_delete(view: JobView) -> Iterator[PodInfo]:
    """Yield the pods that a restart deletes and whose deletion was not requested yet."""
    version, target = view.job.status.version, view.restart_target
    yield from view.pod_tracker.outdated(version)
    yield from view.pod_tracker.excess()
    yield from view.pods_to_restart()
    if target.is_whole_job and not view.resuming:
        yield from (pod for pod in view.pod_tracker.finished() if pod.version < version)


def _warn_unschedulable(view: JobView) -> Iterator[Effect]:
    """Warn why the gang does not start: the scheduler's condition, and what it cannot know."""
    condition = view.unschedulable
    if condition is not None:
        meta, what = view.job.metadata, "PodGroup" if view.podgroup is not None else "pod of"
        message = f"{what} {meta.namespace}:{meta.name} {condition.type.lower()}: "
        yield Event(Reason.PODGROUP_PENDING, message + condition.message, warning=True)
    if view.unsatisfiable_reason:
        yield Event(Reason.GANG_UNSATISFIABLE, view.unsatisfiable_reason, warning=True)
    for task in view.job.spec.tasks:
        failed = view.pod_counts.tasks.get(task.name, {}).get(PodPhase.FAILED)
        if failed and policies.can_never_fire(view.job, task):
            message = (
                f"a pod of task {task.name} has failed, but no policy for TaskFailed will act: it"
                " counts restarts of containers, and the task's restartPolicy is Never"
            )
            yield Event(Reason.POLICY_NEVER_FIRES, message, warning=True)


def _apply_ttl(view: JobView) -> Iterator[Effect]:
    """Delete a finished job whose ``ttlSecondsAfterFinished`` has expired."""
    ttl, ended = view.job.spec.ttl_seconds_after_finished, view.job.status.state
    if ttl is None or view.phase not in FINAL_PHASES or not ended.last_transition_time:
        return
    left = (times.parse(ended.last_transition_time) - view.now).total_seconds() + ttl
    if view.ttl_waits_for_history:
        annotations = view.job.metadata.annotations
        left = seconds_to_wait(annotations, ended.last_transition_time, left)
    yield RequeueAfter(left) if left > 0 else DeleteJob()
