"""What the controller remembers of one job beside the caches.

All of it may be lost at any moment: it only spares work, or bridges the time until the caches show
our own writes.
"""

from dataclasses import dataclass, field

from ..model.job import Job
from ..model.names import Resource
from ..model.podgroup import PodGroup, PodGroupSpec
from .effects import Reason
from .plugins.registry import JobPlugins
from .pod_tracker import PodTracker

UNOBSERVED_TIMEOUT = 300.0
"""Seconds after which a write of ours that no cache has shown is taken for undone."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What follows from a job's spec alone."""

    spec_key: tuple[object, ...]
    """The state of the spec; another one asks for another plan."""
    priority_classes_generation: int
    """The state of the priority classes, likewise."""
    podgroup_spec: PodGroupSpec
    plugins: JobPlugins


@dataclass(slots=True)
class JobInfo:
    """The notes on one job; *uid* says which, as another may come under its name."""

    pod_tracker: PodTracker = field(default_factory=PodTracker)
    uid: str = ""
    desired_state: DesiredState | None = None
    first_sync: bool = True
    """This process has not decided anything about the job yet; it may have missed something."""
    last_written_job: Job | None = None
    """The job after our last write of its status."""
    unconfirmed_transition: tuple[str, str] | None = None
    """The phase that the job had, and the one that a write may have brought it into of which no
    answer has come."""
    last_written_podgroup: PodGroup | None = None
    """The PodGroup after our last write of it, as long as the cache shows an older one."""
    podgroup_written_at: float = 0.0
    """When that was, on the monotonic clock."""
    deleting_podgroup_uid: str = ""
    """Uid of the PodGroup that we asked to go."""
    plugin_object_uids: dict[tuple[Resource, str], str] = field(default_factory=dict)
    """Uids of the plugins' objects that we have seen to."""
    plugin_objects_synced_for: tuple[object, ...] | None = None
    """The plan by which we have seen to them, with the number of those lost before."""
    plugin_object_deletions: int = 0
    """How many of them have gone since we know the job."""
    pvcs_synced_for: tuple[object, ...] | None = None
    """The plan by which we have seen to the claims of volumes."""
    plugin_objects_deleted: bool = False
    """The plugins' objects were removed after the job's end."""
    last_errors: dict[Reason, str] = field(default_factory=dict)
    """What could not be done when it was tried last, and why; time alone does not cure it."""
    counts_stale_since: float | None = None
    """Since when the status has wrong numbers that may still wait."""
    last_warnings: dict[str, str] = field(default_factory=dict)
    """The last warning of each reason, so that it is not repeated at every look."""

    def plugin_objects_key(self, desired_state: DesiredState) -> tuple[object, ...]:
        """What *objects_of* must be for the objects to be there as *plan* wants them."""
        return (*desired_state.spec_key, self.plugin_object_deletions)

    def reset_for(self, job: Job) -> None:
        """Start over, but for the pods, if this is not the job that the notes are about."""
        if self.uid != job.metadata.uid:
            fresh = JobInfo(pod_tracker=self.pod_tracker, uid=job.metadata.uid)
            for name in self.__slots__:
                setattr(self, name, getattr(fresh, name))
        self.pod_tracker.set_job(job)


def is_newer(one: Job | PodGroup, other: Job | PodGroup) -> bool:
    """Whether *one* is a later state of an object than *other*."""
    return int(one.metadata.resource_version or 0) > int(other.metadata.resource_version or 0)
