"""Decide the next step for a job. Pure: returns effects, and changes neither view nor tracker.

The controller executes the effects and decides again until there are none. So each decision is one
step, and a controller that stops between two steps continues from the informers alone. The order of
effects is significant: a phase is written before anything is deleted, and a Command is deleted
after it was executed.
"""

from collections.abc import Iterator

import msgspec

from ..machinery.reconcile.events import Event
from ..model.command import Command
from ..model.controlled_resources import executed_command, operation_results
from ..model.job import Action
from ..model.job_actions import Transition
from ..model.job_reasons import Reason
from .effects import DeleteCommand, DeletePods, Effect, SetStatus
from .status import next_status, policies
from .status.job_view import JobView
from .status.phases import RULES
from .status.restarts import SUSPENDED, InvalidTarget, RestartTarget, target_for_command


def decide(view: JobView, command: Command | None = None) -> list[Effect]:
    """Return the next step for the job; *command*, if any, takes precedence over the pods."""
    if view.job.metadata.deletion_timestamp is not None:
        # The garbage collector deletes everything else.
        return [DeleteCommand()] if command else []
    if not view.job.status.state.phase:
        return _start(view, command)
    return _step(view, command)


def _start(view: JobView, command: Command | None) -> list[Effect]:
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


def _step(view: JobView, command: Command | None) -> list[Effect]:
    """Return the next step for a job with a phase."""
    if command is not None and _was_executed(view, command):
        return [DeleteCommand()]  # executed before a crash, or its deletion failed
    rules = RULES[view.phase]
    if required := rules.fail(view) or _apply_suspend(view):
        return required
    return _apply_command(view, command) if command is not None else rules.step(view)


def _was_executed(view: JobView, command: Command) -> bool:
    """Return whether the status shows that the Command, or an earlier one for the same operation of
    the REST API, was executed or refused."""
    executed = executed_command(view.job.status)
    if executed is not None and executed.uid == command.metadata.uid:
        return True
    results = operation_results(view.job.status) if command.operation else ()
    return any(each.operation == command.operation for each in results)


def _apply_suspend(view: JobView) -> list[Effect]:
    """Stop or resume the job if ``spec.suspend`` requires it."""
    suspend, rules = view.job.spec.suspend, RULES[view.phase]
    is_stopped = rules.can_be_resumed
    if suspend == (is_stopped and view.job.status.state.reason == SUSPENDED):
        return []
    transitions = rules.transitions(view)
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
        Event(Reason.EXECUTE_ACTION, f"Job {result}: {message}"),
    ]


def _apply_command(view: JobView, command: Command) -> list[Effect]:
    """Execute a Command, or report why it cannot be executed."""
    name, target = command.metadata.name, _command_target(view, command)
    effects: list[Effect] = []
    if isinstance(target, InvalidTarget):
        result = target.reason
        if command.operation:
            refused = next_status.with_refusal(view.job.status, command.operation, result)
            effects.append(SetStatus(refused, immediate=True))
    else:
        if not target.is_whole_job and (pods := tuple(view.pods_to_restart())):
            return [DeletePods(pods)]  # the next restart replaces the target of this one
        transition = RULES[view.phase].transitions(view)[command.action]
        message = target.message(f"Command {name} ({command.metadata.uid})")
        new = next_status.apply_transition(
            view, transition, reason=command.action, message=message, command=command, target=target
        )
        effects.append(SetStatus(new, immediate=True))
        result = "carried out"
    return [
        *effects,
        Event(Reason.COMMAND_ISSUED, f"Command {command.action} received: {result}"),
        Event(Reason.EXECUTE_ACTION, f"Action {command.action} by Command {command.metadata.name}"),
        DeleteCommand(),
    ]


def _command_target(view: JobView, command: Command) -> RestartTarget | InvalidTarget:
    if command.action not in set(Action):
        return InvalidTarget("there is no such action")
    job_uid = command.target.uid if command.target is not None else ""
    if job_uid not in ("", view.job.metadata.uid):
        return InvalidTarget("it is for an earlier job of this name")
    if command.action not in RULES[view.phase].transitions(view):
        return InvalidTarget(_why_without_effect(view, command))
    return target_for_command(command, view.pod_tracker, version=view.job.status.version)


def _why_without_effect(view: JobView, command: Command) -> str:
    """Return why a valid Command has no effect."""
    if command.action == Action.RESUME_JOB and view.job.spec.suspend:
        return "it changes nothing as long as spec.suspend is true"
    return f"it changes nothing in phase {view.phase}"


def _warn_ineffective_policies(view: JobView) -> Iterator[Effect]:
    """Warn about policies without effect."""
    for event in policies.unreachable_events(view.job):
        message = f"a policy waits for {event}, which never happens"
        yield Event(Reason.POLICY_NEVER_FIRES, message, warning=True)
