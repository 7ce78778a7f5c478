"""What must happen to a job. Pure: it says what to do, and does none of it.

The controller asks again after each round of effects, until there is nothing left to do; so each
answer is one step, and a controller that dies between two steps finds the next one from the caches
alone. The order within an answer matters: a new phase is written before anything is deleted, and a
Command is removed after it has been obeyed.
"""

from collections.abc import Iterator
from functools import partial

from ..model import times
from ..model.job import FINAL_PHASES, Action, JobPhase
from ..model.pod import PodPhase
from . import podgroups, policies, status
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
    Reason,
    RecordEvent,
    RequeueAfter,
    SetStatus,
    UpdatePodGroup,
)
from .job_view import CommandRef, JobView
from .phases import RULES, SyncMode, Transition
from .pod_tracker import LifecycleEvent, PodInfo
from .restarts import SUSPENDED, RestartTarget

_SUSPEND_RESULT = {True: "suspended", False: "goes on"}


def decide(view: JobView, command: CommandRef | None = None) -> list[Effect]:
    """The next step for the job that *view* shows: first the *order*, if there is one."""
    if view.job.metadata.deletion_timestamp is not None:
        return [DeleteCommand()] if command else []  # the rest goes with the job
    if not view.job.status.state.phase:
        return [
            SetStatus(status.initial_status(view), immediate=True),
            *_warn_ineffective_policies(view),
        ]
    if command is not None and command.uid in view.job.status.state.message:
        return [DeleteCommand()]  # it was obeyed before a crash, or could not be deleted
    if view.phase is JobPhase.RESTARTING and (failed := _fail_if_retries_exhausted(view)):
        return failed
    if turned := _apply_suspend(view):
        return turned
    if command is not None:
        return _apply_command(view, command)
    upkeep = RULES[view.phase].sync_mode
    if upkeep is SyncMode.RESTART:
        return _delete_for_restart(view)
    asides, move = _apply_policies(view)
    step = move or _transition(view) or (_sync(view) if upkeep is SyncMode.SYNC else _kill(view))
    return [*asides, *step]


def _apply_suspend(view: JobView) -> list[Effect]:
    """Do what ``spec.suspend`` says, if it is not done: stop the job, or have it go on."""
    state, wanted = view.job.status.state, view.job.spec.suspend
    done = state.reason == SUSPENDED and Action.RESUME_JOB in RULES[view.phase].transitions
    if wanted == done:
        return []
    if wanted:
        rest = (
            Transition(to=view.phase)
            if Action.RESUME_JOB in RULES[view.phase].transitions
            else None
        )
        go, reason, said = (
            RULES[view.phase].transitions.get(Action.ABORT_JOB) or rest,
            SUSPENDED,
            "true",
        )
    else:
        go, reason, said = (
            RULES[view.phase].transitions[Action.RESUME_JOB],
            Action.RESUME_JOB,
            "false",
        )
    if go is None:
        return []  # it has ended, or is about to
    message = f"spec.suspend is {said}"
    return [
        SetStatus(
            status.apply_transition(view, go, reason=reason, message=message), immediate=True
        ),
        RecordEvent(Reason.EXECUTE_ACTION, f"Job {_SUSPEND_RESULT[wanted]}: {message}"),
    ]


def _transition_for(view: JobView, action: str) -> Transition | None:
    """Where *action* leads; nothing but ``spec.suspend`` itself resumes what it has stopped."""
    if action == Action.RESUME_JOB and view.job.spec.suspend:
        return None
    return RULES[view.phase].transitions.get(Action(action))


def _apply_command(view: JobView, command: CommandRef) -> list[Effect]:
    """Carry a Command out."""
    go = (
        _transition_for(view, command.action)
        if command.action in policies.COMMAND_ACTIONS
        else None
    )
    effects: list[Effect] = []
    if go is not None:
        message = f"Command {command.name} ({command.uid})"
        moved = status.apply_transition(view, go, reason=command.action, message=message)
        effects.append(SetStatus(moved, immediate=True))
    done = "carried out" if go else _why_ignored(view, command)
    return [
        *effects,
        RecordEvent(Reason.COMMAND_ISSUED, f"Command {command.action} received: {done}"),
        RecordEvent(Reason.EXECUTE_ACTION, f"Action {command.action} by Command {command.name}"),
        DeleteCommand(),
    ]


def _why_ignored(view: JobView, command: CommandRef) -> str:
    """Why the Command changes nothing."""
    if command.action not in set(Action):
        return "there is no such action"
    if command.action in policies.ACTIONS - policies.COMMAND_ACTIONS:
        return "it changes nothing, as a Command cannot say of which pods"
    if command.action == Action.RESUME_JOB and view.job.spec.suspend:
        return "it changes nothing as long as spec.suspend is true"
    return f"it changes nothing in phase {view.phase}"


def _apply_policies(view: JobView) -> tuple[list[Effect], list[Effect]]:
    """Ask the policies about what happened; the first action that this phase knows is taken.

    Returns what is to be noted in any case, and the move to another phase, if there is one.
    """
    if not view.pod_tracker.has_events:
        return [], []
    judged: list[LifecycleEvent] = []
    waits: dict[LifecycleEvent, float] = {}
    pods, terms = view.pod_counts, policies.policy_inputs(view.job)
    due, later = view.pod_tracker.due_events(view.monotonic_now, inputs=terms)
    for happening in due:
        policy = policies.match_policy(view.job, happening, pods)
        go, target = None, None
        if policy is not None and not policies.is_stale(view.pod_tracker, happening, policy):
            go = _transition_for(view, policy.action)
            target = RestartTarget.for_event(Action(policy.action), happening)
        if policy is None or go is None or target is None:
            judged.append(happening)
            continue
        until = happening.occurred_at + policies.delay(policy, happening.event_type)
        if until > view.monotonic_now:
            waits[happening] = until
            continue
        why = target.message(_describe(happening))
        moved = status.apply_transition(view, go, reason=policy.action, message=why)
        return [], [
            SetStatus(moved, immediate=True),
            DropLifecycleEvents((*judged, happening)),
            RecordEvent(Reason.EXECUTE_ACTION, f"Action {policy.action} after {why}"),
        ]
    return [
        *_acknowledge(judged, waits, inputs=terms),
        *_requeue_at(view, later, *waits.values()),
    ], []


def _acknowledge(
    handled: list[LifecycleEvent], due_at: dict[LifecycleEvent, float], *, inputs: object
) -> Iterator[Effect]:
    """What need not be judged at the next look, if nothing happens before."""
    if handled:
        yield DropLifecycleEvents(tuple(handled))
    waiting = {
        one: until for one, until in due_at.items() if one.event_type not in policies.TASK_EVENTS
    }
    if waiting:
        yield DeferLifecycleEvents(waiting, inputs)


def _requeue_at(view: JobView, *times_due: float | None) -> Iterator[Effect]:
    """Look again at the first of these moments of the monotonic clock."""
    first = min((one for one in times_due if one is not None), default=None)
    if first is not None:
        yield RequeueAfter(first - view.monotonic_now)


def _describe(event: LifecycleEvent) -> str:
    about = f" of {event.pod}" if event.pod else ""
    code = f" with exit code {event.exit_code}" if event.exit_code else ""
    return f"{event.event_type}{about}{code}"


def _transition(view: JobView) -> list[Effect]:
    """Move on to the phase that the pods ask for."""
    go = RULES[view.phase].next_transition(view)
    if go is None:
        return []
    moved = status.apply_transition(view, go, reason=go.reason, message=go.message)
    return [SetStatus(moved, immediate=True)]


def _fail_if_retries_exhausted(view: JobView) -> list[Effect]:
    """End a job that restarts with no retries left.

    No order comes before that: a job that is stopped and resumed now would go on past its limit.
    """
    go = RULES[view.phase].next_transition(view)
    return _transition(view) if go is not None and go.to in FINAL_PHASES else []


def _sync(view: JobView) -> Iterator[Effect]:
    """Pending and Running: see to it that everything is there that should be."""
    # First, as the rest may fail (again), which ends this look and puts off the next one.
    yield from _update_counts(view, immediate=bool(view.last_errors))
    if view.pvcs_stale and view.phase is JobPhase.PENDING:
        yield EnsureVolumeClaims()
        return
    if view.plugin_objects_stale:
        yield EnsurePluginObjects()
    if view.podgroup is None:
        yield CreatePodGroup(view.podgroup_spec)
    elif not view.podgroup_terminating:
        changes = podgroups.spec_patch(view.podgroup.spec, view.podgroup_spec)
        if changes:
            yield UpdatePodGroup(changes, view.podgroup.metadata)
        yield from _warn_unschedulable(view)
    unwanted = (*view.pod_tracker.outdated(view.job.status.version), *view.pod_tracker.excess())
    if unwanted:
        yield DeletePods(unwanted)
    if view.admitted:
        yield from _create_missing_pods(view)


def _create_missing_pods(view: JobView) -> Iterator[Effect]:
    """Make the pods that are missing and may start."""
    missing = {
        task.name: tuple(view.pod_tracker.missing(task.name))
        for task in view.job.spec.tasks
        if view.pod_tracker.index_count(task.name) < task.replicas
        and podgroups.dependencies_met(task, partial(_has_started, view))
    }
    if any(missing.values()):
        yield CreatePods(missing)


def _delete_for_restart(view: JobView) -> list[Effect]:
    """Restarting: let the old go, then move on. Nothing is made in this phase."""
    unwanted = tuple(_pods_to_delete(view))
    if unwanted:
        return [DeletePods(unwanted)]
    if view.restart_target.is_whole_job and view.podgroup is not None:
        # The new run is admitted by a PodGroup of its own; until the old one is gone the job
        # stays here, so that no PodGroup seen in this phase can be the new one.
        uid = view.podgroup.metadata.uid
        gone: list[Effect] = [] if view.podgroup_terminating else [DeletePodGroup(uid)]
        return [*gone, *_update_counts(view)]
    asides, move = _apply_policies(view)
    return [*asides, *(move or _transition(view) or _update_counts(view))]


def _kill(view: JobView) -> Iterator[Effect]:
    """The other phases: let everything go but the finished pods."""
    unwanted = (*view.pod_tracker.active(), *view.pod_tracker.excess())
    if unwanted:
        yield DeletePods(unwanted)
    if view.podgroup is not None and not view.podgroup_terminating:
        yield DeletePodGroup(view.podgroup.metadata.uid)
    counted = status.update_counts(view)
    unmarked = status.without_plugin_keys(counted)
    if unmarked != counted:
        yield DeletePluginObjects()
    if unmarked != view.job.status:
        yield SetStatus(unmarked, immediate=False)
    yield from _apply_ttl(view)


def _pods_to_delete(view: JobView) -> Iterator[PodInfo]:
    """The pods that a restart lets go, as far as they have not been asked to."""
    version, target = view.job.status.version, view.restart_target
    yield from view.pod_tracker.outdated(version)
    yield from view.pod_tracker.excess()
    yield from view.pods_to_restart()
    if target.is_whole_job and not view.resuming:
        yield from (pod for pod in view.pod_tracker.finished() if pod.version < version)


def _has_started(view: JobView, name: str) -> bool:
    """Whether the task of that name has its minimum; one that the job does not have always has."""
    task = next((task for task in view.job.spec.tasks if task.name == name), None)
    if task is None or task.min_available is None:
        return True
    pods = view.pod_counts
    succeeded = pods.tasks.get(name, {}).get(PodPhase.SUCCEEDED, 0)
    return succeeded + pods.ready.get(name, 0) >= task.min_available


def _warn_ineffective_policies(view: JobView) -> Iterator[Effect]:
    """Say at the start what will have no effect."""
    for event in policies.unreachable_events(view.job):
        said = f"a policy waits for {event}, which never happens"
        yield RecordEvent(Reason.POLICY_NEVER_FIRES, said, warning=True)


def _warn_unschedulable(view: JobView) -> Iterator[Effect]:
    """Say why the gang waits: what the scheduler found, and what it cannot know."""
    found = podgroups.unschedulable_condition(view.podgroup) if view.podgroup else None
    if found is not None:
        meta = view.job.metadata
        said = f"PodGroup {meta.namespace}:{meta.name} {found.type.lower()}: {found.message}"
        yield RecordEvent(Reason.PODGROUP_PENDING, said, warning=True)
    if view.unsatisfiable_reason:
        yield RecordEvent(Reason.GANG_UNSATISFIABLE, view.unsatisfiable_reason, warning=True)
    for task in view.job.spec.tasks:
        failed = view.pod_counts.tasks.get(task.name, {}).get(PodPhase.FAILED)
        if failed and policies.can_never_fire(view.job, task):
            said = (
                f"a pod of task {task.name} has failed, but no policy for TaskFailed will act: it"
                " counts restarts of containers, and the task's restartPolicy is Never"
            )
            yield RecordEvent(Reason.POLICY_NEVER_FIRES, said, warning=True)


def _update_counts(view: JobView, *, immediate: bool = False) -> Iterator[Effect]:
    counted = status.update_counts(view)
    if counted != view.job.status:
        yield SetStatus(counted, immediate=immediate)


def _apply_ttl(view: JobView) -> Iterator[Effect]:
    """Remove a job whose time after its end is over."""
    ttl, ended = view.job.spec.ttl_seconds_after_finished, view.job.status.state
    if ttl is None or view.phase not in FINAL_PHASES or not ended.last_transition_time:
        return
    left = (times.parse(ended.last_transition_time) - view.now).total_seconds() + ttl
    yield RequeueAfter(left) if left > 0 else DeleteJob()
