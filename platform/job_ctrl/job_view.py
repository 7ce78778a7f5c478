"""What a decision about one job sees: a moment that does not change while it is looked at."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ..model.job import Action, Job, JobPhase
from ..model.pod import PodPhase
from ..model.podgroup import PodGroup, PodGroupPhase, PodGroupSpec
from .effects import Reason
from .pod_tracker import Entry, Ledger, PodCounts
from .restarts import Target, cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A Command for the job."""

    name: str
    uid: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One job and what belongs to it, as the caches and our own last writes show them."""

    job: Job
    ledger: Ledger
    """Only read here."""
    gang: PodGroupSpec
    """The PodGroup that the job's spec asks for."""
    now: datetime
    uptime: float
    """The monotonic clock, which happenings are dated by."""
    podgroup: PodGroup | None = None
    podgroup_leaving: bool = False
    """Its deletion was asked for, by us or by somebody else."""
    objects_due: bool = False
    """The plugins' objects have not been seen to since the spec changed, or since we started."""
    claims_due: bool = False
    """The claims of the job's volumes have not been seen to, likewise."""
    obstacles: Mapping[Reason, str] = field(default_factory=dict)
    """What could not be done for the job when it was tried last, and why."""

    @property
    def phase(self) -> JobPhase:
        """The job's phase; an unknown one, as the empty one, counts as Pending."""
        try:
            return JobPhase(self.job.status.state.phase)
        except ValueError:
            return JobPhase.PENDING

    @property
    def total(self) -> int:
        """Number of pods that the job wants."""
        return sum(task.replicas for task in self.job.spec.tasks)

    @property
    def admitted(self) -> bool:
        """Whether pods may be made: the queue has let the gang in, or has done so before."""
        if self.podgroup is None or self.podgroup_leaving:
            return False
        if self.podgroup.status.phase not in ("", PodGroupPhase.PENDING):
            return True
        return self.ledger.has_any_of(self.job.status.version)

    @property
    def lacks_pods(self) -> bool:
        """Whether pods have yet to be made."""
        present, tasks = self.ledger.present, self.job.spec.tasks
        return any(present(task.name) < task.replicas for task in tasks)

    @property
    def broken(self) -> str:
        """Why the gang can never be whole again, if that is so."""
        pods, least = self.pods, self.job.spec.min_available
        left = self.total - pods.of(PodPhase.FAILED)
        if not pods.of(PodPhase.PENDING) or left >= least:
            return ""
        return f"only {left} of {self.total} pods can still run, and the gang needs {least}"

    @property
    def restart(self) -> Target:
        """Which pods a restarting job lets go; meaningless in other phases."""
        return Target.read(self.job.status.state)

    @property
    def resuming(self) -> bool:
        """The job is restarting because it was told to resume."""
        return cause(self.job.status.state) == Action.RESUME_JOB

    @property
    def spares_finished(self) -> bool:
        """Whether finished pods of older versions still count (all phases but a full restart)."""
        if self.phase is not JobPhase.RESTARTING:
            return True
        return not self.restart.everything or self.resuming

    def outgoing(self) -> Iterator[Entry]:
        """Pods that the restart of a part of the job lets go and that were not asked to yet."""
        target, version = self.restart, self.job.status.version
        if self.phase is JobPhase.RESTARTING and not target.everything:
            pods = (*self.ledger.live(), *self.ledger.done())
            yield from (pod for pod in pods if pod.version == version and target.hits(pod))

    @property
    def pods(self) -> PodCounts:
        """The job's pods by number."""
        return self.ledger.counts(self.job.status.version, spare_finished=self.spares_finished)
