"""The phases of a job: when a phase ends, and what the controller does in it. Pure.

The transitions that an action causes are in :mod:`.actions`; the ones here follow from the pods.
"""

from collections.abc import Mapping
from enum import Enum

from ...model.job import JobPhase
from ...model.job_actions import Transition, transitions_from
from ...model.pod import PodPhase
from ..tracker.pod_info import PodCounts
from .job_view import JobView

MAX_RETRY_REACHED, PODS_FAILED, TOO_MANY_PODS = "MaxRetryReached", "PodsFailed", "TooManyPods"
"""Reasons of failed jobs."""


class SyncMode(Enum):
    """What a sync does for a job in a phase."""

    SYNC = "sync"
    """Create and update the PodGroup, the plugins' objects and the pods."""
    RESTART = "restart"
    """Delete the pods that are restarted."""
    KILL = "kill"
    """Delete everything except finished pods."""


class PhaseRules:
    """The rules of one phase."""

    phase: JobPhase
    sync_mode: SyncMode

    @property
    def transitions(self) -> Mapping[str, Transition]:
        """Transitions by action; an action that is not listed has no effect in this phase."""
        return _TRANSITIONS[self.phase]

    def next_transition(self, view: JobView) -> Transition | None:
        """Return the transition that the pods require; ``None`` if the job stays in the phase."""
        return None


_TRANSITIONS = {phase: transitions_from(phase) for phase in JobPhase}


class Pending(PhaseRules):
    """Waiting for the queue, or for ``minAvailable`` pods to run."""

    phase = JobPhase.PENDING
    sync_mode = SyncMode.SYNC

    def next_transition(self, view: JobView) -> Transition | None:
        """Running once ``minAvailable`` pods run or have finished."""
        pods = view.pod_counts
        if pods.in_phase(PodPhase.RUNNING) + pods.finished < view.job.spec.min_available:
            return None
        return Transition(to=JobPhase.RUNNING)


class Running(PhaseRules):
    """At least ``minAvailable`` pods run or have finished."""

    phase = JobPhase.RUNNING
    sync_mode = SyncMode.SYNC

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
            return Transition(
                to=final,
                bumps_version=True,
                reason=PODS_FAILED,
                message=_failure_message(view, pods),
            )
        if pods.in_phase(PodPhase.PENDING) > view.total_replicas - spec.min_available:
            return Transition(to=JobPhase.PENDING)
        return None


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


class Restarting(PhaseRules):
    """Some or all pods are being deleted, to be created again."""

    phase = JobPhase.RESTARTING
    sync_mode = SyncMode.RESTART

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


class Aborting(PhaseRules):
    """Being stopped, with pods left; the job may be resumed."""

    phase = JobPhase.ABORTING
    sync_mode = SyncMode.KILL

    def next_transition(self, view: JobView) -> Transition | None:
        """Aborted when all remaining pods have finished."""
        return None if view.pod_counts.unfinished else Transition(to=JobPhase.ABORTED)


class Aborted(PhaseRules):
    """Stopped until it is resumed."""

    phase = JobPhase.ABORTED
    sync_mode = SyncMode.KILL


class Completing(PhaseRules):
    """Being completed by an action, with pods left."""

    phase = JobPhase.COMPLETING
    sync_mode = SyncMode.KILL

    def next_transition(self, view: JobView) -> Transition | None:
        """Completed when all remaining pods have finished."""
        return None if view.pod_counts.unfinished else Transition(to=JobPhase.COMPLETED)


class Terminating(PhaseRules):
    """Being terminated for good, with pods left."""

    phase = JobPhase.TERMINATING
    sync_mode = SyncMode.KILL

    def next_transition(self, view: JobView) -> Transition | None:
        """Terminated when all remaining pods have finished."""
        return None if view.pod_counts.unfinished else Transition(to=JobPhase.TERMINATED)


class Completed(PhaseRules):
    """Finished successfully."""

    phase = JobPhase.COMPLETED
    sync_mode = SyncMode.KILL


class Terminated(PhaseRules):
    """Stopped for good."""

    phase = JobPhase.TERMINATED
    sync_mode = SyncMode.KILL


class Failed(PhaseRules):
    """Finished unsuccessfully."""

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
