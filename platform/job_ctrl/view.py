"""What a decision about one job sees: a moment that does not change while it is looked at."""

from dataclasses import dataclass
from datetime import datetime

from ..model.job import Action, Job, JobPhase
from ..model.podgroup import PodGroup, PodGroupPhase, PodGroupSpec
from .ledger import Ledger, PodCounts
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
    refusal: str = ""
    """Why the server takes no more of the job's pods."""

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
    def hindrance(self) -> str:
        """Why pods are missing that the server refused; empty if that is not what they wait for."""
        present, tasks = self.ledger.present, self.job.spec.tasks
        lacks = any(present(task.name) < task.replicas for task in tasks)
        return self.refusal if lacks and self.admitted else ""

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

    @property
    def pods(self) -> PodCounts:
        """The job's pods by number."""
        return self.ledger.counts(self.job.status.version, spare_finished=self.spares_finished)
