"""Settings of the job controller."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from ..machinery.change_rate import ChangeRate
from ..machinery.reconcile.controller import ControllerSettings
from ..model.described_podgroup import PodGroupsOf
from ..model.job_size import MAX_PODS
from ..model.names import SCHEDULER_NAME, Resource
from .metrics import JobMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings(ControllerSettings):
    """Settings of a :class:`~batholith.job_ctrl.controller.JobController`."""

    workers: int = 3
    """Number of workers; two workers never process the same job."""

    namespace: str = ""
    """Namespace whose jobs are reconciled; empty for all."""

    max_pods_per_job: int = MAX_PODS
    """Number of pods above which a job fails, without any of them being created."""

    max_writes_in_flight: int = 48
    """Maximum number of concurrent pod creations and deletions of all jobs. Lower than the client's
    limit, so that a status write does not wait for thousands of pods."""

    status_delay: float = 1.0
    """Delay in seconds of a status write that changes only counts, so that several become one: pods
    that start within it are written together with the phase."""

    max_status_delay: float = 30.0
    """Maximum of that delay under load, when the next transition mostly writes the counts."""

    burst_size: int = 32
    """Number of jobs without a status above which their phase Pending is delayed like counts."""

    ttl_waits_for_history: bool = False
    """Whether an expired job is deleted only after the recorder of the history has annotated it, or
    ten minutes later."""

    pvc_recheck_interval: float = 2.0
    """Seconds between two checks for a missing PersistentVolumeClaim."""

    podgroups: PodGroupsOf = PodGroupsOf.ALL
    """Which jobs get PodGroups."""

    scheduler_names: Sequence[str] = (SCHEDULER_NAME,)
    """Schedulers whose pods may be without a PodGroup."""

    place_at_creation: bool = False
    """Whether pods of gangs that fit are created with their node."""

    native_podgroups: Resource | None = None
    """The version of Kubernetes' own PodGroups that jobs get instead of those of Volcano, if any;
    then all have one, and no pod is created with its node."""

    registry: CollectorRegistry | None = None
    """Registry for metrics, if any."""

    change_rate: ChangeRate | None = None
    """Rate of changes of all jobs of the process, if several controllers share it."""

    metrics: JobMetrics | None = None
    """Metrics that several controllers share; then *registry* is not used."""

    @property
    def plans_creation(self) -> bool:
        """Whether pods may be created with their node."""
        return self.place_at_creation and self.native_podgroups is None
