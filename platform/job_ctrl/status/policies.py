"""Match lifecycle events with policies. Pure.

The policies of a task precede those of the job; in a list the first match counts. Events of another
job of the same name, or of an older version of the job, match no policy.
"""

from collections.abc import Iterator, Mapping

import msgspec

from ...machinery.reconcile.controller import RequeueAfter
from ...machinery.reconcile.events import Event
from ...model import durations
from ...model.base import ApiStruct
from ...model.job import Action, Job, JobEvent, LifecyclePolicy, TaskSpec
from ...model.job_actions import ACTIONS, Transition
from ...model.job_reasons import Reason
from ...model.pod import PodPhase
from ..effects import (
    DeferLifecycleEvents,
    DropLifecycleEvents,
    Effect,
    SetStatus,
)
from ..tracker.pod_info import LifecycleEvent, PodCounts
from ..tracker.pod_tracker import PodTracker
from . import next_status
from .job_view import JobView
from .restarts import target_for_event


class _Spec(ApiStruct, frozen=True):
    restart_policy: str = ""


class _Template(ApiStruct, frozen=True):
    spec: _Spec = _Spec()


IGNORED_EVENTS = frozenset({JobEvent.OUT_OF_SYNC, JobEvent.COMMAND_ISSUED, JobEvent.POD_RUNNING})
"""Events that match no policy, though a policy may name them."""

TASK_EVENTS = frozenset({JobEvent.TASK_COMPLETED, JobEvent.TASK_FAILED})
"""Events that depend on all pods of the task."""

UNKNOWN_DELAY = 1.0
"""Minimum seconds between the event Unknown of a PodGroup and the action: the period of Volcano's
scheduler, which rarely observes a shorter interval."""


def policy_inputs(job: Job) -> tuple[object, ...]:
    """Return everything that matching events depends on, except the pods."""
    spec, status = job.spec, job.status
    by_task = tuple((task.name, task.policies) for task in spec.tasks)
    identity = (job.metadata.uid, status.version, status.state.phase)
    return (*identity, spec.suspend, spec.policies, by_task)


def apply_policies(
    view: JobView, transitions: Mapping[str, Transition]
) -> tuple[list[Effect], list[Effect]]:
    """Match the lifecycle events with policies; the first action with an effect is executed.

    An action has an effect if it is in *transitions*. Returns the handling of the events, and the
    transition if there is one.
    """
    if not view.pod_tracker.has_events:
        return [], []
    handled: list[LifecycleEvent] = []
    due_at: dict[LifecycleEvent, float] = {}
    pods, inputs = view.pod_counts, policy_inputs(view.job)
    due, next_due = view.pod_tracker.due_events(view.monotonic_now, inputs=inputs)
    for event in due:
        policy = match_policy(view.job, event, pods)
        transition, target = None, None
        if policy is not None and not is_stale(view.pod_tracker, event, policy):
            transition = transitions.get(policy.action)
            target = target_for_event(policy.action, event)
        if policy is None or transition is None or target is None:
            handled.append(event)
            continue
        until = event.occurred_at + delay(policy, event.event_type)
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
            Event(Reason.EXECUTE_ACTION, f"Action {policy.action} after {message}"),
        ]
    return [
        *_acknowledge(handled, due_at, inputs=inputs),
        *requeue_at(view, next_due, *due_at.values()),
    ], []


def requeue_at(view: JobView, *times_due: float | None) -> Iterator[Effect]:
    """Requeue the job at the first of these times on the monotonic clock."""
    first = min((each for each in times_due if each is not None), default=None)
    if first is not None:
        yield RequeueAfter(first - view.monotonic_now)


def match_policy(job: Job, event: LifecycleEvent, pods: PodCounts) -> LifecyclePolicy | None:
    """Return the policy that *event* matches; ``None`` if none has an effect."""
    task = next((task for task in job.spec.tasks if task.name == event.task), None)
    if event.event_type in IGNORED_EVENTS or _is_outdated(job, event):
        return None
    if event.event_type is JobEvent.TASK_COMPLETED and not _task_completed(task, pods):
        return None
    if event.event_type is JobEvent.TASK_FAILED and not _task_failed(task, pods):
        return None
    for policy in (*(task.policies if task else ()), *job.spec.policies):
        if _matches(policy, event):
            return policy if policy.action in ACTIONS else None
    return None


def delay(policy: LifecyclePolicy, event_type: JobEvent) -> float:
    """Return the seconds between an event and the action of *policy*: its timeout, if it is valid.

    The event Unknown has a minimum delay: a PodGroup is also Unknown while a deleted pod is
    replaced.
    """
    try:
        timeout = durations.parse(policy.timeout or "0s").total_seconds()
    except durations.DurationError:
        timeout = 0.0
    return max(timeout, UNKNOWN_DELAY) if event_type is JobEvent.JOB_UNKNOWN else timeout


def is_stale(pods: PodTracker, event: LifecycleEvent, policy: LifecyclePolicy) -> bool:
    """Whether *event* no longer applies: its pod was replaced, or has left the phase."""
    if policy.action == Action.RESTART_POD and pods.is_replaced(event):
        return True
    lasting = event.event_type in (JobEvent.POD_PENDING, JobEvent.POD_FAILED)
    return lasting and delay(policy, event.event_type) > 0 and not pods.still_applies(event)


def can_never_fire(job: Job, task: TaskSpec) -> bool:
    """Whether a policy names TaskFailed, but the containers of *task* are never restarted."""
    if all(
        JobEvent.TASK_FAILED not in {policy.event, *policy.events}
        for policy in (*task.policies, *job.spec.policies)
    ):
        return False
    return msgspec.json.decode(task.template, type=_Template).spec.restart_policy == "Never"


def unreachable_events(job: Job) -> Iterator[str]:
    """Yield the events that policies name and that never occur."""
    given = [*job.spec.policies, *(one for task in job.spec.tasks for one in task.policies)]
    events = {event for each in given for event in (each.event, *each.events)}
    yield from sorted(events & {JobEvent.JOB_UPDATED})


def _matches(policy: LifecyclePolicy, event: LifecycleEvent) -> bool:
    events = {policy.event, *policy.events} - {""}
    if event.event_type in events or JobEvent.ANY in events:
        return event.event_type is not JobEvent.POD_PENDING or bool(policy.timeout)
    return policy.exit_code is not None and policy.exit_code == event.exit_code


def _is_outdated(job: Job, event: LifecycleEvent) -> bool:
    if event.owner != job.metadata.uid:
        return True
    return event.version is not None and event.version < job.status.version


def _task_completed(task: TaskSpec | None, pods: PodCounts) -> bool:
    if task is None or not task.replicas:
        return False
    return pods.tasks.get(task.name, {}).get(PodPhase.SUCCEEDED, 0) >= task.replicas


def _task_failed(task: TaskSpec | None, pods: PodCounts) -> bool:
    """Whether the containers of a task have reached their restart limit."""
    if task is None or not task.replicas:
        return False
    return pods.restarts.get(task.name, 0) >= task.max_retry


def _acknowledge(
    handled: list[LifecycleEvent], due_at: dict[LifecycleEvent, float], *, inputs: object
) -> Iterator[Effect]:
    """Drop handled events and defer those that only time changes."""
    if handled:
        yield DropLifecycleEvents(tuple(handled))
    deferred = {
        event: until for event, until in due_at.items() if event.event_type not in TASK_EVENTS
    }
    if deferred:
        yield DeferLifecycleEvents(deferred, inputs)


def _describe(event: LifecycleEvent) -> str:
    pod = f" of {event.pod}" if event.pod else ""
    cause = f": {event.failure}" if event.failure else ""
    return f"{event.event_type}{pod}{cause}"
