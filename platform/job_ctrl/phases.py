"""The phases of a job: which action leads where, when a phase ends, what it keeps up.

A phase is a class; its edges are data. Nothing here does I/O or looks at a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..model.job import Action, JobPhase
from ..model.pod import PodPhase
from .job_view import View
from .pod_tracker import PodCounts

MAX_RETRY_REACHED, PODS_FAILED = "MaxRetryReached", "PodsFailed"
"""Reasons of jobs that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """An edge: into which phase, and what changes on the way."""

    then: JobPhase
    retry: bool = False
    """It uses up one of the job's retries."""
    renew: bool = False
    """All pods have to go, so the job gets a new version; what is older no longer counts."""
    reason: str = field(default="", compare=False)
    message: str = field(default="", compare=False)
    """Why the job goes there by itself, if it does not say so otherwise."""


class Upkeep(Enum):
    """What the controller does for a job as long as it is in a phase."""

    SERVE = "serve"
    """Keep its PodGroup, its plugins' objects and its pods there."""
    CLEAR = "clear"
    """Let pods go that are about to be made anew."""
    END = "end"
    """Let everything go but the finished pods."""


class PhaseRules:
    """The rules of one phase."""

    phase: JobPhase
    upkeep: Upkeep
    on: Mapping[Action, Go] = {}
    """What an action does in this phase; no action that is not named does anything."""

    def settle(self, view: View) -> Go | None:
        """Where the job goes by itself, seeing its pods; ``None`` if it stays."""
        return None


_STOP = {
    Action.ABORT_JOB: Go(then=JobPhase.ABORTING, renew=True),
    Action.COMPLETE_JOB: Go(then=JobPhase.COMPLETING, renew=True),
    Action.TERMINATE_JOB: Go(then=JobPhase.TERMINATING, renew=True),
}
_STOP_OR_RESTART = _STOP | {
    Action.RESTART_JOB: Go(then=JobPhase.RESTARTING, retry=True, renew=True),
    Action.RESTART_TASK: Go(then=JobPhase.RESTARTING, retry=True),
    Action.RESTART_POD: Go(then=JobPhase.RESTARTING, retry=True),
    Action.RESTART_PARTITION: Go(then=JobPhase.RESTARTING, retry=True),
}


class Pending(PhaseRules):
    """Waiting for admission, or for enough pods to have started."""

    phase = JobPhase.PENDING
    upkeep = Upkeep.SERVE
    on = _STOP_OR_RESTART

    def settle(self, view: View) -> Go | None:
        """Runs as soon as the gang's minimum runs, or has run."""
        pods = view.pods
        if pods.of(PodPhase.RUNNING) + pods.finished < view.job.spec.min_available:
            return None
        return Go(then=JobPhase.RUNNING)


class Running(PhaseRules):
    """The gang holds its minimum."""

    phase = JobPhase.RUNNING
    upkeep = Upkeep.SERVE
    on = _STOP_OR_RESTART

    def settle(self, view: View) -> Go | None:
        """Ends when enough pods succeeded or all have ended; waits again when too few run."""
        spec, pods = view.job.spec, view.pods
        succeeded = pods.of(PodPhase.SUCCEEDED)
        if not view.total:
            return None
        if spec.min_success is not None and succeeded >= spec.min_success:
            return Go(then=JobPhase.COMPLETED, renew=True)
        if pods.finished >= view.total:
            then = _verdict(view, pods)
            if then is JobPhase.COMPLETED:
                return Go(then=then, renew=True)
            return Go(then=then, renew=True, reason=PODS_FAILED, message=_failures(view, pods))
        if pods.of(PodPhase.PENDING) > view.total - spec.min_available:
            return Go(then=JobPhase.PENDING)
        return None


def _verdict(view: View, pods: PodCounts) -> JobPhase:
    """Whether a job all of whose pods have ended did well."""
    spec = view.job.spec
    if spec.min_success is not None:  # had it been reached, the job would be over already
        return JobPhase.FAILED
    needed = sum(
        task.replicas if task.min_available is None else task.min_available for task in spec.tasks
    )
    if spec.min_available >= needed:
        for task in spec.tasks:
            phases = pods.tasks.get(task.name)
            if phases and phases.get(PodPhase.SUCCEEDED, 0) < (task.min_available or 0):
                return JobPhase.FAILED
    enough = pods.of(PodPhase.SUCCEEDED) >= spec.min_available
    return JobPhase.COMPLETED if enough else JobPhase.FAILED


def _failures(view: View, pods: PodCounts) -> str:
    """Which pods did not do well."""
    failed = [pod for pod in view.ledger.done() if pod.phase is PodPhase.FAILED]
    if not failed:
        return f"{pods.of(PodPhase.SUCCEEDED)} of {view.total} pods succeeded, which are too few"
    first = min(failed, key=lambda pod: (pod.task, pod.index))
    code = f" with exit code {first.exit_code}" if first.exit_code else ""
    named = f"{first.name}{code}" if len(failed) == 1 else f"the first is {first.name}{code}"
    return f"{len(failed)} of {view.total} pods failed: {named}"


class Restarting(PhaseRules):
    """Some or all of its pods are on their way out, to be made again."""

    phase = JobPhase.RESTARTING
    upkeep = Upkeep.CLEAR
    on = _STOP | {
        Action.RESTART_JOB: Go(then=JobPhase.RESTARTING, renew=True),
        Action.RESTART_TASK: Go(then=JobPhase.RESTARTING),
        Action.RESTART_POD: Go(then=JobPhase.RESTARTING),
        Action.RESTART_PARTITION: Go(then=JobPhase.RESTARTING),
    }

    def settle(self, view: View) -> Go | None:
        """Fails when its retries are used up, before anything is made again.

        Otherwise it waits until enough pods can be made, by the spec of now: it may have been
        scaled since it ran. Whoever asks has seen to it that all that must go was asked to.
        """
        spec, status = view.job.spec, view.job.status
        if status.retry_count >= spec.max_retry and not view.resuming:
            used = f"retries used up: {status.retry_count} of {spec.max_retry}"
            why = f"{status.state.message}; {used}" if status.state.message else used
            return Go(then=JobPhase.FAILED, renew=True, reason=MAX_RETRY_REACHED, message=why)
        if view.total - view.pods.terminating >= spec.min_available:
            return Go(then=JobPhase.PENDING)
        return None


class Aborting(PhaseRules):
    """Told to stop, with pods still there; it may be resumed."""

    phase = JobPhase.ABORTING
    upkeep = Upkeep.END
    on = {Action.RESUME_JOB: Go(then=JobPhase.RESTARTING)}

    def settle(self, view: View) -> Go | None:
        """Aborted when no pod is left that has not finished."""
        return None if view.pods.alive else Go(then=JobPhase.ABORTED)


class Aborted(PhaseRules):
    """Stopped, until it is resumed."""

    phase = JobPhase.ABORTED
    upkeep = Upkeep.END
    on = {Action.RESUME_JOB: Go(then=JobPhase.RESTARTING)}


class Completing(PhaseRules):
    """Told that its work is done, with pods still there."""

    phase = JobPhase.COMPLETING
    upkeep = Upkeep.END

    def settle(self, view: View) -> Go | None:
        """Completed when no pod is left that has not finished."""
        return None if view.pods.alive else Go(then=JobPhase.COMPLETED)


class Terminating(PhaseRules):
    """Told to end for good, with pods still there."""

    phase = JobPhase.TERMINATING
    upkeep = Upkeep.END

    def settle(self, view: View) -> Go | None:
        """Terminated when no pod is left that has not finished."""
        return None if view.pods.alive else Go(then=JobPhase.TERMINATED)


class Completed(PhaseRules):
    """Done, and well."""

    phase = JobPhase.COMPLETED
    upkeep = Upkeep.END


class Terminated(PhaseRules):
    """Stopped for good."""

    phase = JobPhase.TERMINATED
    upkeep = Upkeep.END


class Failed(PhaseRules):
    """Done, and not well."""

    phase = JobPhase.FAILED
    upkeep = Upkeep.END


RULES: Mapping[JobPhase, PhaseRules] = {
    rules.phase: rules
    for rules in (
        Pending(),
        Running(),
        Restarting(),
        Aborting(),
        Aborted(),
        Completing(),
        Completed(),
        Terminating(),
        Terminated(),
        Failed(),
    )
}

FINAL = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED})
"""Phases that a job never leaves."""
