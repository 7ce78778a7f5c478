"""In-memory state of the controller for one job, in addition to the informers.

It may be lost at any time: it only saves work.
"""

from dataclasses import dataclass, field

from ..model.command import Command
from ..model.job import Job
from ..model.job_reasons import Reason
from ..model.names import Resource
from .creation.desired_states import DesiredState
from .creation.planned_creation import PlanUse
from .status.job_view import JobView
from .tracker.pod_tracker import PodTracker


@dataclass(slots=True)
class JobInfo:
    """State of one job; another job that has its name later gets another."""

    first_sync: bool = True
    """This process has not synced the job yet, so it may have missed events."""
    phase: str = ""
    """Phase in the last sync."""
    desired_state: DesiredState | None = None
    podgroup_needed: bool = False
    """No scheduler handles its pod without a PodGroup."""
    plugin_object_uids: dict[tuple[Resource, str], str] = field(default_factory=dict)
    """Uids of the synced objects of the plugins."""
    plugin_objects_synced_for: tuple[object, ...] | None = None
    """The :meth:`plugin_objects_key` that they were last synced for."""
    plugin_object_deletions: int = 0
    """Number of deletions of these objects since the job is known."""
    plugin_objects_deleted: bool = False
    """The plugins' objects were deleted because the job has ended."""
    pvcs_synced_for: tuple[object, ...] | None = None
    """The spec that the PersistentVolumeClaims were last synced for."""
    last_errors: dict[Reason, str] = field(default_factory=dict)
    """Persistent errors of the last attempts, by reason."""
    counts_stale_since: float | None = None
    """Time since when the status has outdated counts whose write is delayed."""
    status_delayed: bool = False
    """Whether the last sync has delayed that write."""
    plan_use: PlanUse = field(default_factory=PlanUse)
    """The description of its pods, and the scheduler's plan for them."""

    def plugin_objects_key(self, desired_state: DesiredState) -> tuple[object, ...]:
        """Return the key that identifies the desired objects of the plugins."""
        return (*desired_state.spec_key, self.plugin_object_deletions)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSync:
    """One sync of one job: what is decided from, and what its effects update."""

    view: JobView
    info: JobInfo
    desired_state: DesiredState
    command: Command | None = None

    @property
    def tracker(self) -> PodTracker:
        """The pods of the job."""
        return self.view.pod_tracker

    @property
    def job(self) -> Job:
        """The job."""
        return self.view.job


@dataclass(frozen=True, slots=True)
class MissingJob:
    """A Command whose job the informer does not have."""

    command: Command
