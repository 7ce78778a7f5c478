"""What a decision about one job sees: a moment that does not change while it is looked at."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ..model.job import Action, Job, JobPhase
from ..model.pod import PodPhase
from ..model.podgroup import PodGroup, PodGroupPhase, PodGroupSpec
from .effects import Reason
from .pod_tracker import PodCounts, PodInfo, PodTracker
from .restarts import RestartTarget, last_action


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRef:
    """A Command for the job."""

    name: str
    uid: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job and what belongs to it, as the caches and our own last writes show them."""

    job: Job
    pod_tracker: PodTracker
    """Only read here."""
    podgroup_spec: PodGroupSpec
    """The PodGroup that the job's spec asks for."""
    now: datetime
    monotonic_now: float
    """The monotonic clock, which happenings are dated by."""
    podgroup: PodGroup | None = None
    podgroup_terminating: bool = False
    """Its deletion was asked for, by us or by somebody else."""
    plugin_objects_stale: bool = False
    """The plugins' objects have not been seen to since the spec changed, or since we started."""
    pvcs_stale: bool = False
    """The claims of the job's volumes have not been seen to, likewise."""
    last_errors: Mapping[Reason, str] = field(default_factory=dict)
    """What could not be done for the job when it was tried last, and why."""

    @property
    def phase(self) -> JobPhase:
        """The job's phase; an unknown one, as the empty one, counts as Pending."""
        try:
            return JobPhase(self.job.status.state.phase)
        except ValueError:
            return JobPhase.PENDING

    @property
    def total_replicas(self) -> int:
        """Number of pods that the job wants."""
        return sum(task.replicas for task in self.job.spec.tasks)

    @property
    def admitted(self) -> bool:
        """Whether pods may be made: the queue has let the gang in, or has done so before."""
        if self.podgroup is None or self.podgroup_terminating:
            return False
        if self.podgroup.status.phase not in ("", PodGroupPhase.PENDING):
            return True
        return self.pod_tracker.has_version(self.job.status.version)

    @property
    def is_missing_pods(self) -> bool:
        """Whether pods have yet to be made."""
        present, tasks = self.pod_tracker.index_count, self.job.spec.tasks
        return any(present(task.name) < task.replicas for task in tasks)

    @property
    def unsatisfiable_reason(self) -> str:
        """Why the gang can never be whole again, if that is so."""
        pods, least = self.pod_counts, self.job.spec.min_available
        left = self.total_replicas - pods.in_phase(PodPhase.FAILED)
        if not pods.in_phase(PodPhase.PENDING) or left >= least:
            return ""
        return (
            f"only {left} of {self.total_replicas} pods can still run, and the gang needs {least}"
        )

    @property
    def restart_target(self) -> RestartTarget:
        """Which pods a restarting job lets go; meaningless in other phases."""
        return RestartTarget.parse(self.job.status.state)

    @property
    def resuming(self) -> bool:
        """The job is restarting because it was told to resume."""
        return last_action(self.job.status.state) == Action.RESUME_JOB

    @property
    def keeps_finished(self) -> bool:
        """Whether finished pods of older versions still count (all phases but a full restart)."""
        if self.phase is not JobPhase.RESTARTING:
            return True
        return not self.restart_target.is_whole_job or self.resuming

    def pods_to_restart(self) -> Iterator[PodInfo]:
        """Pods that the restart of a part of the job lets go and that were not asked to yet."""
        target, version = self.restart_target, self.job.status.version
        if self.phase is JobPhase.RESTARTING and not target.is_whole_job:
            pods = (*self.pod_tracker.active(), *self.pod_tracker.finished())
            yield from (pod for pod in pods if pod.version == version and target.matches(pod))

    @property
    def pod_counts(self) -> PodCounts:
        """The job's pods by number."""
        return self.pod_tracker.counts(self.job.status.version, keep_finished=self.keeps_finished)
