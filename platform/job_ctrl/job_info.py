"""In-memory state of the controller for one job, in addition to the informers.

It may be lost at any time: it saves work, or holds the controller's own writes until the informers
report them.
"""

from dataclasses import dataclass, field

from ..model.job import Job
from ..model.job_reasons import Reason
from ..model.names import Resource
from ..model.podgroup import PodGroup
from .creation.desired_states import DesiredState
from .creation.planned_creation import PlanUse
from .tracker.pod_tracker import PodTracker

UNOBSERVED_TIMEOUT = 300.0
"""Seconds after which an own write that no informer has reported counts as lost."""


@dataclass(slots=True)
class JobInfo:
    """State of the job with this *uid*; another job may have the same name later."""

    pod_tracker: PodTracker = field(default_factory=PodTracker)
    uid: str = ""
    desired_state: DesiredState | None = None
    first_sync: bool = True
    """This process has not synced the job yet, so it may have missed events."""
    last_written_job: Job | None = None
    """The job after the controller's last write of its status."""
    unconfirmed_transition: tuple[str, str] | None = None
    """Phase before and after a status write that got no response."""
    last_written_podgroup: PodGroup | None = None
    """The PodGroup after the controller's last write, while the informer holds an older version."""
    creating_podgroup: bool = False
    """A request that creates the PodGroup is in flight."""
    podgroup_written_at: float = 0.0
    """Time of that write on the monotonic clock."""
    podgroup_needed: bool = False
    """No scheduler handles its pod without a PodGroup."""
    deleting_podgroup_uid: str = ""
    """Uid of the PodGroup whose deletion this controller requested."""
    plugin_object_uids: dict[tuple[Resource, str], str] = field(default_factory=dict)
    """Uids of the synced objects of the plugins."""
    plugin_objects_synced_for: tuple[object, ...] | None = None
    """The :meth:`plugin_objects_key` that they were last synced for."""
    plugin_object_deletions: int = 0
    """Number of deletions of these objects since the job is known."""
    pvcs_synced_for: tuple[object, ...] | None = None
    """The spec that the PersistentVolumeClaims were last synced for."""
    plugin_objects_deleted: bool = False
    """The plugins' objects were deleted because the job has ended."""
    last_errors: dict[Reason, str] = field(default_factory=dict)
    """Persistent errors of the last attempts, by reason."""
    counts_stale_since: float | None = None
    """Time since when the status has outdated counts whose write is delayed."""
    plan_use: PlanUse = field(default_factory=PlanUse)
    """The description of its pods, and the scheduler's plan for them."""
    last_warnings: dict[str, str] = field(default_factory=dict)
    """The last recorded warning of each reason, so that no sync repeats it."""

    def plugin_objects_key(self, desired_state: DesiredState) -> tuple[object, ...]:
        """Return the key that identifies the desired objects of the plugins."""
        return (*desired_state.spec_key, self.plugin_object_deletions)

    def reset_for(self, job: Job, *, too_large: bool = False) -> None:
        """Reset everything except the pods if *job* is another job of the same name.

        One that is *too_large* gets no pods.
        """
        if self.uid != job.metadata.uid:
            fresh = JobInfo(pod_tracker=self.pod_tracker, uid=job.metadata.uid)
            for name in self.__slots__:
                setattr(self, name, getattr(fresh, name))
        self.pod_tracker.set_job(job, lists_missing=not too_large)


def is_newer(one: Job | PodGroup, other: Job | PodGroup) -> bool:
    """Whether *one* is a newer version of an object than *other*."""
    return int(one.metadata.resource_version or 0) > int(other.metadata.resource_version or 0)
