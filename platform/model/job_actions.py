"""Actions on jobs: one table for phases, policies, Commands and admission.

A new action is a row here, and an edge to the phase that handles it (:mod:`.phases`). The order of
the rows is the order in which admission lists the valid actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .job import Action, JobPhase


class Target(StrEnum):
    """The pods that an action concerns."""

    JOB = "job"
    TASK = "task"
    POD = "pod"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of phase: the next phase and what else changes with it."""

    to: JobPhase
    counts_as_retry: bool = False
    """Increment the job's retry count."""
    bumps_version: bool = False
    """Increment the job's version, so that all existing pods are outdated."""
    reason: str = field(default="", compare=False)
    message: str = field(default="", compare=False)
    """Reason and message of a transition that follows from the state of the pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAction:
    """What an action concerns and what it does."""

    target: Target = Target.JOB
    transitions: Mapping[JobPhase, Transition]
    """Transitions by current phase; the action has no effect in a phase that is not listed."""


def _stop(phase: JobPhase) -> JobAction:
    transition = Transition(to=phase, bumps_version=True)
    active = (JobPhase.PENDING, JobPhase.RUNNING, JobPhase.RESTARTING)
    return JobAction(transitions=dict.fromkeys(active, transition))


def _restart(target: Target) -> JobAction:
    whole = target is Target.JOB
    first = Transition(to=JobPhase.RESTARTING, counts_as_retry=True, bumps_version=whole)
    again = Transition(to=JobPhase.RESTARTING, bumps_version=whole)
    phases = {JobPhase.PENDING: first, JobPhase.RUNNING: first, JobPhase.RESTARTING: again}
    return JobAction(target=target, transitions=phases)


_RESUME = JobAction(
    transitions=dict.fromkeys(
        (JobPhase.ABORTING, JobPhase.ABORTED), Transition(to=JobPhase.RESTARTING)
    )
)

ACTIONS: Mapping[str, JobAction] = {
    Action.ABORT_JOB: _stop(JobPhase.ABORTING),
    Action.RESTART_JOB: _restart(Target.JOB),
    Action.RESTART_TASK: _restart(Target.TASK),
    Action.RESTART_POD: _restart(Target.POD),
    Action.RESTART_PARTITION: _restart(Target.PARTITION),
    Action.TERMINATE_JOB: _stop(JobPhase.TERMINATING),
    Action.COMPLETE_JOB: _stop(JobPhase.COMPLETING),
    Action.RESUME_JOB: _RESUME,
}
"""Actions that a policy may name; any other action has no effect on a job."""


def transitions_from(phase: JobPhase) -> Mapping[str, Transition]:
    """Return the transitions of a job in *phase*, by action."""
    rows = ((name, row.transitions.get(phase)) for name, row in ACTIONS.items())
    return {name: transition for name, transition in rows if transition is not None}
