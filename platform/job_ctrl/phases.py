"""The phases of a job: which action leads where, when a phase ends, what it keeps up.

A phase is a class; its edges are data. Nothing here does I/O or looks at a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..model.job import Action, JobPhase
from ..model.pod import PodPhase
from .job_view import JobView
from .pod_tracker import PodCounts

MAX_RETRY_REACHED, PODS_FAILED = "MaxRetryReached", "PodsFailed"
"""Reasons of jobs that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """An edge: into which phase, and what changes on the way."""

    to: JobPhase
    counts_as_retry: bool = False
    """It uses up one of the job's retries."""
    bumps_version: bool = False
    """All pods have to go, so the job gets a new version; what is older no longer counts."""
    reason: str = field(default="", compare=False)
    message: str = field(default="", compare=False)
    """Why the job goes there by itself, if it does not say so otherwise."""


class SyncMode(Enum):
    """What the controller does for a job as long as it is in a phase."""

    SYNC = "serve"
    """Keep its PodGroup, its plugins' objects and its pods there."""
    RESTART = "clear"
    """Let pods go that are about to be made anew."""
    KILL = "end"
    """Let everything go but the finished pods."""


class PhaseRules:
    """The rules of one phase."""

    phase: JobPhase
    sync_mode: SyncMode
    transitions: Mapping[Action, Transition] = {}
    """What an action does in this phase; no action that is not named does anything."""

    def next_transition(self, view: JobView) -> Transition | None:
        """Where the job goes by itself, seeing its pods; ``None`` if it stays."""
        return None


_STOP = {
    Action.ABORT_JOB: Transition(to=JobPhase.ABORTING, bumps_version=True),
    Action.COMPLETE_JOB: Transition(to=JobPhase.COMPLETING, bumps_version=True),
    Action.TERMINATE_JOB: Transition(to=JobPhase.TERMINATING, bumps_version=True),
}
_STOP_OR_RESTART = _STOP | {
    Action.RESTART_JOB: Transition(
        to=JobPhase.RESTARTING, counts_as_retry=True, bumps_version=True
    ),
    Action.RESTART_TASK: Transition(to=JobPhase.RESTARTING, counts_as_retry=True),
    Action.RESTART_POD: Transition(to=JobPhase.RESTARTING, counts_as_retry=True),
    Action.RESTART_PARTITION: Transition(to=JobPhase.RESTARTING, counts_as_retry=True),
}


class Pending(PhaseRules):
    """Waiting for admission, or for enough pods to have started."""

    phase = JobPhase.PENDING
    sync_mode = SyncMode.SYNC
    transitions = _STOP_OR_RESTART

    def next_transition(self, view: JobView) -> Transition | None:
        """Runs as soon as the gang's minimum runs, or has run."""
        pods = view.pod_counts
        if pods.in_phase(PodPhase.RUNNING) + pods.finished < view.job.spec.min_available:
            return None
        return Transition(to=JobPhase.RUNNING)


class Running(PhaseRules):
    """The gang holds its minimum."""

    phase = JobPhase.RUNNING
    sync_mode = SyncMode.SYNC
    transitions = _STOP_OR_RESTART

    def next_transition(self, view: JobView) -> Transition | None:
        """Ends when enough pods succeeded or all have ended; waits again when too few run."""
        spec, pods = view.job.spec, view.pod_counts
        succeeded = pods.in_phase(PodPhase.SUCCEEDED)
        if not view.total_replicas:
            return None
        if spec.min_success is not None and succeeded >= spec.min_success:
            return Transition(to=JobPhase.COMPLETED, bumps_version=True)
        if pods.finished >= view.total_replicas:
            then = _final_phase(view, pods)
            if then is JobPhase.COMPLETED:
                return Transition(to=then, bumps_version=True)
            return Transition(
                to=then,
                bumps_version=True,
                reason=PODS_FAILED,
                message=_failure_message(view, pods),
            )
        if pods.in_phase(PodPhase.PENDING) > view.total_replicas - spec.min_available:
            return Transition(to=JobPhase.PENDING)
        return None


def _final_phase(view: JobView, pods: PodCounts) -> JobPhase:
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
    enough = pods.in_phase(PodPhase.SUCCEEDED) >= spec.min_available
    return JobPhase.COMPLETED if enough else JobPhase.FAILED


def _failure_message(view: JobView, pods: PodCounts) -> str:
    """Which pods did not do well."""
    failed = [pod for pod in view.pod_tracker.finished() if pod.phase is PodPhase.FAILED]
    if not failed:
        succeeded = pods.in_phase(PodPhase.SUCCEEDED)
        return f"{succeeded} of {view.total_replicas} pods succeeded, which are too few"
    first = min(failed, key=lambda pod: (pod.task, pod.index))
    code = f" with exit code {first.exit_code}" if first.exit_code else ""
    named = f"{first.name}{code}" if len(failed) == 1 else f"the first is {first.name}{code}"
    return f"{len(failed)} of {view.total_replicas} pods failed: {named}"


class Restarting(PhaseRules):
    """Some or all of its pods are on their way out, to be made again."""

    phase = JobPhase.RESTARTING
    sync_mode = SyncMode.RESTART
    transitions = _STOP | {
        Action.RESTART_JOB: Transition(to=JobPhase.RESTARTING, bumps_version=True),
        Action.RESTART_TASK: Transition(to=JobPhase.RESTARTING),
        Action.RESTART_POD: Transition(to=JobPhase.RESTARTING),
        Action.RESTART_PARTITION: Transition(to=JobPhase.RESTARTING),
    }

    def next_transition(self, view: JobView) -> Transition | None:
        """Fails when its retries are used up, before anything is made again.

        Otherwise it waits until enough pods can be made, by the spec of now: it may have been
        scaled since it ran. Whoever asks has seen to it that all that must go was asked to.
        """
        spec, status = view.job.spec, view.job.status
        if status.retry_count >= spec.max_retry and not view.resuming:
            used = f"retries used up: {status.retry_count} of {spec.max_retry}"
            why = f"{status.state.message}; {used}" if status.state.message else used
            return Transition(
                to=JobPhase.FAILED, bumps_version=True, reason=MAX_RETRY_REACHED, message=why
            )
        if view.total_replicas - view.pod_counts.terminating >= spec.min_available:
            return Transition(to=JobPhase.PENDING)
        return None


class Aborting(PhaseRules):
    """Told to stop, with pods still there; it may be resumed."""

    phase = JobPhase.ABORTING
    sync_mode = SyncMode.KILL
    transitions = {Action.RESUME_JOB: Transition(to=JobPhase.RESTARTING)}

    def next_transition(self, view: JobView) -> Transition | None:
        """Aborted when no pod is left that has not finished."""
        return None if view.pod_counts.unfinished else Transition(to=JobPhase.ABORTED)


class Aborted(PhaseRules):
    """Stopped, until it is resumed."""

    phase = JobPhase.ABORTED
    sync_mode = SyncMode.KILL
    transitions = {Action.RESUME_JOB: Transition(to=JobPhase.RESTARTING)}


class Completing(PhaseRules):
    """Told that its work is done, with pods still there."""

    phase = JobPhase.COMPLETING
    sync_mode = SyncMode.KILL

    def next_transition(self, view: JobView) -> Transition | None:
        """Completed when no pod is left that has not finished."""
        return None if view.pod_counts.unfinished else Transition(to=JobPhase.COMPLETED)


class Terminating(PhaseRules):
    """Told to end for good, with pods still there."""

    phase = JobPhase.TERMINATING
    sync_mode = SyncMode.KILL

    def next_transition(self, view: JobView) -> Transition | None:
        """Terminated when no pod is left that has not finished."""
        return None if view.pod_counts.unfinished else Transition(to=JobPhase.TERMINATED)


class Completed(PhaseRules):
    """Done, and well."""

    phase = JobPhase.COMPLETED
    sync_mode = SyncMode.KILL


class Terminated(PhaseRules):
    """Stopped for good."""

    phase = JobPhase.TERMINATED
    sync_mode = SyncMode.KILL


class Failed(PhaseRules):
    """Done, and not well."""

    phase = JobPhase.FAILED
    sync_mode = SyncMode.KILL


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
