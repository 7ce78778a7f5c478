"""How the job controller works."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from ..machinery.controller import RECONCILE_TIMEOUT
from ..machinery.metrics import WorkQueueMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Settings of a :class:`~batholith.job_ctrl.controller.JobController`."""

    workers: int = 3
    """Jobs worked on at the same time; one job is never in two workers."""

    namespace: str = ""
    """The only namespace whose jobs are looked after; empty for all."""

    max_writes_in_flight: int = 48
    """Pods that are created or deleted at the same time, those of all jobs taken together. It is
    less than the client has writes under way, so that a phase need not wait behind thousands."""

    status_delay: float = 1.0
    """Seconds that a change of nothing but numbers may wait, so that several are one write: a pod
    that starts within them costs its job one write, with the phase."""

    max_status_delay: float = 30.0
    """The same at most while much is going on: then the next phase mostly carries them along."""

    pvc_recheck_interval: float = 2.0
    """Seconds after which a job looks again for a claim that it waits for."""

    reconcile_timeout: float = RECONCILE_TIMEOUT
    """Seconds that one look at a job may take before it is cancelled and tried again."""

    registry: CollectorRegistry | None = None
    """Where metrics are registered, if anywhere."""

    work_metrics: WorkQueueMetrics | None = None
    """Where the work queue reports, if anywhere."""
