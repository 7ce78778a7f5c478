"""The state of one job that a decision is based on. Read-only."""

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property

import msgspec

from ...model import times
from ...model.controlled_resources import SECONDS_RUN
from ...model.job import Action, Job, JobPhase
from ...model.job_reasons import Reason
from ...model.names import TIME_LIMIT
from ...model.pod import PodPhase
from ...model.podgroup import PodGroup, PodGroupCondition, PodGroupPhase, PodGroupSpec
from ...model.run_times import seconds_of, warning_of
from .. import podgroups
from ..creation.dependencies import DependencyState
from ..creation.described_podgroups import WithoutPodGroup
from ..tracker.pod_info import PodCounts, PodInfo
from ..tracker.pod_tracker import PodTracker
from .restarts import RestartTarget, target_from_status


class JobView(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One job and its objects, from the informers and from the controller's own last writes.

    Properties that a decision reads often are computed once. A struct: it is created in a fraction
    of the time of a dataclass, several times in each sync.
    """

    job: Job
    pod_tracker: PodTracker
    """The pods and lifecycle events; a decision only reads them."""
    podgroup_spec: PodGroupSpec
    """Desired spec of the PodGroup."""
    now: datetime
    monotonic_now: float
    """Time on the monotonic clock, which lifecycle events use."""
    podgroup: PodGroup | None = None
    without_podgroup: WithoutPodGroup | None = None
    """What the job has instead of a PodGroup; ``None`` if it needs one, or has one."""
    podgroup_terminating: bool = False
    """The deletion of the PodGroup was requested, by this controller or another client."""
    plugin_objects_stale: bool = False
    """The plugins' objects are not synced since the spec changed or the controller started."""
    pvcs_stale: bool = False
    """The PersistentVolumeClaims of the job's volumes are not synced, likewise."""
    ttl_waits_for_history: bool = False
    """An expired job is deleted once the recorder of the history has annotated it."""
    defer_first_status: bool = False
    """Many jobs are new: the phase Pending of this one is not written if it runs soon."""
    last_errors: Mapping[Reason, str] = {}
    """Errors of the last attempts, by reason."""
    dependencies: DependencyState | None = None
    """What the job waits for before anything is created; ``None`` for nothing."""
    size_error: str = ""
    """Why the job must not get pods: it has too many."""

    @cached_property
    def phase(self) -> JobPhase:
        """Phase of the job; an unknown or empty one counts as Pending."""
        return _PHASES.get(self.job.status.state.phase, JobPhase.PENDING)

    @property
    def is_active(self) -> bool:
        """Whether the job is in a phase in which its pods are created."""
        return self.phase in (JobPhase.PENDING, JobPhase.RUNNING)

    @cached_property
    def seconds_left(self) -> float | None:
        """Seconds until the job has run for its time limit; ``None`` if it has none.

        The time in phase Running counts, of all attempts; while the job is suspended, none does.
        """
        limit = seconds_of(self.job.metadata.annotations, TIME_LIMIT)
        if limit is None:
            return None
        return limit - self.seconds_run

    @property
    def seconds_until_sigterm(self) -> float | None:
        """Seconds until the job is ended: at its limit, or as long before as its pods are warned;
        ``None`` if it has no limit."""
        left = self.seconds_left
        return None if left is None else left - warning_of(self.job.metadata.annotations)

    @property
    def rest_of_warning(self) -> int:
        """Seconds from now until the time limit of a job that is ended before it, rounded up.

        It is less than the warning if the controller was down, or deletes the last pods late.
        """
        state = self.job.status.state
        if state.reason != Reason.DEADLINE_EXCEEDED or self.seconds_left is None:
            return 0
        ended = times.parse(state.last_transition_time) if state.last_transition_time else self.now
        return max(math.ceil(self.seconds_left - (self.now - ended).total_seconds()), 0)

    @property
    def seconds_run(self) -> int:
        """Seconds in phase Running, as far as they are counted: for jobs with a time limit."""
        status = self.job.status
        before = status.controlled_resources.get(SECONDS_RUN, "0")
        since = status.state.last_transition_time
        now = 0.0
        if self.phase is JobPhase.RUNNING and since:
            now = max((self.now - times.parse(since)).total_seconds(), 0.0)
        return int(now) + (int(before) if before.isdecimal() else 0)

    @cached_property
    def total_replicas(self) -> int:
        """Number of desired pods."""
        return sum(task.replicas for task in self.job.spec.tasks)

    @property
    def admitted(self) -> bool:
        """Whether pods may be created: the PodGroup is, or has been, admitted to its queue."""
        if self.podgroup is None:
            return self.without_podgroup is not None
        if self.podgroup_terminating:
            return False
        if self.podgroup.status.phase not in ("", PodGroupPhase.PENDING):
            return True
        return self.pod_tracker.has_version(self.job.status.version)

    @property
    def unschedulable(self) -> PodGroupCondition | None:
        """Why the scheduler does not start the job: of its PodGroup, or else of its pod."""
        if self.podgroup is not None:
            return podgroups.unschedulable_condition(self.podgroup)
        if self.without_podgroup is None:
            return None
        messages = (pod.unschedulable for pod in self.pod_tracker.active() if pod.unschedulable)
        message = next(messages, "")
        return PodGroupCondition(type="Unschedulable", message=message) if message else None

    @property
    def is_missing_pods(self) -> bool:
        """Whether pods remain to be created."""
        count, tasks = self.pod_tracker.index_count, self.job.spec.tasks
        return any(count(task.name) < task.replicas for task in tasks)

    @cached_property
    def unsatisfiable_reason(self) -> str:
        """Why ``minAvailable`` pods can never run again; empty if they can."""
        pods, minimum = self.pod_counts, self.job.spec.min_available
        left = self.total_replicas - pods.in_phase(PodPhase.FAILED)
        if not pods.in_phase(PodPhase.PENDING) or left >= minimum:
            return ""
        return (
            f"only {left} of {self.total_replicas} pods can still run, and the gang needs"
            f" {minimum}: {self.first_failure}"
        )

    @property
    def first_failure(self) -> str:
        """Which pod failed, the first of several, and why; empty if none failed."""
        failed = [pod for pod in self.pod_tracker.finished() if pod.phase is PodPhase.FAILED]
        if not failed:
            return ""
        first = min(failed, key=lambda pod: (pod.task, pod.index))
        named = f"{first.name}: {first.failure}" if first.failure else first.name
        return named if len(failed) == 1 else f"the first is {named}"

    @cached_property
    def restart_target(self) -> RestartTarget:
        """What the current restart replaces; meaningless in phases other than Restarting."""
        return target_from_status(self.job.status)

    @property
    def resuming(self) -> bool:
        """Whether the job restarts because it was resumed."""
        return self.job.status.state.reason == Action.RESUME_JOB

    @property
    def keeps_finished(self) -> bool:
        """Whether finished pods of older versions count: always, except in a whole restart."""
        if self.phase is not JobPhase.RESTARTING:
            return True
        return not self.restart_target.is_whole_job or self.resuming

    def pods_to_restart(self) -> Iterator[PodInfo]:
        """Yield the pods of the current version that a partial restart has yet to delete."""
        target, version = self.restart_target, self.job.status.version
        if self.phase is JobPhase.RESTARTING and not target.is_whole_job:
            pods = (*self.pod_tracker.active(), *self.pod_tracker.finished())
            yield from (pod for pod in pods if pod.version == version and target.matches(pod))

    @cached_property
    def pod_counts(self) -> PodCounts:
        """Counts of the job's pods."""
        return self.pod_tracker.counts(self.job.status.version, keep_finished=self.keeps_finished)


_PHASES = {phase.value: phase for phase in JobPhase}
