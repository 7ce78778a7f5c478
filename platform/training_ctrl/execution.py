"""What an executor works with: its dependencies, the state of a job, one execution of a plan."""

from dataclasses import dataclass, field
from typing import Any

from ..kube.client.client import Client
from ..machinery.clock import Clock
from ..machinery.consistency import ConsistencyStore
from ..machinery.event_recorder import Recorder
from ..machinery.expectations import ControllerExpectations
from ..machinery.pod_control import ObjectControl, Owner
from ..machinery.status_writer import StatusWriter
from ..model.training.types import TrainingJob
from . import pods
from .core_types import Pod, Service
from .metrics import TrainingMetrics
from .view import View

Job = TrainingJob[Any]


@dataclass(slots=True, kw_only=True)
class ExecutorDeps:
    """Dependencies of an executor."""

    client: Client
    pods: ObjectControl[Pod]
    services: ObjectControl[Service]
    status_writer: StatusWriter[Job]
    job_view: Any
    recorder: Recorder | None
    metrics: TrainingMetrics
    expectations: ControllerExpectations
    """Deletions of each job that the informers have not reported."""
    versions: ConsistencyStore
    """Versions that the informers must have."""
    clock: Clock
    count_interval: float
    """Minimum seconds between two writes of a job's counts alone."""


@dataclass(slots=True, kw_only=True)
class JobMemory:
    """State of a job that is not in the informers; it is not needed after a restart."""

    uid: str
    unconfirmed: bool = False
    """A write of the job ended without a response: it must be read before the next plan."""
    status_written_at: float | None = None
    """Monotonic time of the last write of the status."""
    warned: set[tuple[int, str, str]] = field(default_factory=set)
    """Generation, reason and message of the warnings that were recorded."""


@dataclass(slots=True, kw_only=True)
class Execution:
    """One execution of a plan."""

    key: str
    view: View
    memory: JobMemory
    job: Job
    """The job as last read or written."""
    errors: list[Exception] = field(default_factory=list)
    job_deleted: bool = False
    blocked: bool = False
    """The remaining effects must wait for something."""
    requeue_after: float | None = None
    """Seconds until a delayed write of counts, if there is one."""

    @property
    def owner(self) -> Owner:
        """The job as the owner of what is created for it."""
        return pods.owner(self.view.framework.kind, self.job)

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return self.job.metadata.namespace
