"""What commands may do: actions and their targets, by kind. Pure.

The routes, the documentation and its test are derived from :data:`TABLE`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ...model.job import FINAL_PHASES, Action, Job
from ...model.job_actions import ACTIONS, Target
from ...model.meta import ObjectMeta
from ...model.names import PARTITION, POD, TASK
from ...model.queue import Queue, QueueState
from ...wire.commands import QUEUES_KIND, CommandTarget
from ...wire.jobs import Phase
from ..jobs.kinds import JobKind
from ..jobs.views import CachedJob, CachedObject
from ..problems import ProblemError, invalid_fields

MAX_TARGETS = 1000
"""Maximum number of jobs that one request commands."""


class CommandAction(StrEnum):
    """Action on a job."""

    SUSPEND = "suspend"
    RESUME = "resume"
    RESTART = "restart"
    ABORT = "abort"
    TERMINATE = "terminate"
    COMPLETE = "complete"


class QueueAction(StrEnum):
    """Action on a queue."""

    OPEN = "open"
    CLOSE = "close"


class PatchAction(StrEnum):
    """Actions that a patch of ``spec.suspend`` executes, as they are recorded."""

    SUSPEND = "Suspend"
    RESUME = "Resume"


TABLE: Mapping[CommandAction | QueueAction, Mapping[CommandTarget, Action]] = {
    CommandAction.SUSPEND: {CommandTarget.JOB: Action.ABORT_JOB},
    CommandAction.RESUME: {CommandTarget.JOB: Action.RESUME_JOB},
    CommandAction.RESTART: {
        CommandTarget.JOB: Action.RESTART_JOB,
        CommandTarget.TASK: Action.RESTART_TASK,
        CommandTarget.POD: Action.RESTART_POD,
        CommandTarget.PARTITION: Action.RESTART_PARTITION,
    },
    CommandAction.ABORT: {CommandTarget.JOB: Action.ABORT_JOB},
    CommandAction.TERMINATE: {CommandTarget.JOB: Action.TERMINATE_JOB},
    CommandAction.COMPLETE: {CommandTarget.JOB: Action.COMPLETE_JOB},
    QueueAction.OPEN: {CommandTarget.QUEUE: Action.OPEN_QUEUE},
    QueueAction.CLOSE: {CommandTarget.QUEUE: Action.CLOSE_QUEUE},
}
"""The action of the Command object, by action and target. A job is a Volcano job."""

PATCHED = {CommandAction.SUSPEND: PatchAction.SUSPEND, CommandAction.RESUME: PatchAction.RESUME}
"""Actions on jobs of other kinds, which have no Commands: ``spec.suspend`` is patched. It is
patched, too, to resume a Volcano job that has the field."""

_RUNS = frozenset({Phase.RUNNING, Phase.COMPLETED})
GOALS: Mapping[str, frozenset[str]] = {
    PatchAction.SUSPEND: frozenset({Phase.SUSPENDED}),
    PatchAction.RESUME: _RUNS,
    Action.ABORT_JOB: frozenset({Phase.ABORTED}),
    Action.RESUME_JOB: _RUNS,
    Action.RESTART_JOB: _RUNS,
    Action.RESTART_TASK: _RUNS,
    Action.RESTART_POD: _RUNS,
    Action.RESTART_PARTITION: _RUNS,
    Action.TERMINATE_JOB: frozenset({Phase.TERMINATED}),
    Action.COMPLETE_JOB: frozenset({Phase.COMPLETED}),
    Action.OPEN_QUEUE: frozenset({QueueState.OPEN}),
    Action.CLOSE_QUEUE: frozenset({QueueState.CLOSED}),
}
"""Phases of a job, or states of a queue, that a recorded action leads to in the end."""
_UNFINISHED = (Phase.PENDING, Phase.RUNNING, Phase.RESTARTING, Phase.SUSPENDED)
"""Phases of a job of another kind that may be suspended and resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The pods of a job that a command names. Without any, it concerns the whole job."""

    task: str = ""
    pod: str = ""
    partition: str = ""

    @property
    def target(self) -> CommandTarget | None:
        """The kind of what is named; ``None`` for a combination that means nothing."""
        named = (bool(self.task), bool(self.pod), bool(self.partition))
        return {
            (False, False, False): CommandTarget.JOB,
            (True, False, False): CommandTarget.TASK,
            (False, True, False): CommandTarget.POD,
            (True, False, True): CommandTarget.PARTITION,
        }.get(named)

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of the Command."""
        values = {TASK: self.task, POD: self.pod, PARTITION: self.partition}
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command for one object."""

    kind: str
    """Kind of the object, as in paths."""
    metadata: ObjectMeta
    action: str
    """Action of the Command object, or a :class:`PatchAction`."""
    scope: Scope = Scope()
    is_patch: bool = False
    """``spec.suspend`` is patched, and no Command created."""


def check_action(kind: JobKind, action: CommandAction, scope: Scope) -> Action | PatchAction:
    """Return the recorded action.

    Raises:
        ProblemError: 422 if the kind has no such action, or not for this target.
    """
    if not kind.is_volcano:
        if action not in PATCHED:
            known = " and ".join(PATCHED)
            raise invalid_fields(("action", f"{kind.label} supports only {known}"))
        if scope != Scope():
            raise invalid_fields(("action", f"{kind.label} has no commands for some of its pods"))
        return PATCHED[action]
    target = scope.target
    if target is None:
        field = "partition" if scope.partition else "pod"
        raise invalid_fields((field, "name a task, a pod, or a task and its partition"))
    found = TABLE[action].get(target)
    if found is None:
        raise invalid_fields(("action", f"{action} concerns the whole job, not a {target}"))
    return found


def order_for_job(
    kind: JobKind, job: CachedObject, action: CommandAction, scope: Scope = Scope()
) -> Order:
    """Return the command *action* for *job*, or some of its pods.

    Raises:
        ProblemError: 422 for an action or pods that the job does not have; 409 if the job can
            never execute it.
    """
    recorded = check_action(kind, action, scope)
    if isinstance(recorded, PatchAction):
        _check_unfinished(kind, job)
    elif isinstance(job, CachedJob | Job):
        _check_phase(job, recorded)
        _check_scope(job, scope)
        if recorded is Action.RESUME_JOB and job.spec.suspend:
            recorded = PatchAction.RESUME  # a Command would have no effect as long as it is set
    return Order(
        kind=kind.name,
        metadata=job.metadata,
        action=recorded,
        scope=scope,
        is_patch=isinstance(recorded, PatchAction),
    )


def order_for_queue(queue: Queue, action: QueueAction) -> Order:
    """Return the command *action* for *queue*."""
    return Order(
        kind=QUEUES_KIND,
        metadata=queue.metadata,
        action=TABLE[action][CommandTarget.QUEUE],
    )


def _check_phase(job: CachedJob | Job, action: Action) -> None:
    """Check only what cannot change concurrently: a resume right after a suspend finds the job
    still running, and both are valid.

    Raises:
        ProblemError: 409 if *job* can never execute *action*.
    """
    name, phase = job.metadata.name, job.status.state.phase
    allowed = tuple(ACTIONS[action].transitions)
    if phase in FINAL_PHASES:
        detail = f"job {name!r} is {phase} and accepts no commands"
        raise ProblemError(409, detail, allowed_phases=allowed)


def _check_unfinished(kind: JobKind, job: CachedObject) -> None:
    phase = kind.summarize(job).phase
    if phase not in _UNFINISHED:
        detail = f"{kind.label} {job.metadata.name!r} is {phase} and accepts no commands"
        raise ProblemError(409, detail, allowed_phases=_UNFINISHED)


def _check_scope(job: CachedJob | Job, scope: Scope) -> None:
    tasks = {task.name: task.replicas for task in job.spec.tasks}
    if scope.task and scope.task not in tasks:
        raise invalid_fields(("task", f"the job has no task {scope.task!r}"))
    if scope.pod:
        stem, _, index = scope.pod.rpartition("-")
        task = stem.removeprefix(f"{job.metadata.name}-")
        is_index = index.isdecimal() and index.isascii() and str(int(index)) == index
        is_pod = stem == f"{job.metadata.name}-{task}" and task in tasks
        if not (is_index and is_pod and int(index) < tasks[task]):
            raise invalid_fields(("pod", f"the job has no pod {scope.pod!r}"))


def target_of(action: str) -> CommandTarget:
    """Return what a recorded action concerns."""
    if action in (Action.OPEN_QUEUE, Action.CLOSE_QUEUE):
        return CommandTarget.QUEUE
    row = ACTIONS.get(action)
    return CommandTarget(row.target if row is not None else Target.JOB)
