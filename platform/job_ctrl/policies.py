"""Which policy answers a happening. Pure.

A task's policies are asked before the job's; in a list the first that matches wins. Happenings of
another incarnation or of an older version of the job answer to nobody.
"""

from collections.abc import Iterator

import msgspec

from ..model import durations
from ..model.base import ApiStruct
from ..model.job import POLICY_ACTIONS, Action, Job, JobEvent, LifecyclePolicy, TaskSpec
from ..model.pod import PodPhase
from .pod_tracker import LifecycleEvent, PodCounts, PodTracker


class _Spec(ApiStruct, frozen=True):
    restart_policy: str = ""


class _Template(ApiStruct, frozen=True):
    spec: _Spec = _Spec()


ACTIONS = frozenset(POLICY_ACTIONS)
"""What a policy can do; any other word means: nothing but looking again."""

IGNORED_EVENTS = frozenset({JobEvent.OUT_OF_SYNC, JobEvent.COMMAND_ISSUED, JobEvent.POD_RUNNING})
"""Events that no policy is asked about, though it may name them."""

TASK_EVENTS = frozenset({JobEvent.TASK_COMPLETED, JobEvent.TASK_FAILED})
"""Events whose answer depends on all pods of the task."""

COMMAND_ACTIONS = ACTIONS - {Action.RESTART_TASK, Action.RESTART_POD, Action.RESTART_PARTITION}
"""What a Command can do: it names no part of the job."""

UNKNOWN_DELAY = 1.0
"""Seconds for which a PodGroup must stay Unknown before JobUnknown is acted on: the period of the
reference's scheduler, which seldom sees a shorter gap."""


def policy_inputs(job: Job) -> tuple[object, ...]:
    """All that judging happenings depends on, but for the pods."""
    spec, status = job.spec, job.status
    by_task = tuple((task.name, task.policies) for task in spec.tasks)
    about = (job.metadata.uid, status.version, status.state.phase)
    return (*about, spec.suspend, spec.policies, by_task)


def match_policy(job: Job, event: LifecycleEvent, pods: PodCounts) -> LifecyclePolicy | None:
    """The policy that answers *happening*; ``None`` if nothing is to be done about it."""
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
    """Return the seconds between *event* and the action of *policy*: its timeout, if that is valid.

    An unknown gang is given a moment: its PodGroup is Unknown, too, while a deleted pod is being
    replaced.
    """
    try:
        timeout = durations.parse(policy.timeout or "0s").total_seconds()
    except durations.DurationError:
        timeout = 0.0
    return max(timeout, UNKNOWN_DELAY) if event_type is JobEvent.JOB_UNKNOWN else timeout


def is_stale(tracker: PodTracker, event: LifecycleEvent, policy: LifecyclePolicy) -> bool:
    """Whether *policy* would hit a pod that is well: one that was replaced, or has gone on."""
    if policy.action == Action.RESTART_POD and tracker.is_replaced(event):
        return True
    lasting = event.event_type in (JobEvent.POD_PENDING, JobEvent.POD_FAILED)
    return lasting and delay(policy, event.event_type) > 0 and not tracker.still_applies(event)


def can_never_fire(job: Job, task: TaskSpec) -> bool:
    """Whether a policy waits for the failure of *task*, whose containers are never restarted."""
    if all(
        JobEvent.TASK_FAILED not in {policy.event, *policy.events}
        for policy in (*task.policies, *job.spec.policies)
    ):
        return False
    return msgspec.json.decode(task.template, type=_Template).spec.restart_policy == "Never"


def unreachable_events(job: Job) -> Iterator[str]:
    """Events that policies wait for and that never happen."""
    tasks = (policy for task in job.spec.tasks for policy in task.policies)
    events = {
        event for each in (*tasks, *job.spec.policies) for event in (each.event, *each.events)
    }
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
    """Whether the containers of a task have been restarted as often as they may."""
    if task is None or not task.replicas:
        return False
    return pods.restarts.get(task.name, 0) >= task.max_retry
