"""Options of the JobFlow and JobTemplate controllers."""

from dataclasses import dataclass, field

from ..machinery.controller import RECONCILE_TIMEOUT
from ..machinery.metrics import WorkQueueMetrics
from .metrics import FlowMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """Options of both controllers."""

    workers: int = 5
    """Concurrent reconciles of each controller."""

    reconcile_timeout: float = RECONCILE_TIMEOUT
    """Timeout of one reconcile in seconds."""

    probe_interval: float = 5.0
    """Seconds between two rounds of the requests that a flow waits for."""

    probe_timeout: float = 2.0
    """Seconds for one request."""

    probe_concurrency: int = 32
    """Concurrent requests to pods and lists of pods, of all flows together."""

    metrics: FlowMetrics = field(default_factory=lambda: FlowMetrics(None))
    """Counters that later controllers continue."""

    work_metrics: WorkQueueMetrics | None = None
    """Metrics of the work queues, if any."""
