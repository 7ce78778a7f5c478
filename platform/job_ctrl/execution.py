"""What the executor needs: its dependencies, and the inputs and the result of one sync."""

from collections.abc import Callable
from dataclasses import dataclass

from ..kube.client.client import Client
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock
from ..machinery.controller import ShardedQueue
from ..machinery.event_recorder import Recorder
from ..machinery.expectations import Expectations
from ..model.job import Job
from ..model.podgroup import PodGroup
from .creation.desired_states import DesiredState
from .creation.planned_creation import PlannedCreation
from .job_info import JobInfo
from .metrics import JobMetrics
from .settings import JobSettings
from .status.job_view import CommandRef


@dataclass(slots=True, kw_only=True)
class ExecutorDeps:
    """Dependencies of the executor."""

    client: Client
    clock: Clock
    workqueue: ShardedQueue
    expectations: Expectations
    recorder: Recorder | None
    metrics: JobMetrics
    settings: JobSettings
    change_rate: ChangeRate
    planned: PlannedCreation
    podgroup_of: Callable[[Job, JobInfo], PodGroup | None]


@dataclass(slots=True, kw_only=True)
class SyncContext:
    """One sync of one job: its inputs and its result."""

    key: str
    job: Job
    job_info: JobInfo
    desired_state: DesiredState
    command: CommandRef | None = None
    requeue: bool = False
    """Sync the job again at once, because something was written."""
    requeue_after: float | None = None
    """Seconds until the next sync, if no event precedes it."""
    status_delayed: bool = False
    """Whether the status is outdated, and its write is delayed."""

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return self.job.metadata.namespace

    def request_requeue(self, seconds: float) -> None:
        """Sync the job again after *seconds*; an earlier requested time wins."""
        self.requeue_after = (
            seconds if self.requeue_after is None else min(seconds, self.requeue_after)
        )
