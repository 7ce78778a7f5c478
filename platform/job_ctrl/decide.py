"""Decide the next step for a job. Pure: returns effects, and changes neither view nor tracker.

The controller executes the effects and decides again until there are none. So each decision is one
step, and a controller that stops between two steps continues from the informers alone. The order of
effects is significant: a phase is written before anything is deleted, and a Command is deleted
after it was executed.
"""

from collections.abc import Iterator
from functools import partial

import msgspec

from ..model import times
from ..model.controlled_resources import executed_commands, operation_results
from ..model.job import FINAL_PHASES, Action, JobPhase
from ..model.job_actions import Transition
from ..model.job_reasons import Reason
from ..model.pod import PodPhase
from ..model.recorded import seconds_to_wait
from . import podgroups
from .effects import (
    CreatePodGroup,
    CreatePods,
    DeferLifecycleEvents,
    DeleteCommand,
    DeleteJob,
    DeletePluginObjects,
    DeletePodGroup,
    DeletePods,
    DropLifecycleEvents,
    Effect,
    EnsurePluginObjects,
    EnsureVolumeClaims,
    RecordEvent,
    RequeueAfter,
    SetStatus,
    UpdatePodGroup,
)
from .status import next_status, policies
from .status.job_view import CommandRef, JobView
from .status.phases import RULES, TOO_MANY_PODS, SyncMode
from .status.restarts import (
    SUSPENDED,
    InvalidTarget,
    RestartTarget,
    target_for_command,
    target_for_event,
)
from .tracker.pod_info import LifecycleEvent, PodInfo


def decide(view: JobView, command: CommandRef | None = None) -> list[Effect]:
    """Return the next step for the job; *command*, if any, takes precedence over the pods."""
    if view.job.metadata.deletion_timestamp is not None:
        # The garbage collector deletes everything else.
        return [DeleteCommand()] if command else []
    if not view.job.status.state.phase:
        return _start(view, command)
    return _step(view, command)


def _start(view: JobView, command: CommandRef | None) -> list[Effect]:
    """Initialize the job's status; if it may be deferred, also begin with the job itself.

    Deferred, the phase Pending is mostly never written: the job runs before. Only what the spec
    determines is deferred, so that a controller that starts again decides the same: nothing but
    the status names the objects of plugins and volumes once they are not in the spec.
    """
    initial = next_status.initial_status(view)
    warnings = list(_warn_ineffective_policies(view))
    if not view.defer_first_status or command is not None or view.job.spec.volumes:
        return [SetStatus(initial, immediate=True), *warnings]
    if initial.controlled_resources or view.job.spec.suspend:
        return [SetStatus(initial, immediate=True), *warnings]
    initialized = msgspec.structs.replace(view.job, status=initial)
    steps = _step(msgspec.structs.replace(view, job=initialized), None)
    if not any(isinstance(step, SetStatus) for step in steps):
        # First, because an error in the rest ends this sync, maybe again and again.
        steps.insert(0, SetStatus(initial, immediate=False))
    return [*warnings, *steps]


def _step(view: JobView, command: CommandRef | None) -> list[Effect]:
    """Return the next step for a job with a phase."""
    if command is not None and _was_executed(view, command):
        return [DeleteCommand()]  # executed before a crash, or its deletion failed
    if view.phase is JobPhase.RESTARTING and (failed := _fail_if_retries_exhausted(view)):
        return failed
    if view.size_error and RULES[view.phase].sync_mode is not SyncMode.KILL:
        return _fail_too_large(view)
    if suspended := _apply_suspend(view):
        return suspended
    if command is not None:
        return _apply_command(view, command)
    sync_mode = RULES[view.phase].sync_mode
    if sync_mode is SyncMode.RESTART:
        return _delete_for_restart(view)
    handled, transition = _apply_policies(view)
    step = (
        transition
        or _transition(view)
        or (_sync(view) if sync_mode is SyncMode.SYNC else _kill(view))
    )
    return [*handled, *step]


def _was_executed(view: JobView, command: CommandRef) -> bool:
    """Return whether the status shows that the Command, or an earlier one for the same operation of
    the REST API, was executed or refused."""
    if any(each.uid == command.uid for each in executed_commands(view.job.status)):
        return True
    results = operation_results(view.job.status) if command.operation else ()
    return any(each.operation == command.operation for each in results)


def _apply_suspend(view: JobView) -> list[Effect]:
    """Stop or resume the job if ``spec.suspend`` requires it."""
    suspend, transitions = view.job.spec.suspend, RULES[view.phase].transitions
    is_stopped = Action.RESUME_JOB in transitions
    if suspend == (is_stopped and view.job.status.state.reason == SUSPENDED):
        return []
    if suspend:
        stopped = Transition(to=view.phase) if is_stopped else None
        transition = transitions.get(Action.ABORT_JOB) or stopped
        reason, result, value = SUSPENDED, "suspended", "true"
    else:
        transition = transitions[Action.RESUME_JOB]
        reason, result, value = Action.RESUME_JOB, "resumed", "false"
    if transition is None:
        return []  # the job has ended or is ending
    message = f"spec.suspend is {value}"
    new = next_status.apply_transition(view, transition, reason=reason, message=message)
    return [
        SetStatus(new, immediate=True),
        RecordEvent(Reason.EXECUTE_ACTION, f"Job {result}: {message}"),
    ]


def _transition_for(view: JobView, action: str) -> Transition | None:
    """Return the transition of *action*; only ``spec.suspend`` resumes what it has stopped."""
    if action == Action.RESUME_JOB and view.job.spec.suspend:
        return None
    return RULES[view.phase].transitions.get(action)


def _apply_command(view: JobView, command: CommandRef) -> list[Effect]:
    """Execute a Command, or report why it cannot be executed."""
    transition = _transition_for(view, command.action)
    target = _command_target(view, command)
    effects: list[Effect] = []
    if isinstance(target, InvalidTarget) or transition is None:
        result = _why_without_effect(view, command)
        if isinstance(target, InvalidTarget):
            result = target.reason
        if command.operation:
            refused = next_status.with_refusal(view.job.status, command.operation, result)
            effects.append(SetStatus(refused, immediate=True))
    else:
        if not target.is_whole_job and (pods := tuple(view.pods_to_restart())):
            return [DeletePods(pods)]  # the next restart replaces the target of this one
        message = target.message(f"Command {command.name} ({command.uid})")
        new = next_status.apply_transition(
            view, transition, reason=command.action, message=message, command=command, target=target
        )
        effects.append(SetStatus(new, immediate=True))
        result = "carried out"
    return [
        *effects,
        RecordEvent(Reason.COMMAND_ISSUED, f"Command {command.action} received: {result}"),
        RecordEvent(Reason.EXECUTE_ACTION, f"Action {command.action} by Command {command.name}"),
        DeleteCommand(),
    ]


def _command_target(view: JobView, command: CommandRef) -> RestartTarget | InvalidTarget:
    if command.action not in set(Action):
        return InvalidTarget("there is no such action")
    if command.job_uid not in ("", view.job.metadata.uid):
        return InvalidTarget("it is for an earlier job of this name")
    if command.action not in RULES[view.phase].transitions:
        return InvalidTarget(_why_without_effect(view, command))
    return target_for_command(command, view.pod_tracker, version=view.job.status.version)


def _why_without_effect(view: JobView, command: CommandRef) -> str:
    """Return why a valid Command has no effect."""
    if command.action == Action.RESUME_JOB and view.job.spec.suspend:
        return "it changes nothing as long as spec.suspend is true"
    return f"it changes nothing in phase {view.phase}"


def _apply_policies(view: JobView) -> tuple[list[Effect], list[Effect]]:
    """Match the lifecycle events with policies; the first action with an effect is executed.

    Returns the handling of the events, and the transition if there is one.
    """
    if not view.pod_tracker.has_events:
        return [], []
    handled: list[LifecycleEvent] = []
    due_at: dict[LifecycleEvent, float] = {}
    pods, inputs = view.pod_counts, policies.policy_inputs(view.job)
    due, next_due = view.pod_tracker.due_events(view.monotonic_now, inputs=inputs)
    for event in due:
        policy = policies.match_policy(view.job, event, pods)
        transition, target = None, None
        if policy is not None and not policies.is_stale(view.pod_tracker, event, policy):
            transition = _transition_for(view, policy.action)
            target = target_for_event(policy.action, event)
        if policy is None or transition is None or target is None:
            handled.append(event)
            continue
        until = event.occurred_at + policies.delay(policy, event.event_type)
        if until > view.monotonic_now:
            due_at[event] = until
            continue
        message = target.message(_describe(event))
        new = next_status.apply_transition(
            view, transition, reason=policy.action, message=message, target=target
        )
        return [], [
            SetStatus(new, immediate=True),
            DropLifecycleEvents((*handled, event)),
            RecordEvent(Reason.EXECUTE_ACTION, f"Action {policy.action} after {message}"),
        ]
    return [
        *_acknowledge(handled, due_at, inputs=inputs),
        *_requeue_at(view, next_due, *due_at.values()),
    ], []


def _acknowledge(
    handled: list[LifecycleEvent], due_at: dict[LifecycleEvent, float], *, inputs: object
) -> Iterator[Effect]:
    """Drop handled events and defer those that only time changes."""
    if handled:
        yield DropLifecycleEvents(tuple(handled))
    deferred = {
        event: until
        for event, until in due_at.items()
        if event.event_type not in policies.TASK_EVENTS
    }
    if deferred:
        yield DeferLifecycleEvents(deferred, inputs)


def _requeue_at(view: JobView, *times_due: float | None) -> Iterator[Effect]:
    """Requeue the job at the first of these times on the monotonic clock."""
    first = min((each for each in times_due if each is not None), default=None)
    if first is not None:
        yield RequeueAfter(first - view.monotonic_now)


def _describe(event: LifecycleEvent) -> str:
    pod = f" of {event.pod}" if event.pod else ""
    cause = f": {event.failure}" if event.failure else ""
    return f"{event.event_type}{pod}{cause}"


def _transition(view: JobView) -> list[Effect]:
    """Enter the phase that the pods require."""
    transition = RULES[view.phase].next_transition(view)
    if transition is None:
        return []
    new = next_status.apply_transition(
        view, transition, reason=transition.reason, message=transition.message
    )
    return [SetStatus(new, immediate=True)]


def _fail_if_retries_exhausted(view: JobView) -> list[Effect]:
    """Fail a restarting job without retries left.

    This precedes Commands: a job that is stopped and resumed now would exceed its limit.
    """
    transition = RULES[view.phase].next_transition(view)
    failed = transition is not None and transition.to in FINAL_PHASES
    return _transition(view) if failed else []


def _fail_too_large(view: JobView) -> list[Effect]:
    """Fail a job with more pods than the controller lists, before anything is created for it."""
    transition = Transition(to=JobPhase.FAILED, bumps_version=True)
    new = next_status.apply_transition(
        view, transition, reason=TOO_MANY_PODS, message=view.size_error
    )
    return [
        SetStatus(new, immediate=True),
        RecordEvent(Reason.TOO_MANY_PODS, view.size_error, warning=True),
    ]


def _sync(view: JobView) -> Iterator[Effect]:
    """Pending and Running: create and update all objects of the job."""
    rejected = [pod for pod in view.pod_tracker.excess() if pod.rejection]
    # First, because an error in the rest ends this sync and delays the next one. A new leader would
    # take a rejected pod that is deleted without this write for an evicted one.
    yield from _update_counts(view, immediate=bool(view.last_errors or rejected))
    if view.pvcs_stale and view.phase is JobPhase.PENDING:
        yield EnsureVolumeClaims()
        return
    if view.plugin_objects_stale:
        yield EnsurePluginObjects()
    if view.podgroup is None:
        if view.without_podgroup is None:
            yield CreatePodGroup(view.podgroup_spec)
        yield from _warn_unschedulable(view)
    elif not view.podgroup_terminating:
        changes = podgroups.spec_patch(view.podgroup.spec, view.podgroup_spec)
        if changes:
            yield UpdatePodGroup(changes, view.podgroup.metadata)
        yield from _warn_unschedulable(view)
    due_at = {pod.uid: view.pod_tracker.replace_at(pod) for pod in rejected}
    later = [until for until in due_at.values() if until > view.monotonic_now]
    yield from _requeue_at(view, *later)
    obsolete = tuple(
        pod
        for pod in (
            *view.pod_tracker.outdated(view.job.status.version),
            *view.pod_tracker.excess(),
        )
        if due_at.get(pod.uid, view.monotonic_now) <= view.monotonic_now
    )
    if obsolete:
        yield from _warn_rejected(obsolete)
        yield DeletePods(obsolete)
    if view.admitted:
        yield from _create_missing_pods(view)


def _warn_rejected(pods: tuple[PodInfo, ...]) -> Iterator[Effect]:
    for pod in pods:
        if pod.rejection:
            message = f"pod {pod.name} was rejected by its node ({pod.rejection}), and is replaced"
            yield RecordEvent(Reason.POD_REJECTED, message, warning=True)


def _create_missing_pods(view: JobView) -> Iterator[Effect]:
    """Create the missing pods of tasks whose dependencies are met."""
    missing = {
        task.name: tuple(view.pod_tracker.missing(task.name))
        for task in view.job.spec.tasks
        if view.pod_tracker.index_count(task.name) < task.replicas
        and podgroups.dependencies_met(task, partial(_has_started, view))
    }
    if any(missing.values()):
        without = view.without_podgroup
        yield CreatePods(missing, without.description if without is not None else "")


def _delete_for_restart(view: JobView) -> list[Effect]:
    """Restarting: delete the old pods, then leave the phase. Creates nothing."""
    obsolete = tuple(_pods_to_delete(view))
    if obsolete:
        return [DeletePods(obsolete)]
    if view.restart_target.is_whole_job and view.podgroup is not None:
        # The restarted job is queued with a new PodGroup. The job stays in this phase until the
        # old one is deleted, so that a PodGroup observed in this phase is always the old one.
        uid = view.podgroup.metadata.uid
        delete: list[Effect] = [] if view.podgroup_terminating else [DeletePodGroup(uid)]
        return [*delete, *_update_counts(view)]
    handled, transition = _apply_policies(view)
    return [*handled, *(transition or _transition(view) or _update_counts(view))]


def _kill(view: JobView) -> Iterator[Effect]:
    """The other phases: delete everything except the finished pods."""
    obsolete = (*view.pod_tracker.active(), *view.pod_tracker.excess())
    if obsolete:
        yield DeletePods(obsolete)
    if view.podgroup is not None and not view.podgroup_terminating:
        yield DeletePodGroup(view.podgroup.metadata.uid)
    counted = next_status.update_counts(view)
    unmarked = next_status.without_plugin_keys(counted)
    if unmarked != counted:
        yield DeletePluginObjects()
    if unmarked != view.job.status:
        yield SetStatus(unmarked, immediate=False)
    yield from _apply_ttl(view)


def _pods_to_delete(view: JobView) -> Iterator[PodInfo]:
    """Yield the pods that a restart deletes and whose deletion was not requested yet."""
    version, target = view.job.status.version, view.restart_target
    yield from view.pod_tracker.outdated(version)
    yield from view.pod_tracker.excess()
    yield from view.pods_to_restart()
    if target.is_whole_job and not view.resuming:
        yield from (pod for pod in view.pod_tracker.finished() if pod.version < version)


def _has_started(view: JobView, name: str) -> bool:
    """Whether a task has started ``minAvailable`` pods; true for a name without a task."""
    task = next((task for task in view.job.spec.tasks if task.name == name), None)
    if task is None or task.min_available is None:
        return True
    pods = view.pod_counts
    succeeded = pods.tasks.get(name, {}).get(PodPhase.SUCCEEDED, 0)
    return succeeded + pods.ready.get(name, 0) >= task.min_available


def _warn_ineffective_policies(view: JobView) -> Iterator[Effect]:
    """Warn about policies without effect."""
    for event in policies.unreachable_events(view.job):
        message = f"a policy waits for {event}, which never happens"
        yield RecordEvent(Reason.POLICY_NEVER_FIRES, message, warning=True)


def _warn_unschedulable(view: JobView) -> Iterator[Effect]:
    """Warn why the gang does not start: the scheduler's condition, and what it cannot know."""
    condition = view.unschedulable
    if condition is not None:
        meta, what = view.job.metadata, "PodGroup" if view.podgroup is not None else "pod of"
        message = f"{what} {meta.namespace}:{meta.name} {condition.type.lower()}: "
        yield RecordEvent(Reason.PODGROUP_PENDING, message + condition.message, warning=True)
    if view.unsatisfiable_reason:
        yield RecordEvent(Reason.GANG_UNSATISFIABLE, view.unsatisfiable_reason, warning=True)
    for task in view.job.spec.tasks:
        failed = view.pod_counts.tasks.get(task.name, {}).get(PodPhase.FAILED)
        if failed and policies.can_never_fire(view.job, task):
            message = (
                f"a pod of task {task.name} has failed, but no policy for TaskFailed will act: it"
                " counts restarts of containers, and the task's restartPolicy is Never"
            )
            yield RecordEvent(Reason.POLICY_NEVER_FIRES, message, warning=True)


def _update_counts(view: JobView, *, immediate: bool = False) -> Iterator[Effect]:
    counted = next_status.update_counts(view)
    if counted != view.job.status:
        yield SetStatus(counted, immediate=immediate)


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
