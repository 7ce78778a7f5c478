"""What the controller remembers of one job beside the caches.

All of it may be lost at any moment: it only spares work, or bridges the time until the caches show
our own writes.
"""

from dataclasses import dataclass, field

from ..model.job import Job
from ..model.names import Resource
from ..model.podgroup import PodGroup, PodGroupSpec
from .effects import Reason
from .plugins.registry import Team
from .pod_tracker import Ledger

UNSEEN_FOR = 300.0
"""Seconds after which a write of ours that no cache has shown is taken for undone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows from a job's spec alone."""

    of: tuple[object, ...]
    """The state of the spec; another one asks for another plan."""
    priorities: int
    """The state of the priority classes, likewise."""
    gang: PodGroupSpec
    team: Team


@dataclass(slots=True)
class Case:
    """The notes on one job; *uid* says which, as another may come under its name."""

    ledger: Ledger = field(default_factory=Ledger)
    uid: str = ""
    plan: Plan | None = None
    first_look: bool = True
    """This process has not decided anything about the job yet; it may have missed something."""
    written: Job | None = None
    """The job after our last write of its status."""
    leaves: tuple[str, str] | None = None
    """The phase that the job had, and the one that a write may have brought it into of which no
    answer has come."""
    podgroup: PodGroup | None = None
    """The PodGroup after our last write of it, as long as the cache shows an older one."""
    podgroup_since: float = 0.0
    """When that was, on the monotonic clock."""
    podgroup_doomed: str = ""
    """Uid of the PodGroup that we asked to go."""
    objects: dict[tuple[Resource, str], str] = field(default_factory=dict)
    """Uids of the plugins' objects that we have seen to."""
    objects_of: tuple[object, ...] | None = None
    """The plan by which we have seen to them, with the number of those lost before."""
    objects_lost: int = 0
    """How many of them have gone since we know the job."""
    claims_of: tuple[object, ...] | None = None
    """The plan by which we have seen to the claims of volumes."""
    objects_removed: bool = False
    """The plugins' objects were removed after the job's end."""
    obstacles: dict[Reason, str] = field(default_factory=dict)
    """What could not be done when it was tried last, and why; time alone does not cure it."""
    numbers_since: float | None = None
    """Since when the status has wrong numbers that may still wait."""
    said: dict[str, str] = field(default_factory=dict)
    """The last warning of each reason, so that it is not repeated at every look."""

    def objects_wanted(self, plan: Plan) -> tuple[object, ...]:
        """What *objects_of* must be for the objects to be there as *plan* wants them."""
        return (*plan.of, self.objects_lost)

    def take_up(self, job: Job) -> None:
        """Start over, but for the pods, if this is not the job that the notes are about."""
        if self.uid != job.metadata.uid:
            fresh = Case(ledger=self.ledger, uid=job.metadata.uid)
            for name in self.__slots__:
                setattr(self, name, getattr(fresh, name))
        self.ledger.adapt(job)


def newer(one: Job | PodGroup, other: Job | PodGroup) -> bool:
    """Whether *one* is a later state of an object than *other*."""
    return int(one.metadata.resource_version or 0) > int(other.metadata.resource_version or 0)
