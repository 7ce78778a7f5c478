"""Options of the JobFlow and JobTemplate controllers."""

from dataclasses import dataclass, field

from ..machinery.reconcile.controller import ControllerSettings
from .metrics import FlowMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings(ControllerSettings):
    """Options of both controllers."""

    probe_interval: float = 5.0
    """Seconds between two rounds of the requests that a flow waits for."""

    metrics: FlowMetrics = field(default_factory=lambda: FlowMetrics(None))
    """Counters that later controllers continue."""
